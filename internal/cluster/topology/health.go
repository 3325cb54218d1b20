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
	NodeGone  = "gone"  // it was registered once, and is assigned partitions
	NodeNever = "never" // it has never been registered, and is assigned partitions
)

// Health is the state of a cluster compared with its assignment.
type Health struct {
	Epoch    int64        // of the assignment; 0: there is none
	Lost     bool         // etcd has lost an assignment or other state that nodes remember
	Replicas int          // how many are wanted of each partition
	Nodes    []NodeHealth // all that are registered or assigned partitions, by id
	Unserved Set          // partitions without a ready replica
	Below    Set          // partitions with some ready replicas, but fewer than wanted
	Surplus  Set          // partitions with more hosts than Replicas; a caller that knows of a plan that moves them puts them into Moving instead
	Moving   Set          // partitions of which a replica may be moving: one that is not ready is no fault then, if enough others are. Empty unless the caller fills it
	lost     loss
}

// NodeHealth is a node in a cluster's [Health].
type NodeHealth struct {
	Node
	State   string    // NodeAlive, NodeGone or NodeNever
	Seen    time.Time // when it was last alive, if it is not now; zero: not known
	Hosts   Set       // the partitions that the assignment gives it
	Ready   Set       // those of Hosts that it serves
	Lag     Lag
	Reports []Report // about partitions that it does not serve, or not well
}

// Health compares the nodes that are alive with the assignment. seen is what [members.Seen]
// returns: when each node was last alive.
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

// Surplus returns the partitions that more nodes host than are wanted. A partition is one of
// them while a replica of it moves.
func (m *Map) Surplus() (s Set) {
	wanted := m.assignment.Replication()
	for p, owners := range m.assignment.Replicas {
		if len(owners) > m.assignment.wantedOf(p, wanted) {
			s.Add(millrace.Partition(p))
		}
	}
	return s
}

// Replication returns how many replicas are wanted of each partition: Wanted or, if that is 0,
// the number that most partitions have.
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

// wantedOf returns how many ready replicas partition p should have; wanted is
// Replication(). If the assignment does not set Wanted, a partition with more replicas
// should have all of them ready.
func (a *Assignment) wantedOf(p, wanted int) int {
	if a.Wanted > 0 {
		return wanted
	}
	return max(wanted, len(a.Replicas[p]))
}

// Lost says which state etcd has lost that processes remember; "" if none. Until it is
// restored, processes take nothing over from etcd.
func (m *Map) Lost() string {
	if !m.lost.known() {
		return ""
	}
	return m.lost.String()
}

// Faults returns what is wrong, in words, the worst first; nil if nothing is.
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

// Full returns the nodes whose disk is full. alone says that no node is gone, and that no
// node reports another fault. Lag does not count.
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

// Warnings returns what is not wrong yet, but will be if nobody sees to it.
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

// faults returns what is wrong with a node. That a replica of a partition in moving is not
// ready yet is no fault.
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

// The states of a replica that is complete, as its node reports them.
const (
	readyState       = "ready"       // it answers
	staleState       = "stale"       // it answers, by older records than it may
	quarantinedState = "quarantined" // it is out of service
	drainingState    = "draining"    // its partition is assigned elsewhere; it answers until brokers have heard of that
)

// The states of a replica that is being made.
const (
	restoringState  = "restoring"
	catchingUpState = "catching_up"
)

// told returns the reports of a node, without draining partitions that it does not host any
// more: these are no fault of the node.
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

// describe returns a report in words.
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
