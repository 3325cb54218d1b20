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

// Look is a cluster at one moment.
type Look struct {
	Map          *topology.Map   // the assignment of partitions to nodes, and what the nodes say of themselves
	Health       topology.Health // the nodes compared with the assignment
	Fault        error           // why the map may not be what etcd should hold; nil: nothing is known against it
	Unresponsive []string        // addresses of etcd that did not answer
	Slow         bool            // Unresponsive are all addresses: etcd answers, but not every call in time
	Prefix       string          // the keys of the map in etcd begin with it
	Still        string          // why replicas are neither moved nor repaired, such as a paused plan; "" if they are
}

// Look reads the state of a cluster once. It writes nothing to etcd.
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
	go func() { full <- cl.Full(ctx) }() // at the same time, since both may wait for an etcd that does not answer
	unresponsive := cl.Unresponsive(ctx)
	m := w.Current()
	h := m.Health(seen)
	still, unread := steered(ctx, cl, &h)
	return Look{m, h, errors.Join(w.Fault(), unread, <-full), unresponsive, len(unresponsive) == len(cl.Etcd().Endpoints()), cl.Prefix() + cluster.MapPrefix, still}, nil
}

// steered reads the coordinator's plan, the moves of replicas that are under way. It
// returns why replicas are neither moved nor repaired; "" if they are. It corrects h: a
// partition that the plan moves is neither in surplus (has more replicas than wanted) nor
// below the number of replicas, but moving. The plan is read after h was made. A plan that
// has ended in between has left no surplus.
//
// A malformed plan is an error, since nothing is repaired then. A plan that cannot be read
// is an error only if there is a surplus that it might explain.
func steered(ctx context.Context, cl *cluster.Client, h *topology.Health) (still string, err error) {
	surplus := h.Surplus.Len() > 0 && !h.Lost
	s, _, err := coordinator.Look(ctx, cl)
	var none *millrace.Error
	switch {
	case err != nil && (surplus || errors.As(err, &none) && none.Reason == millrace.ReasonInvalid):
		return "", err
	case err != nil:
		return "", nil // Look.Fault says that etcd cannot be read
	case surplus:
		still := h.Surplus.And(s.Surplus())
		h.Surplus, h.Moving = still, h.Surplus.Minus(still)
	}
	growing := h.Below.And(s.Growing())
	h.Below, h.Moving = h.Below.Minus(growing), h.Moving.Or(growing)
	return s.Plan.Standstill(), nil
}

// UnresponsiveEtcd says which addresses of etcd did not answer, and what to do; "" if all
// did.
func (l Look) UnresponsiveEtcd() string {
	if len(l.Unresponsive) == 0 {
		return ""
	}
	if l.Slow {
		return fmt.Sprintf("etcd has answered, but not at all times: %s took longer than %s; it has too much to do, or too little of its machine", strings.Join(l.Unresponsive, ", "), cluster.CallTimeout)
	}
	return fmt.Sprintf("etcd does not answer at %s, and does elsewhere: start that member, or correct the address", strings.Join(l.Unresponsive, ", "))
}

// Warnings returns what is not a fault yet, but may become one.
func (l Look) Warnings() []string {
	var all []string
	for _, what := range []string{l.UnresponsiveEtcd(), l.Still} {
		if what != "" {
			all = append(all, what)
		}
	}
	return append(all, l.Health.Warnings()...)
}

// Read reports whether any node has ever hosted partitions, and so has read the log. It is
// also true if etcd has lost state, since nobody can then rule it out.
func (l Look) Read() bool {
	return l.Health.Lost || l.Health.Epoch > 0 && slices.ContainsFunc(l.Health.Nodes, func(n topology.NodeHealth) bool { return n.State != topology.NodeNever })
}

// TakenOut reports whether an operator has quarantined any replica.
func (l Look) TakenOut() bool {
	return slices.ContainsFunc(l.Health.Nodes, func(n topology.NodeHealth) bool {
		return slices.ContainsFunc(n.Reports, func(r topology.Report) bool { return r.Reason == topology.ByOperatorReason })
	})
}

// The texts that say what to do about a cluster without an assignment, and about an
// assignment with a fault. For an assignment that etcd has lost see
// [cluster.RestoreWayOut].
const (
	AssignWayOut = "millrace cluster assign --nodes .. --replicas 2, once the nodes run"
	mendWayOut   = "mend it, or go back with millrace cluster assign --from .."
)

// Faults returns everything that is wrong with the cluster, a line each.
func (l Look) Faults() []string {
	faults := l.Health.Faults()
	switch {
	case errors.Is(l.Fault, keyspace.ErrNothing) && !l.Health.Lost:
		return []string{l.Fault.Error()} // the faults of Health would only say that there is no assignment, which follows from this
	case l.Fault != nil:
		faults = append(strings.Split(l.Fault.Error(), "\n"), faults...)
	}
	return faults
}

// WayOut says what to do about a fault of the whole cluster; "" if there is none.
func (l Look) WayOut() string {
	switch {
	case errors.Is(l.Fault, dial.ErrFull):
		return dial.FullWayOut
	case l.Health.Lost:
		return cluster.RestoreWayOut
	case errors.Is(l.Fault, keyspace.ErrNothing):
		return "of a new cluster start the nodes, then millrace cluster assign --nodes ..; if it was at work, etcd has lost all of it: millrace cluster restore --data .."
	case l.Fault != nil: // also a malformed assignment: until it is mended, nodes serve by the one before
		return l.MendWayOut()
	case l.Health.Epoch == 0:
		return AssignWayOut
	}
	return ""
}

// MendWayOut says what to do about a malformed value in etcd: the operator removes a key
// about a node, and mends an assignment. l.Fault has the malformed value.
func (l Look) MendWayOut() string {
	if f, ok := errors.AsType[*topology.KeyFault](l.Fault); ok {
		return fmt.Sprintf("remove the key, and all others that are told so: etcdctl del %q; what a node that runs has said it says anew", l.Prefix+f.Key)
	}
	if e, ok := errors.AsType[*millrace.Error](l.Fault); ok && e.WayOut != "" {
		return e.WayOut
	}
	return mendWayOut
}
