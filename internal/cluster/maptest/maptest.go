// Package maptest derives cluster maps for tests, as a change in etcd would.
package maptest

import (
	"encoding/json"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// WithLost returns the map after the lease of a node has ended.
func WithLost(t *testing.T, m *topology.Map, id millrace.NodeID) *topology.Map {
	t.Helper()
	return after(t, m, func(s *keyspace.Snapshot) { delete(s.Values, "nodes/"+string(id)) })
}

// WithLag returns the map with another lag of one node.
func WithLag(t *testing.T, m *topology.Map, id millrace.NodeID, l topology.Lag) *topology.Map {
	t.Helper()
	return after(t, m, func(s *keyspace.Snapshot) { s.Values["lag/"+string(id)] = keyspace.Value{Data: l.Encode()} })
}

// after returns the map that follows m after a change of the keys that nodes write.
func after(t *testing.T, m *topology.Map, change func(*keyspace.Snapshot)) *topology.Map {
	t.Helper()
	s := &keyspace.Snapshot{Values: map[string]keyspace.Value{}}
	for _, n := range m.Nodes() {
		body, err := json.Marshal(topology.Registration{Node: n})
		if err != nil {
			t.Fatal(err)
		}
		ready, lag := m.Ready(n.ID), m.Lag(n.ID)
		if m.Alive(n.ID) {
			s.Values["nodes/"+string(n.ID)] = keyspace.Value{Data: body}
		}
		s.Values["ready/"+string(n.ID)] = keyspace.Value{Data: ready.Encode()}
		s.Values["lag/"+string(n.ID)] = keyspace.Value{Data: lag.Encode()}
	}
	change(s)
	next, err := m.Next(s) // it keeps the assignment; the error says that etcd has none
	if next.Epoch() != m.Epoch() || len(next.Nodes()) != len(m.Nodes()) {
		t.Fatalf("%d nodes after %d: %v", len(next.Nodes()), len(m.Nodes()), err)
	}
	return next
}
