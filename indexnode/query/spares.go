package query

import (
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
)

// spares is the free list of queries. It is not a sync.Pool, since garbage collections
// empty that: the next queries would have to allocate their memory and bind their filters
// and models anew.
//
// The query that was released last is used first, so that queries that are not needed stay
// at the beginning of free; see spareFor.
type spares struct {
	mu    sync.Mutex
	free  []*Query
	least int       // the least length of free since began: so many queries were not needed
	began time.Time // when the current period began
}

// spareFor is the length of a period. When a query is released after the end of a period,
// the queries that were not needed in it are dropped, with the models that their plans
// hold.
const spareFor = 10 * time.Second

// spare is the free list of the process.
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

// put takes a query back. At the end of a period it drops the queries that were not needed.
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
