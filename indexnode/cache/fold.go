package cache

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"github.com/millrace/millrace/relevance"
)

// Folded has the part of a model's scores that depends on a record alone, so that it is
// not computed again for every question. It is of a timeline with one part: a number for
// each row of that part from First on, as far back as the windows of questions went. A
// Folded is the beginning of a block of the arena; the numbers follow it.
type Folded struct {
	Model  ModelID
	First  uint32        // the first row with a number
	rows   uint32        // how many rows have one
	others atomic.Uint32 // how many questions of other models wanted its place since the last question of this model
	Most   float64       // the largest of the numbers; +Inf if one is NaN
}

const (
	foldedBytes = int(unsafe.Sizeof(Folded{}))
	// foldPlaces is for how many models a timeline keeps numbers. A rollout has
	// two, and another feed may have its own.
	foldPlaces = 3
	// maxOthers is how many questions of other models must want a place until its
	// model loses it. If more models than places serve at once, those that asked
	// first keep their places.
	maxOthers = 8
)

// fold is a place of a timeline for a Folded: its address in the low 48 bits, and the low
// 16 bits of the model's id above it. So most look-ups of other models end without
// reading the Folded. 0 is a free place.
type fold uint64

const (
	addressBits = 48 // foldOf panics if an address has more
	// retired is in all places of a timeline that was taken out of the cache, so that
	// nothing is put there.
	retired fold = 1
)

// foldOf returns the place that holds f.
func foldOf(f *Folded) fold {
	at := uint64(uintptr(unsafe.Pointer(f)))
	if at>>addressBits != 0 {
		panic("cache: an address of more than 48 bits")
	}
	return fold(at | uint64(f.Model)<<addressBits)
}

// get returns the Folded of a place; nil if the place is free or retired.
func (f fold) get() *Folded {
	if f <= retired {
		return nil
	}
	at := uintptr(f & (1<<addressBits - 1))
	return *(**Folded)(unsafe.Pointer(&at))
}

// is reports whether the place may be of model m: the low 16 bits of the ids are equal.
func (f fold) is(m ModelID) bool { return f > retired && uint16(f>>addressBits) == uint16(m) }

// Folded returns the numbers that the timeline keeps of model m, or nil. It counts as a
// question of that model.
func (t *Timeline) Folded(m ModelID) *Folded {
	for i := range t.folds {
		if at := fold(t.folds[i].Load()); at.is(m) {
			if f := at.get(); f.Model == m {
				if f.others.Load() != 0 {
					f.others.Store(0)
				}
				return f
			}
		}
	}
	return nil
}

// Owe adds rows that a question scored whole, since the timeline has no numbers of its model
// for them. It returns the sum of such rows, of all models. Fold sets the sum to 0 when it
// puts a Folded into the timeline, and when it has no memory for one.
func (t *Timeline) Owe(rows uint32) (owed uint32) { return t.owed.Add(rows) }

// Place is where a Folded can be put into a timeline.
type Place struct {
	at  *atomic.Uint64
	was fold // what was there when it was found
}

// Place finds a place for a Folded of model m: the one that has one of m already, else a
// free one, else one whose model has been asked for by none of the last maxOthers questions
// that wanted its place; this call counts as such a question. It reports false if there is
// none, or if the timeline is not in the cache.
func (t *Timeline) Place(m ModelID) (p Place, ok bool) {
	if !t.cached {
		return Place{}, false
	}
	for i := range t.folds {
		at := &t.folds[i]
		was := fold(at.Load())
		switch f := was.get(); {
		case was == retired:
			return Place{}, false
		case f != nil && f.Model == m:
			return Place{at, was}, true
		case f == nil && (!ok || p.was != 0), f != nil && f.others.Add(1) >= maxOthers && !ok:
			p, ok = Place{at, was}, true
		}
	}
	return p, ok
}

// Own returns the numbers, one for each row from First on.
func (f *Folded) Own() []float64 {
	return unsafe.Slice((*float64)(unsafe.Add(unsafe.Pointer(f), foldedBytes)), int(f.rows))
}

// block returns the block of the arena that f begins.
func (f *Folded) block() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(f)), foldedBytes+8*int(f.rows))
}

// Fold puts a copy of own into a place of a timeline: the numbers of model m for the last
// len(own) rows of its only part. most is the largest of them. Fold does nothing if the
// place has changed since it was found, or if there is no memory.
func (c *Cache) Fold(t *Timeline, p Place, m ModelID, own []float64, most float64) {
	b := c.arena.Alloc(foldedBytes + 8*len(own))
	if b == nil {
		t.owed.Store(0) // else every question would compute the numbers again
		return
	}
	f := (*Folded)(unsafe.Pointer(unsafe.SliceData(b)))
	f.Model, f.First, f.rows, f.Most = m, uint32(t.First().Len()-len(own)), uint32(len(own)), most
	f.others.Store(0)
	copy(f.Own(), own)
	if !p.at.CompareAndSwap(uint64(p.was), uint64(foldOf(f))) {
		c.arena.Free(b)
		return
	}
	t.owed.Store(0)
	if was := p.was.get(); was != nil {
		c.arena.Retire(was.block())
	}
}

// ModelID stands for a model in memory without pointers. Each model has one id as long as
// it is referenced, and no id is given to two models.
type ModelID uint32

// models has the ids of the models that are referenced, and the id that was given last.
var models struct {
	sync.Mutex
	ids  map[weak.Pointer[relevance.Model]]ModelID
	last ModelID
}

// IDOf returns the id of a model, and gives it one if it has none.
func IDOf(m *relevance.Model) ModelID {
	models.Lock()
	defer models.Unlock()
	w := weak.Make(m)
	id, known := models.ids[w]
	if !known {
		if models.ids == nil {
			models.ids = make(map[weak.Pointer[relevance.Model]]ModelID)
		}
		models.last++
		id = models.last
		models.ids[w] = id
		runtime.AddCleanup(m, forgetModel, w)
	}
	return id
}

// forgetModel removes the id of a model that the garbage collector has freed.
func forgetModel(w weak.Pointer[relevance.Model]) {
	models.Lock()
	defer models.Unlock()
	delete(models.ids, w)
}
