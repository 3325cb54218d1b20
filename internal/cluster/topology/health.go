package topology

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// The states of a node in a cluster's [Health].
const (
	NodeAlive = "alive" // it is registered
	NodeGone  = "gone"  // it was, and the assignment counts on it
	NodeNever = "never" // the assignment counts on it, and nobody has ever seen it
)

// Health is a cluster held against its assignment.
type Health struct {
	Epoch    int64        // of the assignment; 0: there is none
	Lost     bool         // nodes remember an assignment, or a past, that etcd has lost
	Replicas int          // wanted of each partition
	Nodes    []NodeHealth // all that are registered or assigned, by id
	Unserved Set          // partitions without a ready replica
	Below    Set          // those with one, but with fewer than Replicas
	Surplus  Set          // those that more nodes host than Replicas; who knows of a plan that moves them has them in Moving instead
	Moving   Set          // of those a replica may be on its way, which is no fault while enough others are ready
	lost     loss
}

// NodeHealth is a node in a cluster's [Health].
type NodeHealth struct {
	Node
	State   string
	Seen    time.Time // when it last lived, if it does not; zero: not known
	Hosts   Set       // that the assignment gives it
	Ready   Set       // of those, what it serves
	Lag     Lag
	Reports []Report // of those that it does not serve, or not well
}

// Health holds the nodes that are alive against the assignment. seen is what
// [members.Seen] gives.
func (m *Map) Health(seen map[millrace.NodeID]time.Time) Health {
	h := Health{Epoch: m.Epoch(), lost: m.lost, Lost: m.lost.known(), Replicas: m.assignment.Replication(), Surplus: m.Surplus()}
	ids := maps.Clone(m.alive)
	for id := range m.hosted {
		ids[id] = true
	}
	serving := [partition.Count]int{}
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		n := NodeHealth{Node: Node{ID: id}, State: NodeNever, Hosts: m.hosted[id]}
		past, known := m.past[id]
		now, ok := m.nodes[id]
		switch {
		case m.alive[id]:
			ready := m.ready[id]
			n.Node, n.State, n.Ready, n.Lag, n.Reports = now, NodeAlive, n.Hosts.And(ready), m.lag[id], n.told(m.reports[id])
		case ok:
			n.Node, n.State, n.Seen = now, NodeGone, seen[id]
		case known || !seen[id].IsZero():
			past.ID = id
			n.Node, n.State, n.Seen = past, NodeGone, seen[id]
		}
		for p := range n.Ready.All() {
			serving[p]++
		}
		h.Nodes = append(h.Nodes, n)
	}
	for p, n := range serving {
		switch {
		case n == 0:
			h.Unserved.Add(millrace.Partition(p))
		case n < m.assignment.wantedOf(p, h.Replicas):
			h.Below.Add(millrace.Partition(p))
		}
	}
	return h
}

// Surplus returns the partitions that more nodes host than are wanted, as while they move.
func (m *Map) Surplus() (s Set) {
	wanted := m.assignment.Replication()
	for p, owners := range m.assignment.Replicas {
		if len(owners) > m.assignment.wantedOf(p, wanted) {
			s.Add(millrace.Partition(p))
		}
	}
	return s
}

// Replication returns how many are wanted of each partition: what the assignment
// says or, if it does not, how many most have.
func (a *Assignment) Replication() int {
	if a.Wanted > 0 {
		return a.Wanted
	}
	counts := [MaxOwners + 1]int{}
	most := 0
	for _, owners := range a.Replicas {
		n := min(len(owners), MaxOwners)
		if counts[n]++; counts[n] > counts[most] {
			most = n
		}
	}
	return most
}

// wantedOf returns how many ready replicas a partition should have: one that
// moves may have more than are wanted, and where that is not said, all that it
// has should be.
func (a *Assignment) wantedOf(p, wanted int) int {
	if a.Wanted > 0 {
		return wanted
	}
	return max(wanted, len(a.Replicas[p]))
}

// Lost says what state of etcd is lost that processes remember: they take over
// nothing until it is restored; empty if none is.
func (m *Map) Lost() string {
	if !m.lost.known() {
		return ""
	}
	return m.lost.String()
}

// Faults says what is wrong, worst first; nothing if all is well.
func (h Health) Faults() []string {
	if h.Epoch == 0 {
		if h.Lost {
			return []string{fmt.Sprintf("etcd has lost the assignment: %s", h.lost)}
		}
		return []string{"the cluster has no assignment"}
	}
	var faults []string
	if h.Lost {
		faults = append(faults, fmt.Sprintf("etcd has lost state: %s", h.lost))
	}
	if n := h.Unserved.Len(); n > 0 {
		faults = append(faults, fmt.Sprintf("%d of %d partitions have no ready replica: %s", n, partition.Count, &h.Unserved))
	}
	if n := h.Below.Len(); n > 0 {
		faults = append(faults, fmt.Sprintf("%d of %d partitions have fewer than %d ready replicas: %s", n, partition.Count, h.Replicas, &h.Below))
	}
	moving := h.Moving.Minus(h.Below.Or(h.Unserved))
	for _, n := range h.Nodes {
		faults = append(faults, n.faults(moving)...)
	}
	return faults
}

