package cache

import (
	"iter"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/indexnode/arena"
)

// index finds timelines by the ids of their keys: a hash table of buckets with open
// addressing, never more than half full. Readers take no lock. Writers hold Cache.mu.
//
// A slot, once taken, belongs to its key for the life of the table, so that a reader that
// has found a slot may read its value at any later time. The slot of a key that has left
// the cache stays, without a value. A slot's tag is stored after its value. A table never
// grows: a new one is filled with the keys that have values, and takes its place. A reader
// that still has the old table sees the values that the old table had when it was replaced.
type index struct {
	arena *arena.Arena
	table atomic.Pointer[table]
	used  int // slots taken
	live  int // slots with a value
}

// table is the buckets of an index, in a block of the arena. The block stays as long as a
// reader may have found it.
type table struct {
	mask    uint64 // the number of buckets, a power of two, less one
	buckets []bucket
	block   []byte // the memory of buckets
}

// bucket is a cache line of slots. A key whose own bucket is full is in the next bucket
// that had room.
type bucket [bucketSlots]slot

const (
	bucketSlots = 4
	bucketBytes = int(unsafe.Sizeof(bucket{}))
	minBuckets  = 1 << 8 // the least size of a table, 16 KiB
)

// slot is the place of a key. Its value is one word, so that readers see it change as a
// whole. The constants below say what its bits are. The address of a timeline fits between
// the others: it has at most 48 bits and is a multiple of 64.
type slot struct {
	tag   atomic.Uint64 // the tag of the key's id; 0 while the slot is free
	value atomic.Uint64
}

const (
	touched   = 1 << 0                // looked up since it was last considered for eviction
	isEmpty   = 1 << 1                // the timeline is Empty, and address is 0
	oneTime   = 1 << 2                // the lowest bit of timesBits
	timesBits = 15 * oneTime          // how many times the key entered a list, modulo 16
	checkBits = 0xffff_0000_0000_0000 // the upper 16 bits of the check of the key's id
	address   = 0x0000_ffff_ffff_ffc0 // the address of the timeline; 0 without one
)

// get returns the slot's timeline, or nil.
func (s *slot) get() *Timeline { return timelineIn(s.value.Load()) }

// timelineIn returns the timeline that the value of a slot says, or nil.
func timelineIn(v uint64) *Timeline {
	if v&isEmpty != 0 {
		return Empty
	}
	return timelineAt(uintptr(v & address))
}

// is reports whether the slot is that of key k.
func (s *slot) is(k id) bool {
	return s.tag.Load() == k.tag && (s.value.Load()^k.check)&checkBits == 0
}

// enter counts that the slot's key enters a list, and returns the key's place there. The
// caller holds Cache.mu; a touch by a reader at the same time may be lost.
func (s *slot) enter() place {
	v := s.value.Load()
	v = v&^timesBits | (v+oneTime)&timesBits
	s.value.Store(v)
	return s.place()
}

// place returns the place that the key took in a list when it entered one last.
func (s *slot) place() place {
	return place{s.tag.Load(), uint8(s.value.Load() & timesBits / oneTime)}
}

// set gives the slot a timeline, or none for nil. It keeps the bit touched, but clears it
// for nil. A touch by a reader at the same time may be lost.
func (s *slot) set(tl *Timeline) {
	v := s.value.Load() &^ (isEmpty | address)
	switch {
	case tl == nil:
		v &^= touched
	case tl == Empty:
		v |= isEmpty
	default:
		v |= uint64(tl.address())
	}
	s.value.Store(v)
}

// newTable returns an empty table. buckets is a power of two.
func (x *index) newTable(buckets int) *table {
	b := x.arena.AllocApart(buckets * bucketBytes)
	clear(b)
	return &table{uint64(buckets - 1), unsafe.Slice((*bucket)(unsafe.Pointer(unsafe.SliceData(b))), buckets), b}
}

// slot returns a slot by its number, which counts the slots of all buckets in order.
func (t *table) slot(i int) *slot { return &t.buckets[i/bucketSlots][i%bucketSlots] }

