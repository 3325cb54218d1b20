package cache

import (
	"hash/maphash"
	"sync/atomic"

	"github.com/millrace/millrace"
)

// id stands for a key: 127 bits of it under two random seeds. That two keys of
// a process share one is less likely than that its memory fails.
type id struct{ tag, check uint64 }

// seeds make ids.
type seeds struct{ tag, check maphash.Seed }

func newSeeds() seeds { return seeds{maphash.MakeSeed(), maphash.MakeSeed()} }

// part returns what one half of a key contributes to its id.
func (s *seeds) part(half string) id {
	return id{maphash.String(s.tag, half), maphash.String(s.check, half)}
}

// join returns the id of a key from what its halves contribute. A tag is never
// that of a free slot.
func join(entity, typ id) id {
	tag := (entity.tag ^ typ.tag) * 0x9e3779b97f4a7c15
	check := (entity.check ^ typ.check) * 0xc2b2ae3d27d4eb4f
	return id{(tag ^ tag>>32) | 1<<63, check ^ check>>32}
}

func (s *seeds) id(t millrace.Timeline) id {
	return join(s.part(string(t.Entity)), s.part(string(t.Type)))
}

// index finds values by id: an open table, never more than half full. Readers take no lock; writers are one at a time.
//
// A slot, once taken, is its key's for the life of the table, so that whoever
// finds a slot may read its value at any later time: a key that is out of the
// cache has the value nil. The tag is stored last. A table is never changed
// into another: one with the keys that have values is filled and put in its
// place, and who still reads the old one sees what was there when it began.
type index struct {
	table atomic.Pointer[table]
	used  int // slots taken
	live  int // of them, those with a value
}

type table struct {
	mask  uint64
	slots []slot
}

// slot is half a cache line.
type slot struct {
	tag     atomic.Uint64 // 0 while it is free
	check   atomic.Uint64
	value   atomic.Pointer[Timeline]
	touched atomic.Bool // looked up since it was last considered for eviction
}

const minSlots = 1 << 10

func newTable(slots int) *table { return &table{uint64(slots - 1), make([]slot, slots)} }

// reset makes the index empty.
func (x *index) reset() {
	x.table.Store(newTable(minSlots))
	x.used, x.live = 0, 0
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

// get returns the value of a key, or nil. Of the writer.
func (x *index) get(k id) *Timeline {
	if s := x.table.Load().find(k); s != nil {
		return s.value.Load()
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
		t.insert(k, v)
		return
	}
	if had := s.value.Load() != nil; had && v == nil {
		x.live--
	} else if !had && v != nil {
		x.live++
		s.touched.Store(false)
	}
	s.value.Store(v)
}

func (t *table) insert(k id, v *Timeline) *slot {
	n := uint64(0)
	for t.at(k, n).tag.Load() != 0 {
		n++
	}
	s := t.at(k, n)
	s.check.Store(k.check)
	s.value.Store(v)
	s.tag.Store(k.tag)
	return s
}

// rebuild puts a table of the keys with values in the place of t, twice as
// large unless those without were what filled it.
func (x *index) rebuild(t *table) *table {
	slots := len(t.slots)
	if 3*x.live > slots {
		slots *= 2
	}
	next := newTable(slots)
	for i := range t.slots {
		s := &t.slots[i]
		if v := s.value.Load(); v != nil {
			next.insert(id{s.tag.Load(), s.check.Load()}, v).touched.Store(s.touched.Load())
		}
	}
	x.used = x.live
	x.table.Store(next)
	return next
}
