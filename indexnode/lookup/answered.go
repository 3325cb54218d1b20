package lookup

import (
	"time"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Answered tells of each partition what its part of the answer shows.
func (r *Resolution) Answered() *nodev1.Partitions {
	n := len(r.views)
	room := make([]int64, 2*n)
	all := &nodev1.Partitions{Answered: make([]int32, 0, n), AppliedContent: room[:0:n], AppliedFeatures: room[n:n]}
	for i := range r.views {
		v := &r.views[i]
		if v.missing != "" {
			if all.Missing == nil {
				all.Missing = make(map[int32]string)
			}
			all.Missing[int32(v.partition)] = v.missing
			continue
		}
		all.Answered = append(all.Answered, int32(v.partition))
		all.AppliedContent, all.AppliedFeatures = append(all.AppliedContent, v.Applied[0]), append(all.AppliedFeatures, v.Applied[1])
	}
	r.lags(all)
	return all
}

// lags tells how old what partitions answered may be, if it is too old in any:
// what was read, which the replica may have got past since.
func (r *Resolution) lags(all *nodev1.Partitions) {
	now, i := time.Now(), 0
	for k := range r.views {
		v := &r.views[k]
		if v.missing != "" {
			continue
		}
		if age := r.lookup.replicas.AgeOf(&v.Look, now); age > 0 {
			if all.LagMs == nil {
				all.LagMs = make([]int64, len(all.Answered))
			}
			all.LagMs[i] = age.Milliseconds()
		}
		i++
	}
}
