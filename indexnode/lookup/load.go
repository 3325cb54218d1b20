package lookup

import (
	"sync/atomic"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// loadSample says which share of the questions is counted: one of this many.
const loadSample = 16

// load counts the records that questions read, by partition. Only a sample of the questions is
// counted, since to count one costs about 540 additions, one for each partition that it
// reads.
type load struct {
	asked   atomic.Uint32
	records [partition.Count]atomic.Int64
}

// Count adds the records of a question to the load of their partitions, loadSample times, if
// the question is in the sample.
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

// records returns how many records were found in a partition: all that its timelines have in
// the cache, and what was read from the store.
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

// Read returns about how many records of a partition questions have read since the start.
func (l *Lookup) Read(p millrace.Partition) int64 { return l.load.records[p].Load() }
