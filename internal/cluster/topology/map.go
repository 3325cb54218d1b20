// Package topology has the values that describe a cluster: which nodes there are, which
// partitions each is to host and is ready to serve, and what is wrong with that. It encodes
// these values, and derives each map from the one before. It makes no calls to etcd or to
// nodes.
package topology

import (
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// Map says which nodes are alive, which partitions each hosts, and which of them it has
// caught up on, at one moment. It is immutable.
type Map struct {
	assignment Assignment
	raw        []byte                   // the assignment as etcd holds it; nil: not known
	nodes      map[millrace.NodeID]Node // those alive, and those lost that still host partitions
	alive      map[millrace.NodeID]bool
	ready      map[millrace.NodeID]Set
	lag        map[millrace.NodeID]Lag
	reports    map[millrace.NodeID][]Report
	hosted     map[millrace.NodeID]Set  // by the assignment
	past       map[millrace.NodeID]Node // each node as it last registered, alive or not
	lost       loss
	ordered    []Node // the values of nodes, by id
}

// NewMap returns the map of an assignment, the nodes alive, and the partitions that each node
// has caught up on. It keeps its arguments: the caller must not change them.
func NewMap(a Assignment, alive []Node, ready map[millrace.NodeID]Set) *Map {
	m := &Map{assignment: a, nodes: map[millrace.NodeID]Node{}, alive: map[millrace.NodeID]bool{}, ready: ready, hosted: a.hosted()}
	for _, n := range alive {
		m.nodes[n.ID], m.alive[n.ID] = n, true
	}
	m.order()
	return m
}

// order sets m.ordered. It must be called when m.nodes is complete.
func (m *Map) order() {
	m.ordered = slices.SortedFunc(maps.Values(m.nodes), func(a, b Node) int { return strings.Compare(string(a.ID), string(b.ID)) })
}

// Epoch returns the assignment's epoch; 0 if there is no assignment yet.
func (m *Map) Epoch() int64 { return m.assignment.Epoch }

// Assignment returns a copy of the assignment, which the caller may change.
func (m *Map) Assignment() Assignment { return m.assignment.Clone() }

// Drops returns the partitions that a node is to delete from its disk.
func (m *Map) Drops(id millrace.NodeID) Set {
	drop := m.assignment.Drop[id]
	return drop.Minus(m.hosted[id])
}

// Wanted returns how many replicas each partition should have.
func (m *Map) Wanted() int { return m.assignment.Replication() }

// Below reports whether fewer replicas of a partition are alive and ready than
// it should have.
func (m *Map) Below(p millrace.Partition) bool {
	n := 0
	for _, id := range m.assignment.Replicas[p] {
		if ready := m.ready[id]; m.alive[id] && ready.Has(p) {
			n++
		}
	}
	return n < m.assignment.wantedOf(int(p), m.assignment.Replication())
}

// Replicas returns the nodes that host p, whether they are alive or not. The
// caller must not change them.
func (m *Map) Replicas(p millrace.Partition) []millrace.NodeID { return m.assignment.Replicas[p] }

// Hosted returns the partitions that a node hosts.
func (m *Map) Hosted(id millrace.NodeID) Set { return m.hosted[id] }

// Nodes returns the nodes of the map by id: those alive, and those that host partitions and
// whose lease ended though they did not leave on purpose. The latter may still be serving;
// see [Map.Alive]. The caller must not change the slice.
func (m *Map) Nodes() []Node { return m.ordered }

// Node returns a node of [Map.Nodes].
func (m *Map) Node(id millrace.NodeID) (Node, bool) {
	n, ok := m.nodes[id]
	return n, ok
}

// Past returns a node as it last registered, whether it is alive or not.
func (m *Map) Past(id millrace.NodeID) (Node, bool) {
	n, ok := m.past[id]
	return n, ok
}

// Alive reports whether a node's lease holds.
func (m *Map) Alive(id millrace.NodeID) bool { return m.alive[id] }

// Lag returns how far a node, by its own report, has fallen behind the log on partitions that
// it had caught up on.
func (m *Map) Lag(id millrace.NodeID) Lag { return m.lag[id] }

// Reports returns a node's own reports of why partitions are in a state other than ready. The
// caller must not change them.
func (m *Map) Reports(id millrace.NodeID) []Report { return m.reports[id] }

// Paused reports whether a node says that its ingest is paused.
func (m *Map) Paused(id millrace.NodeID) bool {
	return slices.ContainsFunc(m.reports[id], func(r Report) bool { return r.Reason == PausedReason })
}

// Halted returns why, by its own report, a node that answers applies no new records, so that
// its answers grow old: PausedReason, DiskFullReason or StoreFailingReason. "" if it applies
// them.
func (m *Map) Halted(id millrace.NodeID) string {
	for _, r := range m.reports[id] {
		answers := r.State == readyState || r.State == staleState
		if r.Reason == PausedReason || answers && (r.Reason == DiskFullReason || r.Reason == StoreFailingReason) {
			return r.Reason
		}
	}
	return ""
}

// Quarantined returns the partitions that a node hosts and, by its own report, has put in
// quarantine, out of service. They stay there until a person releases them, or the cause
// ends. It is empty for a node that is not alive.
func (m *Map) Quarantined(id millrace.NodeID) (out Set) {
	if !m.alive[id] {
		return out
	}
	for _, r := range m.reports[id] {
		if r.State == quarantinedState && !r.Warning {
			out = out.Or(r.Partitions)
		}
	}
	return out.And(m.hosted[id])
}

// Keeper returns the node that is to back up a partition. It is the first, by id, of the
// alive backup nodes that have the partition. If there is none, it is an alive node that
// hosts the partition, chosen so that each node has about as many to back up. A ready one
// is preferred, since one that is not ready has nothing newer to back up. ok is false if no
// such node is alive.
func (m *Map) Keeper(p millrace.Partition) (id millrace.NodeID, ok bool) {
	for _, n := range m.ordered {
		if n.Keeps == "" || !m.alive[n.ID] {
			continue
		}
		if keeps, err := ParseSet(n.Keeps); err == nil && keeps.Has(p) {
			return n.ID, true
		}
	}
	var most uint64
	ready := false
	for _, other := range m.assignment.Replicas[p] {
		has := m.ready[other]
		is := has.Has(p)
		if !m.alive[other] || ready && !is {
			continue
		}
		if rank := keeperRank(p, other); !ok || is && !ready || rank > most {
			id, most, ok, ready = other, rank, true, is
		}
	}
	return id, ok
}

// keeperRank returns the rank of a node among those that host a partition: the highest is the
// keeper. The ranks of two nodes do not change when another node comes or goes (rendezvous
// hashing, Thaler and Ravishankar 1998).
func keeperRank(p millrace.Partition, id millrace.NodeID) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // never fails
	return (h.Sum64() ^ uint64(p)) * 0x9e3779b97f4a7c15
}

// Ready returns the partitions that a node, by its own report, has caught up on, whether it
// still hosts them or not.
func (m *Map) Ready(id millrace.NodeID) Set { return m.ready[id] }

// Equal reports whether two maps are the same to a reader.
func (m *Map) Equal(o *Map) bool {
	return m == o || m.assignment.Equal(&o.assignment) && maps.Equal(m.nodes, o.nodes) && maps.Equal(m.alive, o.alive) && maps.Equal(m.ready, o.ready) && maps.Equal(m.lag, o.lag) && maps.Equal(m.past, o.past) &&
		slices.Equal(m.lost.by, o.lost.by) && m.lost.epoch == o.lost.epoch &&
		maps.EqualFunc(m.reports, o.reports, slices.Equal) && (m.lost.setback == nil) == (o.lost.setback == nil)
}
