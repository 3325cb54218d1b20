package lookup

import (
	"iter"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// Miss is a timeline that the cache did not have, or not whole: its records before a time were
// read from the store.
type Miss struct {
	Key    millrace.Timeline
	Before millrace.Time
	Took   time.Duration
}

// explained returns what rows does. If the question is to be explained, it notes what was read
// from the store for that.
func (r *Resolution) explained(v *view, key millrace.Timeline, features column.Packed) ([]resolved, error) {
	if !r.asked.Explain {
		return r.rows(v, key, features)
	}
	cached, began := r.cache.Peek(key), time.Now()
	rows, err := r.rows(v, key, features)
	m := Miss{key, millrace.MaxTime + 1, time.Since(began)}
	if cached != nil {
		m.Before = cached.From()
	}
	if cached == nil || max(r.asked.From, millrace.MinTime) < cached.From() {
		v.misses = append(v.misses, m)
	}
	return rows, err
}

// Misses returns what was read from the store, if the question is to be explained.
func (r *Resolution) Misses() iter.Seq[Miss] {
	return func(yield func(Miss) bool) {
		for i := range r.views {
			for _, m := range r.views[i].misses {
				if !yield(m) {
					return
				}
			}
		}
	}
}

// Answers returns the entities of each partition that has answered.
func (r *Resolution) Answers() iter.Seq2[millrace.Partition, []millrace.Entity] {
	return func(yield func(millrace.Partition, []millrace.Entity) bool) {
		for i := range r.views {
			v := &r.views[i]
			if v.missing == "" && !yield(v.partition, r.entities[v.lo:v.hi]) {
				return
			}
		}
	}
}
