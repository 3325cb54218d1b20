package lookup

import (
	"time"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
)

// Answered returns what became of each partition that was asked for. If the partition
// answered, that is the offsets up to which its replica had applied the log; else it is the
// reason.
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

// lags sets LagMs to how old the answers of partitions may be: 0 for each that is within the
// node's limit. It leaves LagMs nil if all are. The age is that of what was read; the replica
// may have caught up since.
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
