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
// so that it is not computed again for every question. It begins a block of
// the arena, in which a number for each row follows.
type Folded struct {
	Model  ModelID
	rows   uint32
	Others atomic.Uint32 // questions with another model since one with this
	_      uint32
	Most   float64 // of the numbers; +Inf if one is none
}

const foldedBytes = int(unsafe.Sizeof(Folded{}))

// retired is in the place of what is folded once the timeline is on its way
// out.
const retired = 1

// Folded returns what is kept of the timeline's only part, or nil.
func (t *Timeline) Folded() *Folded {
	if f := t.folded.Load(); f != retired {
		return *(**Folded)(unsafe.Pointer(&f))
	}
	return nil
}

// Own returns the number of each row.
func (f *Folded) Own() []float64 {
	return unsafe.Slice((*float64)(unsafe.Add(unsafe.Pointer(f), foldedBytes)), int(f.rows))
}

func (f *Folded) block() []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(f)), foldedBytes+8*int(f.rows))
}

// Fold keeps own, the numbers of a model for the only part of a timeline, of
// which none is more than most, in
// the place of was, which was there, or nil. It does nothing if something else
// is there by now, or the timeline is not in the cache.
func (c *Cache) Fold(t *Timeline, was *Folded, m ModelID, own []float64, most float64) {
	if !t.cached {
		return
	}
	b := c.arena.Alloc(foldedBytes + 8*len(own))
	if b == nil {
		return
	}
	f := (*Folded)(unsafe.Pointer(unsafe.SliceData(b)))
	f.Model, f.rows, f.Most = m, uint32(len(own)), most
	f.Others.Store(0)
	copy(f.Own(), own)
	switch {
	case !t.folded.CompareAndSwap(uintptr(unsafe.Pointer(was)), uintptr(unsafe.Pointer(f))):
		c.arena.Free(b)
	case was != nil:
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
