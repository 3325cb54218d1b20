package clusters

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Look is a cluster as it is at one moment.
type Look struct {
	Map          *topology.Map
	Health       topology.Health
	Fault        error    // why the map may not be what etcd should hold
	Unresponsive []string // addresses of etcd that do not answer
	Slow         bool     // these are all of them: it answered only just before, or after
	Prefix       string   // of the map's keys in etcd
	Still        string   // why nothing moves or is repaired, though a coordinator leads; "" if it is
}

// Look looks at a cluster once, and writes nothing to it.
func (f *Flags) Look(ctx context.Context) (Look, error) {
	cl, err := f.OpenReadOnly(ctx)
	if err != nil {
		return Look{}, err
	}
	defer cl.Close()
	w, err := cl.Watch(ctx)
	if err != nil {
		return Look{}, err
	}
	seen, err := members.Seen(ctx, cl)
	if err != nil {
		return Look{}, err
	}
	full := make(chan error, 1)
	go func() { full <- cl.Full(ctx) }() // at the same time: either may wait for an unresponsive one
	unresponsive := cl.Unresponsive(ctx)
	m := w.Current()
	h := m.Health(seen)
	still, unread := steered(ctx, cl, &h)
	return Look{m, h, errors.Join(w.Fault(), unread, <-full), unresponsive, len(unresponsive) == len(cl.Etcd().Endpoints()), cl.Prefix() + cluster.MapPrefix, still}, nil
}

// steered returns why nothing moves or is repaired, and takes those partitions for no
// surplus that a plan moves. What is read of the plan is newer than h: one that has ended
// since left nothing behind. One that is none is a fault, since nothing is repaired, and one
// that cannot be read where there is a surplus that it may explain.
func steered(ctx context.Context, cl *cluster.Client, h *topology.Health) (still string, err error) {
	surplus := h.Surplus.Len() > 0 && !h.Lost
	s, _, err := coordinator.Look(ctx, cl)
	var none *millrace.Error
	switch {
	case err != nil && (surplus || errors.As(err, &none) && none.Reason == millrace.ReasonInvalid):
		return "", err
	case err != nil:
		return "", nil // the map's fault is told
	case surplus:
		still := h.Surplus.And(s.Surplus())
		h.Surplus, h.Moving = still, h.Surplus.Minus(still)
	}
	growing := h.Below.And(s.Growing())
	h.Below, h.Moving = h.Below.Minus(growing), h.Moving.Or(growing)
	return s.Plan.Standstill(), nil
}

// UnresponsiveEtcd says which addresses of etcd do not answer; "" if all do.
func (l Look) UnresponsiveEtcd() string {
	if len(l.Unresponsive) == 0 {
		return ""
	}
	if l.Slow {
		return fmt.Sprintf("etcd has answered, but not at all times: %s took longer than %s; it has too much to do, or too little of its machine", strings.Join(l.Unresponsive, ", "), cluster.CallTimeout)
	}
	return fmt.Sprintf("etcd does not answer at %s, and does elsewhere: start that member, or correct the address", strings.Join(l.Unresponsive, ", "))
}

// Warnings is everything that is not wrong yet.
func (l Look) Warnings() []string {
	var all []string
	for _, what := range []string{l.UnresponsiveEtcd(), l.Still} {
		if what != "" {
			all = append(all, what)
		}
	}
	return append(all, l.Health.Warnings()...)
}

// Read reports whether nodes have hosted partitions, and so have read the log.
func (l Look) Read() bool {
	return l.Health.Lost || l.Health.Epoch > 0 && slices.ContainsFunc(l.Health.Nodes, func(n topology.NodeHealth) bool { return n.State != topology.NodeNever })
}

// TakenOut reports whether operators have quarantined replicas.
func (l Look) TakenOut() bool {
	return slices.ContainsFunc(l.Health.Nodes, func(n topology.NodeHealth) bool {
		return slices.ContainsFunc(n.Reports, func(r topology.Report) bool { return r.Reason == topology.ByOperatorReason })
	})
}

// The ways out of a cluster without an assignment, and of one whose assignment has a
// fault; of one that etcd has lost see [cluster.RestoreWayOut].
const (
	AssignWayOut = "millrace cluster assign --nodes .. --replicas 2, once the nodes run"
	mendWayOut   = "mend it, or go back with millrace cluster assign --from .."
)

// Faults is everything that is wrong with the cluster.
func (l Look) Faults() []string {
	faults := l.Health.Faults()
	switch {
	case errors.Is(l.Fault, keyspace.ErrNothing) && !l.Health.Lost:
		return []string{l.Fault.Error()} // so it has no assignment either
	case l.Fault != nil:
		faults = append(strings.Split(l.Fault.Error(), "\n"), faults...)
	}
	return faults
}

// WayOut is what to do about faults of the whole cluster; "" if there are none.
func (l Look) WayOut() string {
	switch {
	case errors.Is(l.Fault, dial.ErrFull):
		return dial.FullWayOut
	case l.Health.Lost:
		return cluster.RestoreWayOut
	case errors.Is(l.Fault, keyspace.ErrNothing):
		return "of a new cluster start the nodes, then millrace cluster assign --nodes ..; if it was at work, etcd has lost all of it: millrace cluster restore --data .."
	case l.Fault != nil: // an assignment that is none is one all the same, and nodes serve the one before
		return l.MendWayOut()
	case l.Health.Epoch == 0:
		return AssignWayOut
	}
	return ""
}

// MendWayOut is what to do about what is malformed in etcd: a key that says something of a
// node is removed, and an assignment is mended.
func (l Look) MendWayOut() string {
	if f, ok := errors.AsType[*topology.KeyFault](l.Fault); ok {
		return fmt.Sprintf("remove the key, and all others that are told so: etcdctl del %q; what a node that runs has said it says anew", l.Prefix+f.Key)
	}
	if e, ok := errors.AsType[*millrace.Error](l.Fault); ok && e.WayOut != "" {
		return e.WayOut
	}
	return mendWayOut
}
