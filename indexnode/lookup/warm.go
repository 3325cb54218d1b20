package lookup

import (
	"errors"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
)

// Warming returns a resolution that answers no request. Its [Resolution.Warm] brings
// timelines into room, the part of the cache that warming may use. The caller releases it.
func (l *Lookup) Warming(room *cache.Warming) *Resolution {
	r := l.Resolve()
	r.cache, r.warms = l.cache.Reader(), room
	return r
}

// Warm brings a timeline into the cache if there is room, and reports whether it is there. It
// returns false, too, if this node does not hold the partition, or if the read fails.
func (r *Resolution) Warm(p millrace.Partition, t millrace.Timeline) bool {
	l := r.lookup
	part := l.replicas.Of(p)
	part.RLock()
	defer part.RUnlock()
	if !part.Holds() {
		return false
	}
	if r.cache.Peek(t) != nil {
		return true
	}
	_, err := r.timeline(p, t)
	if errors.Is(err, store.ErrCorrupt) {
		l.replicas.Condemn(p, replica.Why{Reason: replica.Corrupt, Detail: err.Error()})
	}
	l.panics.Tell(err)
	return err == nil && r.cache.Peek(t) != nil
}
