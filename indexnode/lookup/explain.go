package lookup

import (
	"iter"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// Miss is a timeline that the cache did not have as far back as the question asks: its
// records before a time were read from the store.
type Miss struct {
	Key    millrace.Timeline
	Before millrace.Time // later than all times if the cache had nothing of it
	Took   time.Duration // to resolve the timeline, with the read
}

// explained returns what [Resolution.rows] returns. If the question is to be explained, it
// also notes a Miss in v if the cache did not have all of the window.
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

// Misses ranges over what was read from the store; nothing unless the question is to be
// explained.
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

// Answers ranges over the partitions that have answered, each with the question's entities in
// it.
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