// find returns the number of a key's slot, or -1.
func (t *table) find(k id) int {
	for n := uint64(0); ; n++ {
		at := (home(k.tag) + n) & t.mask
		b := &t.buckets[at]
		for i := range b {
			if b[i].is(k) {
				return int(at)*bucketSlots + i
			}
			if b[i].tag.Load() == 0 {
				return -1
			}
		}
	}
}

// holder returns the number of the slot with a tag that has a value, or -1. There is at
// most one: of two keys with the same tag only one is in the cache at a time.
func (t *table) holder(tag uint64) int {
	for n := uint64(0); ; n++ {
		at := (home(tag) + n) & t.mask
		b := &t.buckets[at]
		for i := range b {
			switch b[i].tag.Load() {
			case 0:
				return -1
			case tag:
				if b[i].get() != nil {
					return int(at)*bucketSlots + i
				}
			}
		}
	}
}

// touch returns the slot's timeline, or nil, and marks the slot as touched if it has one.
func (s *slot) touch() *Timeline {
	v := s.value.Load()
	if v&touched == 0 && v&(isEmpty|address) != 0 {
		s.value.Or(touched)
	}
	return timelineIn(v)
}

// get returns the timeline of a key, or nil.
func (x *index) get(k id) *Timeline {
	t := x.table.Load()
	if i := t.find(k); i >= 0 {
		return t.slot(i).get()
	}
	return nil
}

// set gives slot i a timeline; nil takes its key out.
func (x *index) set(i int, tl *Timeline) {
	s := x.table.Load().slot(i)
	if had := s.get() != nil; had && tl == nil {
		x.live--
	} else if !had && tl != nil {
		x.live++
	}
	s.set(tl)
}

// full reports whether the table must be rebuilt before another insert.
func (x *index) full() bool { return 2*(x.used+1) > bucketSlots*len(x.table.Load().buckets) }

// insert takes a slot, without a timeline yet, for a key that has none. It returns the
// slot's number.
func (x *index) insert(k id) int {
	x.used++
	return x.table.Load().insert(k.tag, k.check&checkBits)
}

// insert takes the first free slot for a tag, from the tag's own bucket on, and returns the
// slot's number. The table must have a free slot.
func (t *table) insert(tag, value uint64) int {
	for n := uint64(0); ; n++ {
		at := (home(tag) + n) & t.mask
		for i := range t.buckets[at] {
			if s := &t.buckets[at][i]; s.tag.Load() == 0 {
				s.value.Store(value)
				s.tag.Store(tag)
				return int(at)*bucketSlots + i
			}
		}
	}
}

// rebuild replaces the table by one that has only the keys with values. The new table is
// twice as large if more than a third of the slots have a value, and smaller if fewer than
// a twelfth have one.
func (x *index) rebuild() {
	t := x.table.Load()
	buckets := len(t.buckets)
	if 3*x.live > bucketSlots*buckets {
		buckets *= 2
	}
	for 12*x.live < bucketSlots*buckets && buckets > minBuckets {
		buckets /= 2
	}
	next := x.newTable(buckets)
	for i := range bucketSlots * len(t.buckets) {
		if s := t.slot(i); s.get() != nil {
			next.insert(s.tag.Load(), s.value.Load())
		}
	}
	x.used = x.live
	x.table.Store(next)
	x.arena.RetireApart(t.block)
}

// reset makes the index empty, and returns the timelines that were in it. The caller must
// range over all of them: the old table's memory is given back at the end.
func (x *index) reset() iter.Seq[*Timeline] {
	was := x.table.Swap(x.newTable(minBuckets))
	x.used, x.live = 0, 0
	return func(yield func(*Timeline) bool) {
		for i := range bucketSlots * len(was.buckets) {
			if tl := was.slot(i).get(); tl != nil && !yield(tl) {
				return
			}
		}
		x.arena.RetireApart(was.block)
	}
}
