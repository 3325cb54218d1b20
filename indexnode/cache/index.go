package cache

import (
	"iter"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/indexnode/arena"
)

// index finds values by id: an open table of buckets, never more than half
// full. Readers take no lock; writers are one at a time.
//
// A slot, once taken, is its key's for the life of the table, so that whoever
// finds a slot may read its value at any later time: a key that is out of the
// cache has none. The tag is stored last. A table is never changed into
// another: one with the keys that have values is filled and put in its place,
// and who still reads the old one sees what was there when it began.
type index struct {
	arena *arena.Arena
	table atomic.Pointer[table]
	used  int // slots taken
	live  int // of them, those with a value
}

// table is buckets in a block of the arena, which lives as long as a reader
// that may have found it.
type table struct {
	mask    uint64
	buckets []bucket
	block   []byte
}

// bucket is a cache line. A key whose bucket is full stands in the next one
// that is not.
type bucket [bucketSlots]slot

const (
	bucketSlots = 4
	bucketBytes = int(unsafe.Sizeof(bucket{}))
	minBuckets  = 1 << 8
)

// slot is the place of a key. Its value is one word, which changes as a whole:
// the address of a timeline, which ends in zeros and is not longer than 48
// bits, or a mark, and around it a part of the key, and how many times, modulo
// 16, the key entered a list.
type slot struct {
	tag   atomic.Uint64 // 0 while it is free
	value atomic.Uint64
}

const (
	touched   = 1 << 0 // looked up since it was last considered for eviction
	isEmpty   = 1 << 1 // Empty
	oneTime   = 1 << 2 // and the three bits above it
	timesBits = 15 * oneTime
	checkBits = 0xffff_0000_0000_0000
	address   = 0x0000_ffff_ffff_ffc0
)

// get returns the slot's value, or nil.
func (s *slot) get() *Timeline { return timelineIn(s.value.Load()) }

func timelineIn(v uint64) *Timeline {
	if v&isEmpty != 0 {
		return Empty
	}
	return timelineAt(uintptr(v & address))
}

// is reports whether the slot is a key's.
func (s *slot) is(k id) bool {
	return s.tag.Load() == k.tag && (s.value.Load()^k.check)&checkBits == 0
}

// enter counts that the key enters a list, and returns its place there. Of the
// writer; a touch at the same time may be lost.
func (s *slot) enter() place {
	v := s.value.Load()
	v = v&^timesBits | (v+oneTime)&timesBits
	s.value.Store(v)
	return s.place()
}

// place returns the place that the key took last.
func (s *slot) place() place {
	return place{s.tag.Load(), uint8(s.value.Load() & timesBits / oneTime)}
}

// set gives the slot a value, or none for nil, and keeps the mark of touched.
// A touch at the same time may be lost.
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

func (x *index) newTable(buckets int) *table {
	b := x.arena.AllocApart(buckets * bucketBytes)
	clear(b)
	return &table{uint64(buckets - 1), unsafe.Slice((*bucket)(unsafe.Pointer(unsafe.SliceData(b))), buckets), b}
}

// slot returns a slot by its number.
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

// holder returns the number of the slot with a tag that has a value, or -1. Of
// two keys with one tag the index takes one at a time.
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

// touch returns the slot's value, and marks it as looked up.
func (s *slot) touch() *Timeline {
	v := s.value.Load()
	if v&touched == 0 && v&(isEmpty|address) != 0 {
		s.value.Or(touched)
	}
	return timelineIn(v)
}

// get returns the value of a key, or nil.
func (x *index) get(k id) *Timeline {
	t := x.table.Load()
	if i := t.find(k); i >= 0 {
		return t.slot(i).get()
	}
	return nil
}

// set gives a slot a value, nil to take its key out.
func (x *index) set(i int, tl *Timeline) {
	s := x.table.Load().slot(i)
	if had := s.get() != nil; had && tl == nil {
		x.live--
	} else if !had && tl != nil {
		x.live++
	}
	s.set(tl)
}

// full reports whether a table must be rebuilt before another insert.
func (x *index) full() bool { return 2*(x.used+1) > bucketSlots*len(x.table.Load().buckets) }

// insert takes a slot for a key that has none, and returns its number.
func (x *index) insert(k id) int {
	x.used++
	return x.table.Load().insert(k.tag, k.check&checkBits)
}

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

// rebuild puts a table of the keys with values in the place of the one that
// is there: twice as large unless those without were what filled it, smaller
// where few have one.
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

// reset makes the index empty, and returns what was in it.
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
