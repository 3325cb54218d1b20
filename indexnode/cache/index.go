package cache

import (
	"iter"
	"sync/atomic"
	"unsafe"

	"github.com/millrace/millrace/indexnode/arena"
)

// index finds values by id: an open table, never more than half full. Readers
// take no lock; writers are one at a time.
//
// A slot, once taken, is its key's for the life of the table, so that whoever
// finds a slot may read its value at any later time: a key that is out of the
// cache has the value 0. The tag is stored last. A table is never changed into
// another: one with the keys that have values is filled and put in its place,
// and who still reads the old one sees what was there when it began.
type index struct {
	arena *arena.Arena
	table atomic.Pointer[table]
	used  int // slots taken
	live  int // of them, those with a value
}

// table is slots in a block of the arena, which lives as long as a reader that
// may have found it.
type table struct {
	mask  uint64
	slots []slot
	block []byte
}

// slot is half a cache line.
type slot struct {
	tag     atomic.Uint64 // 0 while it is free
	check   atomic.Uint64
	value   atomic.Uintptr // the address of a Timeline, isEmpty, or 0
	touched atomic.Uint32  // 1: looked up since it was last considered for eviction
	_       uint32
}

const slotBytes = int(unsafe.Sizeof(slot{}))

// isEmpty stands for Empty.
const isEmpty = 1

// get returns the slot's value, or nil.
func (s *slot) get() *Timeline {
	v := s.value.Load()
	if v == isEmpty {
		return Empty
	}
	return timelineAt(v)
}

func (s *slot) set(tl *Timeline) {
	if tl == Empty {
		s.value.Store(isEmpty)
		return
	}
	s.value.Store(tl.address())
}

const minSlots = 1 << 10

func (x *index) newTable(slots int) *table {
	b := x.arena.Alloc(slots * slotBytes)
	clear(b)
	return &table{uint64(slots - 1), unsafe.Slice((*slot)(unsafe.Pointer(unsafe.SliceData(b))), slots), b}
}

// reset makes the index empty, and returns what was in it.
func (x *index) reset() iter.Seq[*Timeline] {
	was := x.table.Swap(x.newTable(minSlots))
	x.used, x.live = 0, 0
	return func(yield func(*Timeline) bool) {
		for i := range was.slots {
			if v := was.slots[i].get(); v != nil && !yield(v) {
				return
			}
		}
		x.arena.Retire(was.block)
	}
}

// at returns the n-th slot to try for a key. The second is in the cache line of
// the first, the next two in the line beside it.
func (t *table) at(k id, n uint64) *slot { return &t.slots[(k.tag^n)&t.mask] }

// find returns the slot of a key, or nil.
func (t *table) find(k id) *slot {
	for n := uint64(0); ; n++ {
		switch s := t.at(k, n); s.tag.Load() {
		case 0:
			return nil
		case k.tag:
			if s.check.Load() == k.check {
				return s
			}
		}
	}
}

// get returns the value of a key, or nil.
func (x *index) get(k id) *Timeline {
	if s := x.table.Load().find(k); s != nil {
		return s.get()
	}
	return nil
}

// set gives a key a value, nil to take it out.
func (x *index) set(k id, v *Timeline) {
	t := x.table.Load()
	s := t.find(k)
	switch {
	case s == nil && v == nil:
		return
	case s == nil:
		if 2*(x.used+1) > len(t.slots) {
			t = x.rebuild(t)
		}
		x.used++
		x.live++
		t.insert(k).publish(k, v)
		return
	}
	if had := s.value.Load() != 0; had && v == nil {
		x.live--
	} else if !had && v != nil {
		x.live++
		s.touched.Store(0)
	}
	s.set(v)
}

// insert returns a free slot for a key.
func (t *table) insert(k id) *slot {
	n := uint64(0)
	for t.at(k, n).tag.Load() != 0 {
		n++
	}
	return t.at(k, n)
}

// publish makes a free slot a key's.
func (s *slot) publish(k id, v *Timeline) {
	s.check.Store(k.check)
	s.set(v)
	s.tag.Store(k.tag)
}

// rebuild puts a table of the keys with values in the place of t, twice as
// large unless those without were what filled it.
func (x *index) rebuild(t *table) *table {
	slots := len(t.slots)
	if 3*x.live > slots {
		slots *= 2
	}
	next := x.newTable(slots)
	for i := range t.slots {
		s := &t.slots[i]
		if v := s.get(); v != nil {
			k := id{s.tag.Load(), s.check.Load()}
			to := next.insert(k)
			to.touched.Store(s.touched.Load())
			to.publish(k, v)
		}
	}
	x.used = x.live
	x.table.Store(next)
	x.arena.Retire(t.block)
	return next
}
