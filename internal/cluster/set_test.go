package cluster_test

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/partition"
)

// A set that is written as ranges reads back, however it is torn.
func TestSetAsRanges(t *testing.T) {
	for range 200 {
		var s cluster.Set
		for n := rand.IntN(partition.Count); n >= 0; n-- {
			s.Add(millrace.Partition(rand.IntN(partition.Count)))
		}
		if back, err := cluster.ParseSet(s.Ranges()); err != nil || back != s {
			t.Fatalf("%s reads back as %s, %v", s.Ranges(), back.Ranges(), err)
		}
	}
	for _, bad := range []string{"", "a", "-1", "3-1", "720", "0-720", "1,,2", "1;2"} {
		if s, err := cluster.ParseSet(bad); err == nil {
			t.Errorf("%q reads as %s", bad, s.Ranges())
		}
	}
}

// Backup nodes that live come first; without one it is a replica that lives.
func TestKeeper(t *testing.T) {
	a, err := cluster.Spread([]millrace.NodeID{"a", "b"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		alive []cluster.Node
		p     millrace.Partition
		want  millrace.NodeID
	}{
		{[]cluster.Node{{ID: "a"}}, 0, "a"},
		{[]cluster.Node{{ID: "a"}}, 1, "a"},
		{[]cluster.Node{{ID: "b"}}, 1, "b"},
		{nil, 1, ""},
		{[]cluster.Node{{ID: "a"}, {ID: "z", Keeps: "0-719"}, {ID: "y", Keeps: "1-3"}}, 1, "y"},
		{[]cluster.Node{{ID: "a"}, {ID: "z", Keeps: "0-719"}, {ID: "y", Keeps: "1-3"}}, 4, "z"},
		{[]cluster.Node{{ID: "a"}, {ID: "z", Keeps: "no set"}}, 1, "a"},
	} {
		if got, ok := cluster.NewMap(a, c.alive, nil).Keeper(c.p); got != c.want || ok != (c.want != "") {
			t.Errorf("%v: %q keeps %d, want %q", c.alive, got, c.p, c.want)
		}
	}
}

// A replica that is ready is backed up, and not one that is waiting to be made
// whole: else the only good one would have no backup.
func TestKeeperIsReady(t *testing.T) {
	a, err := cluster.Spread([]millrace.NodeID{"a", "b"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	nodes := []cluster.Node{{ID: "a"}, {ID: "b"}}
	for p := range millrace.Partition(720) {
		var one cluster.Set
		one.Add(p)
		for _, ready := range []millrace.NodeID{"a", "b"} {
			if got, ok := cluster.NewMap(a, nodes, map[millrace.NodeID]cluster.Set{ready: one}).Keeper(p); got != ready || !ok {
				t.Fatalf("%q keeps %d, and %q is ready", got, p, ready)
			}
		}
		both := map[millrace.NodeID]cluster.Set{"a": one, "b": one}
		got, _ := cluster.NewMap(a, nodes, both).Keeper(p)
		if none, _ := cluster.NewMap(a, nodes, nil).Keeper(p); got != none {
			t.Fatalf("%q keeps %d where both are ready, and %q where none is", got, p, none)
		}
	}
}
