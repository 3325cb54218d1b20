package fanout

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/maptest"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// randomMaps is how many random maps a test tries.
const randomMaps = 100

// randomMap has up to seven nodes, which are alive and caught up, and up to three
// replicas of a partition.
func randomMap(r *rand.Rand) *topology.Map {
	var nodes []topology.Node
	ready := map[millrace.NodeID]topology.Set{}
	for i := range 1 + r.IntN(7) {
		id := millrace.NodeID(fmt.Sprint("n", i))
		nodes = append(nodes, topology.Node{ID: id, Addr: "fake:1"})
		ready[id] = topology.All()
	}
	a := topology.Assignment{Epoch: 1}
	for p := range a.Replicas {
		order := r.Perm(len(nodes))
		for _, i := range order[:min(1+r.IntN(3), len(order))] {
			a.Replicas[p] = append(a.Replicas[p], nodes[i].ID)
		}
	}
	return topology.NewMap(a, nodes, ready)
}

func someOf(r *rand.Rand) (s topology.Set) {
	for p := range millrace.Partition(partition.Count) {
		if r.IntN(2) == 0 {
			s.Add(p)
		}
	}
	return s
}

func each1(millrace.Partition) int { return 1 }

// Each partition is asked for exactly once, at a node that hosts it, and the
// same way every time.
func TestRouteCovers(t *testing.T) {
	for seed := range uint64(randomMaps) {
		r := rand.New(rand.NewPCG(seed, 1))
		m := randomMap(r)
		want := someOf(r)
		requests, rest := (&choice{m: m, viewer: "viewer", work: each1}).route(want)
		if rest.Len() > 0 {
			t.Fatalf("seed %d: %d partitions have a replica and are not asked for", seed, rest.Len())
		}
		var asked topology.Set
		for _, l := range requests {
			hosted := m.Hosted(l.node.ID)
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
		if again, _ := (&choice{m: m, viewer: "viewer", work: each1}).route(want); !reflect.DeepEqual(again, requests) {
			t.Fatalf("seed %d: routed otherwise the second time", seed)
		}
	}
}

func TestRouteTakesFewNodesAndSharesTheWork(t *testing.T) {
	m := zoned(t, 2, "n0", "n1", "n2")
	requests, _ := (&choice{m: m, viewer: "v", work: each1}).route(topology.All())
	if len(requests) != 2 || requests[0].parts.Len() != 360 || requests[1].parts.Len() != 360 {
		t.Errorf("%d requests: %v", len(requests), requests)
	}
	m = zoned(t, 5, "n0", "n1", "n2", "n3", "n4")
	first := map[millrace.NodeID]int{}
	for i := range 500 {
		requests, _ = (&choice{m: m, viewer: fmt.Sprint("member:", i), work: each1}).route(topology.All())
		if len(requests) != 1 {
			t.Fatalf("%d requests where one node has all", len(requests))
		}
		first[requests[0].node.ID]++
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
	a := topology.Assignment{Epoch: 1}
	for p := range partition.Count {
		a.Replicas[p] = []millrace.NodeID{"behind", "good", "unknown"}
	}
	nodes := []topology.Node{{ID: "behind", Addr: "a:1"}, {ID: "good", Addr: "a:2"}}
	m := topology.NewMap(a, nodes, map[millrace.NodeID]topology.Set{"good": topology.All()})
	for _, c := range []struct {
		avoid []millrace.NodeID
		want  millrace.NodeID
	}{{nil, "good"}, {[]millrace.NodeID{"good"}, "behind"}, {[]millrace.NodeID{"good", "behind"}, ""}} {
		requests, rest := (&choice{m: m, avoid: c.avoid, viewer: "v", work: each1}).route(topology.All())
		switch {
		case c.want == "" && (len(requests) > 0 || rest != topology.All()):
			t.Errorf("without %v: %v", c.avoid, requests)
		case c.want != "" && (len(requests) != 1 || requests[0].node.ID != c.want):
			t.Errorf("without %v: %v, want %s", c.avoid, requests, c.want)
		}
	}
}

// What a node has fallen behind on is asked of others, slow ones too, and of
// it only before silent and lost ones; the rest of its partitions stay.
func TestRouteAvoidsWhatLags(t *testing.T) {
	var fallen topology.Set
	for p := range millrace.Partition(100) {
		fallen.Add(p)
	}
	m := maptest.WithLag(t, zoned(t, 2, "a1", "b1"), "a1", topology.Lag{Behind: fallen, Seconds: 20})
	for _, c := range []struct {
		name string
		m    *topology.Map
		doubtful
		lagging int // partitions asked of a1 though it lags
	}{
		{name: "another is well", m: m},
		{name: "another is slow", m: m, doubtful: doubtful{poor: []millrace.NodeID{"b1"}}},
		{name: "another is silent", m: m, doubtful: doubtful{unresponsive: []millrace.NodeID{"b1"}}, lagging: 100},
		{name: "another lags too", m: maptest.WithLag(t, m, "b1", topology.Lag{Behind: topology.All()}), lagging: 100},
		{name: "another is lost", m: maptest.WithLost(t, m, "b1"), lagging: 100},
	} {
		asked := map[millrace.NodeID]topology.Set{}
		requests, rest := (&choice{m: c.m, doubtful: c.doubtful, zone: "a", viewer: "v", work: each1}).route(topology.All())
		if rest.Len() > 0 {
			t.Errorf("%s: %d partitions are not asked for", c.name, rest.Len())
		}
		for _, l := range requests {
			asked[l.node.ID] = l.parts
		}
		mine := asked["a1"]
		lagged := mine.And(fallen)
		lagging := lagged
		if c.name == "another lags too" { // either may be asked for what both lag on
			theirs := asked["b1"]
			both := theirs.And(fallen)
			lagging = lagging.Or(both)
		}
		if lagging.Len() != c.lagging || mine.Len()-lagged.Len() != 620 {
			t.Errorf("%s: a1 is asked for %d it lags on, and %d in all", c.name, lagging.Len(), mine.Len())
		}
	}
}

// What several have goes to the one that has the least to do.
func TestBalance(t *testing.T) {
	work := func(p millrace.Partition) int { return map[millrace.Partition]int{5: 10}[p] + 1 }
	requests := []shardRequest{{parts: setOf(1, 2, 3, 10, 11, 12, 13)}, {parts: setOf(4, 10, 11, 12, 13)}, {parts: setOf(5, 13)}}
	balance(requests, work)
	// The first has 3 of its own, the second 1, the third 11.
	for i, want := range []topology.Set{setOf(1, 2, 3, 12), setOf(4, 10, 11, 13), setOf(5)} {
		if requests[i].parts != want {
			t.Errorf("%d is asked for %s, want %s", i, requests[i].parts.Ranges(), want.Ranges())
		}
	}
	n0, n1, n2 := topology.Node{ID: "n0"}, topology.Node{ID: "n1"}, topology.Node{ID: "n2"}
	got := merged([]shardRequest{{node: n0, parts: setOf(1)}, {node: n1}, {node: n2, parts: setOf(2)}, {node: n0, parts: setOf(3)}})
	if len(got) != 2 || got[0].node != n0 || got[0].parts != setOf(1, 3) || got[1].node != n2 || got[1].parts != setOf(2) {
		t.Errorf("%+v", got)
	}
}
