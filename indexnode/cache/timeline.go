package cache

import (
	"errors"
	"fmt"
	"math"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/ahead"
	"github.com/millrace/millrace/internal/column"
)

// Timeline is an immutable snapshot of a timeline's newest records. It is the beginning
// of a block of bytes that holds them.
//
//	Timeline │ part │ part ...    packed rows, nearly always one part; several if the
//	    │                         records have several layouts, or are too many for one
//	    └ older ► Timeline        what was there when ingest began to continue it
//
// Cached blocks are in an arena: a Timeline that was found there must not be used after
// [Reader.Leave].
type Timeline struct {
	from    millrace.Time             // how far back the timeline is complete: see From
	older   uintptr                   // the address of a Timeline, or 0
	folds   [foldPlaces]atomic.Uint64 // each is a fold
	owed    atomic.Uint32             // rows that were scored whole for lack of folded numbers: see Owe
	records uint32                    // how many, with those of older
	size    uint32                    // the size of the block in bytes, without that of older
	parts   uint16                    // how many parts the block has
	cached  bool                      // the block is in an arena
}

// timelineBytes is the offset of the first part in a block. Parts are aligned to 8 bytes.
const timelineBytes = (int(unsafe.Sizeof(Timeline{})) + 7) &^ 7

// Empty stands for a timeline that is known to have no records, and for an entity that is
// known to have no features. The cache keeps it as a mark, without memory of its own.
var Empty, _ = NewTimeline(millrace.MinTime) // no rows are never too many

// Features stands for a content type in the key of an entity's own features. No content
// type is empty.
const Features millrace.ContentType = ""

// Objects stands for a content type in the key of the features of objects that an entity
// routes. An entity routes features if their record names it as its entity: they are kept in
// the entity's partition, also if they describe another object. There is a row for each
// object, by the object's name in ascending order in each part. No content type has a NUL.
const Objects millrace.ContentType = "\x00"

// NewTimeline returns a timeline, outside of any cache, with the rows of slabs. The caller
// has all records back to from in them, and the times in each slab ascend. An entity's
// features are one row. The error is column.ErrFull if the rows are too many or too large.
func NewTimeline(from millrace.Time, slabs ...*column.Slab) (*Timeline, error) {
	size := timelineBytes
	for _, s := range slabs {
		size += s.Bytes() / 2
	}
	b, err := appendTimeline(make([]byte, 0, size), from, nil, slabs)
	if err != nil {
		return nil, err
	}
	return timelineOf(b), nil
}

// timelineOf returns the timeline that a block begins with. It shares b's memory.
func timelineOf(b []byte) *Timeline { return (*Timeline)(unsafe.Pointer(unsafe.SliceData(b))) }

// timelineAt returns the timeline at an address of an arena, nil for 0.
func timelineAt(address uintptr) *Timeline { return *(**Timeline)(unsafe.Pointer(&address)) }

// appendTimeline appends the block of a timeline to b, which is empty. older is the
// timeline that it continues, or nil.
func appendTimeline(b []byte, from millrace.Time, older *Timeline, slabs []*column.Slab) ([]byte, error) {
	b = append(b, make([]byte, timelineBytes)...)
	records, parts := 0, 0
	for _, s := range slabs {
		if s.Len() == 0 {
			continue
		}
		var n int
		var err error
		if b, n, err = appendParts(b, s); err != nil {
			return nil, fmt.Errorf("timeline: %w", err)
		}
		records += s.Len()
		parts += n
	}
	if uint64(len(b)) > math.MaxUint32 || parts > math.MaxUint16 {
		return nil, fmt.Errorf("timeline: %w", column.ErrFull)
	}
	if older != nil {
		records += older.Len()
	}
	t := timelineOf(b)
	t.from, t.older = from, older.address()
	t.records, t.size, t.parts = uint32(records), uint32(len(b)), uint16(parts)
	return b, nil
}

// appendParts appends the rows of a slab to b, and returns how many parts they make: one,
// or more if the rows do not fit into one.
func appendParts(b []byte, s *column.Slab) (all []byte, parts int, err error) {
	if b, err = column.Pack(b, s); err == nil {
		for len(b)%8 != 0 {
			b = append(b, 0)
		}
		return b, 1, nil
	}
	if !errors.Is(err, column.ErrFull) || s.Len() < 2 {
		return nil, 0, err
	}
	for _, half := range []*column.Slab{s.Rows(0, s.Len()/2), s.Rows(s.Len()/2, s.Len())} {
		n := 0
		if b, n, err = appendParts(b, half); err != nil {
			return nil, 0, err
		}
		parts += n
	}
	return b, parts, nil
}

func (t *Timeline) address() uintptr { return uintptr(unsafe.Pointer(t)) }

// block returns the bytes of the timeline, without those of older ones.
func (t *Timeline) block() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(t)), int(t.size))
}

// bytes returns the size of a timeline's block and of those that it continues. It is 0 for
// Empty.
func (t *Timeline) bytes() int {
	n := 0
	if t == Empty {
		return 0
	}
	for ; t != nil; t = t.Older() {
		n += int(t.size)
	}
	return n
}

// Prefetch has the processor load the cache lines that tell whether the timeline has rows
// in a window.
func (t *Timeline) Prefetch() { ahead.Lines(unsafe.Pointer(t), headLines) }

// PrefetchRows has the processor load the columns that scans read, and the numbers that
// are folded for model m, if the timeline may have rows with from <= time < to. Call
// Prefetch some time before, since PrefetchRows reads those lines.
func (t *Timeline) PrefetchRows(from, to millrace.Time, m ModelID) {
	if t.parts != 1 {
		return
	}
	p := t.First()
	if oldest, newest := p.Times(); newest < int64(from) || oldest >= int64(to) {
		return
	}
	if more := (timelineBytes+p.Hot()+line-1)/line - headLines; more > 0 {
		ahead.Lines(unsafe.Add(unsafe.Pointer(t), headLines*line), min(more, maxLines))
	}
	for i := range t.folds {
		if f := fold(t.folds[i].Load()); f.is(m) {
			ahead.Lines(unsafe.Pointer(f.get()), min((foldedBytes+8*int(t.records)+line-1)/line, maxLines))
		}
	}
}

const (
	line      = 64 // bytes of a cache line
	headLines = 2  // the lines of a block that Prefetch loads
	// maxLines is how many lines are asked for at a time. A core loads about that
	// many at once; more would wait for each other.
	maxLines = 16
)

// From is how far back the timeline is complete: every live record with
// From <= time is in it.
func (t *Timeline) From() millrace.Time { return t.from }

// Len returns the number of records, with those of Older.
func (t *Timeline) Len() int { return int(t.records) }

// Older returns the timeline that this one continues, or nil. Its records are not in the
// parts of this one.
func (t *Timeline) Older() *Timeline { return timelineAt(t.older) }

// Parts returns how many parts the timeline has, without Older.
func (t *Timeline) Parts() int { return int(t.parts) }

// First returns the first part. The timeline must have one.
func (t *Timeline) First() column.Packed { return t.next(timelineBytes) }

// next returns the part that begins at an offset of the block.
func (t *Timeline) next(off int) column.Packed { return column.PackedAt(t.block()[off:]) }

// Append appends the parts, without those of Older, to dst.
func (t *Timeline) Append(dst []column.Packed) []column.Packed {
	off := timelineBytes
	for range t.parts {
		p := t.next(off)
		dst = append(dst, p)
		off += (p.Size() + 7) &^ 7
	}
	return dst
}
