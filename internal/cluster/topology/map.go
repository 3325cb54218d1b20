// Package topology is which nodes there are, which partitions each is to host, which
// it is ready for, and what is wrong with that: values, how they are written, and how
// one follows another. It asks no process.
package topology

import (
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// Map is who is alive, who hosts which partition and who is caught up on it,
// at one moment. It is immutable.
type Map struct {
	assignment Assignment
	raw        []byte                   // of assignment, as etcd holds it; nil: not known
	nodes      map[millrace.NodeID]Node // alive, and lost ones that still host
	alive      map[millrace.NodeID]bool
	ready      map[millrace.NodeID]Set
	lag        map[millrace.NodeID]Lag
	reports    map[millrace.NodeID][]Report
	hosted     map[millrace.NodeID]Set  // of assignment
	past       map[millrace.NodeID]Node // as each last registered, alive or not
	lost       loss
	ordered    []Node // nodes by id
}

// NewMap returns the map of an assignment, the nodes alive and what each says
// it is caught up on. It keeps its arguments.
func NewMap(a Assignment, alive []Node, ready map[millrace.NodeID]Set) *Map {
	m := &Map{assignment: a, nodes: map[millrace.NodeID]Node{}, alive: map[millrace.NodeID]bool{}, ready: ready, hosted: a.hosted()}
	for _, n := range alive {
		m.nodes[n.ID], m.alive[n.ID] = n, true
	}
	m.order()
	return m
}

// order is called once nodes are complete.
func (m *Map) order() {
	m.ordered = slices.SortedFunc(maps.Values(m.nodes), func(a, b Node) int { return strings.Compare(string(a.ID), string(b.ID)) })
}

// Epoch is the assignment's; 0 when there is none yet.
func (m *Map) Epoch() int64 { return m.assignment.Epoch }

// Assignment returns a copy to change and assign anew.
func (m *Map) Assignment() Assignment { return m.assignment.Clone() }

// Drops returns the partitions that a node is to delete from its disk.
func (m *Map) Drops(id millrace.NodeID) Set {
	drop := m.assignment.Drop[id]
	return drop.Minus(m.hosted[id])
}

// Wanted is how many replicas each partition should have.
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

// Nodes returns the nodes of the map by id: those alive, and those whose
// lease ended without a word and that still host partitions. The latter may
// well be serving; see [Map.Alive]. The caller must not change the slice.
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

// Lag returns how far a node says it has fallen behind the log on what it was
// caught up on.
func (m *Map) Lag(id millrace.NodeID) Lag { return m.lag[id] }

// Reports returns why partitions of a node are in a state other than ready, as
// it says. The caller must not change them.
func (m *Map) Reports(id millrace.NodeID) []Report { return m.reports[id] }

// Paused reports whether a node says that it applies nothing for a time.
func (m *Map) Paused(id millrace.NodeID) bool {
	return slices.ContainsFunc(m.reports[id], func(r Report) bool { return r.Reason == PausedReason })
}

// Halted returns why a node takes in nothing new of what it answers, as it says, so that its
// answers grow old; "" if it does: an operator has paused it, its disk is full, or its store
// fails.
func (m *Map) Halted(id millrace.NodeID) string {
	for _, r := range m.reports[id] {
		answers := r.State == readyState || r.State == staleState
		if r.Reason == PausedReason || answers && (r.Reason == DiskFullReason || r.Reason == StoreFailingReason) {
			return r.Reason
		}
	}
	return ""
}

// Quarantined returns which of the partitions that a node hosts it holds in quarantine, as it
// says: they stay there until somebody releases them, or what is wrong ends.
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

// Keeper returns the node that is to back up a partition: of the backup nodes
// that are alive and have it, the first by id; where there is none, one of its
// replicas that are alive, so that each has about as many to back up: of those
// that are ready, if any is, since one that is not has nothing newer to keep. ok
// is false where nobody is.
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

// keeperRank orders the replicas of a partition: which is the highest does not
// change when another comes or goes (rendezvous hashing, Thaler and Ravishankar
// 1998).
func keeperRank(p millrace.Partition, id millrace.NodeID) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // it does not fail
	return (h.Sum64() ^ uint64(p)) * 0x9e3779b97f4a7c15
}

// Ready returns the partitions that a node says it is caught up on, whether
// it still hosts them or not.
func (m *Map) Ready(id millrace.NodeID) Set { return m.ready[id] }

// Equal reports whether nothing has changed that a reader of a map could see.
func (m *Map) Equal(o *Map) bool {
	return m == o || m.assignment.Equal(&o.assignment) && maps.Equal(m.nodes, o.nodes) && maps.Equal(m.alive, o.alive) && maps.Equal(m.ready, o.ready) && maps.Equal(m.lag, o.lag) && maps.Equal(m.past, o.past) &&
		slices.Equal(m.lost.by, o.lost.by) && m.lost.epoch == o.lost.epoch &&
		maps.EqualFunc(m.reports, o.reports, slices.Equal) && (m.lost.setback == nil) == (o.lost.setback == nil)
}