// Full returns the nodes of which the disk is full, and whether nothing else is wrong
// with any node.
func (h Health) Full() (full []millrace.NodeID, alone bool) {
	others := 0
	for _, n := range h.Nodes {
		disk := func(r Report) bool { return r.Reason == DiskFullReason }
		if slices.ContainsFunc(n.Reports, disk) {
			full = append(full, n.ID)
		}
		if n.State != NodeAlive || slices.ContainsFunc(n.Reports, func(r Report) bool { return !r.Warning && !disk(r) }) {
			others++
		}
	}
	return full, others == 0
}

// Warnings says what is not wrong, and will be if nobody looks after it.
func (h Health) Warnings() (warnings []string) {
	if n := h.Surplus.Len(); n > 0 {
		warnings = append(warnings, fmt.Sprintf("%d of %d partitions have more than %d replicas, and no plan is under way that takes any away: %s: see to it with millrace cluster plan, and millrace cluster apply", n, partition.Count, h.Replicas, &h.Surplus))
	}
	for _, n := range h.Nodes {
		for _, r := range n.Reports {
			if r.Warning {
				warnings = append(warnings, n.describe(r))
			}
		}
	}
	return warnings
}

// faults says what is wrong with a node, of which replicas of moving may be on their way.
func (n *NodeHealth) faults(moving Set) (faults []string) {
	switch {
	case n.State == NodeNever:
		return []string{fmt.Sprintf("%s has never registered, and is assigned %d partitions", n.ID, n.Hosts.Len())}
	case n.State == NodeGone && n.Seen.IsZero():
		return []string{fmt.Sprintf("%s is gone, with %d partitions", n.ID, n.Hosts.Len())}
	case n.State == NodeGone:
		return []string{fmt.Sprintf("%s is gone, last heard %s, with %d partitions", n.ID, n.Seen.Format(time.RFC3339), n.Hosts.Len())}
	}
	behind := n.Hosts.Minus(n.Ready)
	behind = behind.Minus(moving)
	for _, r := range n.Reports {
		if r.State == restoringState || r.State == catchingUpState {
			r.Partitions = r.Partitions.Minus(moving)
		}
		if !r.Warning && r.Partitions.Len() > 0 {
			faults, behind = append(faults, n.describe(r)), behind.Minus(r.Partitions)
		}
	}
	if behind.Len() > 0 {
		faults = append(faults, fmt.Sprintf("%s: %d partitions are not ready: %s", n.ID, behind.Len(), &behind))
	}
	if k := n.Lag.Behind.Len(); k > 0 {
		if n.Lag.Seconds == 0 {
			faults = append(faults, fmt.Sprintf("%s: %d partitions are behind the log, and it is not known how far", n.ID, k))
		} else {
			faults = append(faults, fmt.Sprintf("%s: %d partitions are %s behind the log", n.ID, k, n.Lag.Far()))
		}
	}
	return faults
}

// The states of a replica that answers, of one whose answers are older than they may be, of
// one that is out of service, and of one that answers until brokers have heard that the
// partition is assigned elsewhere.
const (
	readyState       = "ready"
	staleState       = "stale"
	quarantinedState = "quarantined"
	drainingState    = "draining"
)

// The states of a replica that is on its way.
const (
	restoringState  = "restoring"
	catchingUpState = "catching_up"
)

// told returns what a node reports but for what has moved away from it and is no fault
// of its: whether others serve that is judged by the assignment.
func (n *NodeHealth) told(all []Report) (told []Report) {
	for _, r := range all {
		if r.State == drainingState {
			if r.Partitions = r.Partitions.And(n.Hosts); r.Partitions.Len() == 0 {
				continue
			}
		}
		told = append(told, r)
	}
	return told
}

// describe says a report in words.
func (n *NodeHealth) describe(r Report) string {
	s := fmt.Sprintf("%s: %d partitions are %s", n.ID, r.Partitions.Len(), r.State)
	if r.State == readyState && r.Reason != "" && !r.Warning {
		s += ", and take in nothing new"
	}
	for _, more := range []string{r.Reason, r.Detail} {
		if more != "" {
			s += ": " + more
		}
	}
	if !r.Since.IsZero() {
		s += ", since " + r.Since.Format(time.RFC3339)
	}
	return s + ": " + r.Partitions.String()
}
