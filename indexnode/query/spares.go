package query

import (
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
)

// spares are queries that are not in use. They are not in a sync.Pool, which
// every collection empties: the queries beside and after it would make their
// memory and bind their filters and models anew.
//
// The last released is the first used, so that one that nobody needed for a
// while is at the bottom; see spareFor.
type spares struct {
	mu    sync.Mutex
	free  []*Query
	least int // of free, since began: so many nobody needed
	began time.Time
}

// spareFor is after how long a query that nobody needed is let go, with the
// models that its plans keep: between one and two of it.
const spareFor = 10 * time.Second

var spare spares

// get returns a query that is not in use, or a new one.
func (s *spares) get() *Query {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := len(s.free) - 1
	if last < 0 {
		return newQuery()
	}
	q := s.free[last]
	s.free[last] = nil
	s.free = s.free[:last]
	s.least = min(s.least, last)
	return q
}

// put takes a query back.
func (s *spares) put(q *Query, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, q)
	if now.Sub(s.began) >= spareFor {
		kept := copy(s.free, s.free[s.least:])
		clear(s.free[kept:])
		s.free = s.free[:kept]
		s.began, s.least = now, kept
	}
}

func newQuery() *Query {
	return &Query{objects: make(map[millrace.Entity]*cache.Timeline), perEntity: make(map[millrace.Entity]int), byObject: make(map[millrace.Object]int)}
}
