package broker

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/partition"
)

func each1(millrace.Partition) int { return 1 }

// Each partition is asked for exactly once, at a node that hosts it, and the
// same way every time.
func TestRouteCovers(t *testing.T) {
	for seed := range worlds() {
		r := rand.New(rand.NewPCG(seed, 1))
		w := randomWorld(t, r)
		want := randomSet(r)
		legs, rest := (&choice{m: w.m, viewer: "viewer", work: each1}).route(want)
		if rest.Len() > 0 {
			t.Fatalf("seed %d: %d partitions have a replica and are not asked for", seed, rest.Len())
		}
		var asked cluster.Set
		for _, l := range legs {
			hosted := w.m.Hosted(l.node.ID)
			for p := range l.parts.All() {
				if !want.Has(p) || asked.Has(p) || !hosted.Has(p) {
					t.Fatalf("seed %d: partition %d at %s", seed, p, l.node.ID)
				}
				asked.Add(p)
			}
		}
		if asked != want {
			t.Fatalf("seed %d: %d of %d partitions are asked for", seed, asked.Len(), want.Len())
		}
		if again, _ := (&choice{m: w.m, viewer: "viewer", work: each1}).route(want); !reflect.DeepEqual(again, legs) {
			t.Fatalf("seed %d: routed otherwise the second time", seed)
		}
	}
}

func TestRouteTakesFewNodesAndSharesTheWork(t *testing.T) {
	w := newWorld(t, 3, 2)
	legs, _ := (&choice{m: w.m, viewer: "v", work: each1}).route(cluster.All())
	if len(legs) != 2 || legs[0].parts.Len() != 360 || legs[1].parts.Len() != 360 {
		t.Errorf("%d legs: %v", len(legs), legs)
	}
	w = newWorld(t, 5, 5)
	first := map[millrace.NodeID]int{}
	for i := range 500 {
		legs, _ = (&choice{m: w.m, viewer: string(entity(i)), work: each1}).route(cluster.All())
		if len(legs) != 1 {
			t.Fatalf("%d legs where one node has all", len(legs))
		}
		first[legs[0].node.ID]++
	}
	for id, n := range first {
		if n < 60 || n > 140 {
			t.Errorf("%s gets %d of 500 viewers", id, n)
		}
	}
}

// A caught-up node comes first, then one whose lease is gone, then one that is
// behind; and nobody twice.
func TestRoutePrefersTheBestTier(t *testing.T) {
	a := cluster.Assignment{Epoch: 1}
	for p := range partition.Count {
		a.Replicas[p] = []millrace.NodeID{"behind", "good", "unknown"}
	}
	nodes := []cluster.Node{{ID: "behind", Addr: "a:1"}, {ID: "good", Addr: "a:2"}}
	m := cluster.NewMap(a, nodes, map[millrace.NodeID]cluster.Set{"good": cluster.All()})
	for _, c := range []struct {
		avoid []millrace.NodeID
		want  millrace.NodeID
	}{{nil, "good"}, {[]millrace.NodeID{"good"}, "behind"}, {[]millrace.NodeID{"good", "behind"}, ""}} {
		legs, rest := (&choice{m: m, avoid: c.avoid, viewer: "v", work: each1}).route(cluster.All())
		switch {
		case c.want == "" && (len(legs) > 0 || rest != cluster.All()):
			t.Errorf("without %v: %v", c.avoid, legs)
		case c.want != "" && (len(legs) != 1 || legs[0].node.ID != c.want):
			t.Errorf("without %v: %v, want %s", c.avoid, legs, c.want)
		}
	}
}
