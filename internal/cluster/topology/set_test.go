package topology_test

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// A set that is written as ranges reads back, however it is torn.
func TestSetAsRanges(t *testing.T) {
	for range 200 {
		var s topology.Set
		for n := rand.IntN(partition.Count); n >= 0; n-- {
			s.Add(millrace.Partition(rand.IntN(partition.Count)))
		}
		if back, err := topology.ParseSet(s.Ranges()); err != nil || back != s {
			t.Fatalf("%s reads back as %s, %v", s.Ranges(), back.Ranges(), err)
		}
	}
	for _, bad := range []string{"", "a", "-1", "3-1", "720", "0-720", "1,,2", "1;2", "0-x", "x-0", "1-0"} {
		s, err := topology.ParseSet(bad)
		if e, ok := err.(*millrace.Error); !ok || e.WayOut != "write such as 0-3,7; the last is 719" {
			t.Errorf("%q reads as %s, %v", bad, s.Ranges(), err)
		}
	}
}

// Backup nodes that live come first; without one it is a replica that lives.
func TestKeeper(t *testing.T) {
	a, err := topology.Spread([]millrace.NodeID{"a", "b"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		alive []topology.Node
		p     millrace.Partition
		want  millrace.NodeID
	}{
		{[]topology.Node{{ID: "a"}}, 0, "a"},
		{[]topology.Node{{ID: "a"}}, 1, "a"},
		{[]topology.Node{{ID: "b"}}, 1, "b"},
		{nil, 1, ""},
		{[]topology.Node{{ID: "a"}, {ID: "z", Keeps: "0-719"}, {ID: "y", Keeps: "1-3"}}, 1, "y"},
		{[]topology.Node{{ID: "a"}, {ID: "z", Keeps: "0-719"}, {ID: "y", Keeps: "1-3"}}, 4, "z"},
		{[]topology.Node{{ID: "a"}, {ID: "z", Keeps: "no set"}}, 1, "a"},
	} {
		if got, ok := topology.NewMap(a, c.alive, nil).Keeper(c.p); got != c.want || ok != (c.want != "") {
			t.Errorf("%v: %q keeps %d, want %q", c.alive, got, c.p, c.want)
		}
	}
}

// A replica that is ready is backed up, and not one that is waiting to be made
// whole: else the only good one would have no backup.
func TestKeeperIsReady(t *testing.T) {
	a, err := topology.Spread([]millrace.NodeID{"a", "b"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	nodes := []topology.Node{{ID: "a"}, {ID: "b"}}
	for p := range millrace.Partition(720) {
		var one topology.Set
		one.Add(p)
		for _, ready := range []millrace.NodeID{"a", "b"} {
			if got, ok := topology.NewMap(a, nodes, map[millrace.NodeID]topology.Set{ready: one}).Keeper(p); got != ready || !ok {
				t.Fatalf("%q keeps %d, and %q is ready", got, p, ready)
			}
		}
		both := map[millrace.NodeID]topology.Set{"a": one, "b": one}
		got, _ := topology.NewMap(a, nodes, both).Keeper(p)
		if none, _ := topology.NewMap(a, nodes, nil).Keeper(p); got != none {
			t.Fatalf("%q keeps %d where both are ready, and %q where none is", got, p, none)
		}
	}
}
