package cache

import (
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"
	"weak"

	"github.com/millrace/millrace/relevance"
)

// Folded is the part of a model's scores that depends on a record alone, kept
// so that it is not computed again for every question: of the rows of a
// timeline's only part from First on, as far back as windows went. It begins a
// block of the arena, in which a number for each row follows.
type Folded struct {
	Model  ModelID
	First  uint32
	rows   uint32
	others atomic.Uint32 // questions that wanted its place since one with this model
	Most   float64       // of the numbers; +Inf if one is none
}

const (
	foldedBytes = int(unsafe.Sizeof(Folded{}))
	// foldPlaces is for how many models a timeline keeps numbers: those of a
	// rollout are two, and another feed may have its own.
	foldPlaces = 3
	// maxOthers is how many questions want the place of a model before it is
	// given up. Of more models than places that serve at once the first to ask
	// keep theirs.
	maxOthers = 8
)

// fold is a place for what is folded: the address of a Folded, and above it the
// low bits of the model's id, so that a look at the timeline tells whether it is
// worth going there. 0 is free.
type fold uint64

const (
	addressBits = 48
	// retired is in the places of a timeline that is on its way out.
	retired fold = 1
)

func foldOf(f *Folded) fold {
	at := uint64(uintptr(unsafe.Pointer(f)))
	if at>>addressBits != 0 {
		panic("cache: an address of more than 48 bits")
	}
	return fold(at | uint64(f.Model)<<addressBits)
}

// get returns what is folded, nil of a place that is free or retired.
func (f fold) get() *Folded {
	if f <= retired {
		return nil
	}
	at := uintptr(f & (1<<addressBits - 1))
	return *(**Folded)(unsafe.Pointer(&at))
}

// is reports whether it may be of a model.
func (f fold) is(m ModelID) bool { return f > retired && uint16(f>>addressBits) == uint16(m) }

// Folded returns what is kept of a model for the timeline's only part, or nil.
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

// Owe says that a question computed so many rows, or a part of what they cost,
// because nothing was folded for its model, and returns how many that makes
// since something was.
func (t *Timeline) Owe(rows uint32) (owed uint32) { return t.owed.Add(rows) }

// Place is where something can be folded, and what was there when it was found.
type Place struct {
	at  *atomic.Uint64
	was fold
}

// Place finds a place for what is to be folded for a model: where there is less
// of the same, a free one, or one whose model nobody asks for. It is false
// where there is none, and if the timeline is not in the cache.
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

// Own returns the number of each row from First on.
func (f *Folded) Own() []float64 {
	return unsafe.Slice((*float64)(unsafe.Add(unsafe.Pointer(f), foldedBytes)), int(f.rows))
}

func (f *Folded) block() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(f)), foldedBytes+8*int(f.rows))
}

// Fold keeps own in a place of a timeline: the numbers of a model for the last
// rows of its only part, of which none is more than most. It does nothing where
// another was put there meanwhile, or the timeline is on its way out.
func (c *Cache) Fold(t *Timeline, p Place, m ModelID, own []float64, most float64) {
	b := c.arena.Alloc(foldedBytes + 8*len(own))
	if b == nil {
		t.owed.Store(0) // or every question would compute the numbers again
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

// ModelID stands for a model in memory without pointers. Each has its own
// while it lives, and none is given out twice.
type ModelID uint32

var models struct {
	sync.Mutex
	ids  map[weak.Pointer[relevance.Model]]ModelID
	last ModelID
}

// IDOf returns the id of a model.
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

func forgetModel(w weak.Pointer[relevance.Model]) {
	models.Lock()
	defer models.Unlock()
	delete(models.ids, w)
}
