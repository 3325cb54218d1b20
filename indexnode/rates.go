package indexnode

import (
	"math"
	"sync"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store/tally"
	"github.com/millrace/millrace/internal/partition"
)

// rates are how many records a second come and go, by partition and content
// type, smoothed over the last minute.
type rates struct {
	mu sync.Mutex
	at time.Time // of the last look
	of [partition.Count]map[millrace.ContentType]rate
}

// rate is the rates of a content type in a partition.
type rate struct {
	taken, gone int64   // counted since the partition began, at the last look
	in, out     float64 // records a second
}

// get returns the rates of a type in a partition, in records a second. They are 0 until
// look has been called twice.
func (r *rates) get(p millrace.Partition, t millrace.ContentType) (in, out float64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	was := r.of[p][t]
	return was.in, was.out
}

// look brings the rates up to date with the store's counts. It is called every few seconds.
func (r *rates) look(n *Node, now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	seconds := now.Sub(r.at).Seconds()
	r.at = now
	for p := range partition.All() {
		c, err := n.store.Counts(p)
		if err != nil || !c.Known {
			r.of[p] = nil
			continue
		}
		r.of[p] = r.next(r.of[p], n.replicas.Of(p).State(), c.Types, seconds)
	}
}

// next returns the rates of a partition, seconds after was; was is nil at the first look. It
// returns nil, so that the next look is a first one, while the replica is behind: what it
// takes in then are old records of the log.
func (*rates) next(was map[millrace.ContentType]rate, state replica.State, types map[millrace.ContentType]tally.Counts, seconds float64) map[millrace.ContentType]rate {
	if state == replica.Absent || state == replica.Restoring || state == replica.CatchingUp {
		return nil
	}
	share := 1 - math.Exp(-seconds/lately.Seconds())
	next := make(map[millrace.ContentType]rate, len(types))
	for t, k := range types {
		x := rate{taken: k.Taken, gone: k.Hidden + k.Expired}
		if was != nil { // a type that is new had nothing before
			w := was[t]
			x.in = w.in + share*(float64(max(0, x.taken-w.taken))/seconds-w.in)
			x.out = w.out + share*(float64(max(0, x.gone-w.gone))/seconds-w.out)
		}
		next[t] = x
	}
	return next
}
