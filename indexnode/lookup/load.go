package lookup

import (
	"sync/atomic"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// loadSample is of how many questions one is counted.
const loadSample = 16

// load counts the records that questions read, by partition. To count all
// questions would cost 540 additions each.
type load struct {
	asked   atomic.Uint32
	records [partition.Count]atomic.Int64
}

// Count counts a question.
func (r *Resolution) Count() {
	l := &r.lookup.load
	if l.asked.Add(1)%loadSample != 0 {
		return
	}
	for i := range r.views {
		v := &r.views[i]
		l.records[v.partition].Add(loadSample * int64(r.records(v)))
	}
}

// records returns how many records were found of a partition.
func (r *Resolution) records(v *view) (n int) {
	switch {
	case v.missing != "":
	case v.locked:
		for i := range v.rows {
			n += v.rows[i].timeline.Len()
		}
	default:
		for _, tl := range r.found[v.lo*len(r.types) : v.hi*len(r.types)] {
			n += tl.Len()
		}
	}
	return n
}

// Read returns how many records questions have read of a partition, about.
func (l *Lookup) Read(p millrace.Partition) int64 { return l.load.records[p].Load() }
