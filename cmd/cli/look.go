package cli

import (
	"context"
	"slices"

	"github.com/millrace/millrace/internal/cluster"
)

// look is a cluster as it is at one moment.
type look struct {
	m      *cluster.Map
	health cluster.Health
	fault  error // why the map may not be what etcd should hold
}

// clusterLook looks at a cluster once, and writes nothing to it.
func (c *clusterFlags) clusterLook(ctx context.Context) (look, error) {
	cl, err := c.lookAtCluster(ctx)
	if err != nil {
		return look{}, err
	}
	defer cl.Close()
	w, err := cl.Watch(ctx)
	if err != nil {
		return look{}, err
	}
	seen, err := cl.Seen(ctx)
	if err != nil {
		return look{}, err
	}
	m := w.Current()
	return look{m, m.Health(seen), w.Fault()}, nil
}

// read reports whether nodes have hosted partitions, and so have read the log.
func (l look) read() bool {
	return l.health.Lost || l.health.Epoch > 0 && slices.ContainsFunc(l.health.Nodes, func(n cluster.NodeHealth) bool { return n.State != cluster.NodeNever })
}

// takenOut reports whether operators have quarantined replicas.
func (l look) takenOut() bool {
	return slices.ContainsFunc(l.health.Nodes, func(n cluster.NodeHealth) bool {
		return slices.ContainsFunc(n.Reports, func(r cluster.Report) bool { return r.Reason == cluster.ByOperatorReason })
	})
}

const (
	assignWayOut  = "millrace cluster assign --nodes .. --replicas 2, once the nodes run"
	mendWayOut    = "mend it, or go back with millrace cluster assign --from .."
	restoreWayOut = "millrace cluster restore --data .., with the data directories of a broker and of an index node; do not assign anew, which moves every partition"
)
