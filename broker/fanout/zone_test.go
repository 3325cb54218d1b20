package fanout

import (
	"fmt"
	"math"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// zoned is a map of nodes named for their zone and number, such as "a1", that
// are alive and caught up, and of Spread's assignment.
func zoned(t *testing.T, replicas int, ids ...millrace.NodeID) *topology.Map {
	t.Helper()
	a, err := topology.Spread(ids, replicas)
	if err != nil {
		t.Fatal(err)
	}
	var nodes []topology.Node
	ready := map[millrace.NodeID]topology.Set{}
	for _, id := range ids {
		nodes = append(nodes, topology.Node{ID: id, Addr: "fake:1", Zone: string(id[:1])})
		ready[id] = topology.All()
	}
	return topology.NewMap(a, nodes, ready)
}

// Which part of the requests prefers the zone follows from the map of nodes that there is now.
func TestTheShareOfAZoneFollowsTheMap(t *testing.T) {
	z := zone{name: "a"}
	for range 3 {
		for _, c := range []struct {
			m    *topology.Map
			want string
		}{{zoned(t, 1, "a1"), "a"}, {zoned(t, 1, "b1"), ""}} {
			if got := z.preferred(c.m); got != c.want {
				t.Errorf("%q is preferred, want %q", got, c.want)
			}
		}
	}
}

// While the zone's nodes are well they are asked for all they have; then those
// of other zones.
func TestRouteStaysInTheZone(t *testing.T) {
	m := zoned(t, 3, "a1", "b1", "c1")
	for _, c := range []struct {
		zone string
		doubtful
		avoid []millrace.NodeID
		want  string
	}{
		{zone: "a", want: "a"},
		{zone: "b", want: "b"},
		{zone: "b", doubtful: doubtful{poor: []millrace.NodeID{"b1"}}, want: "ac"},
		{zone: "b", doubtful: doubtful{unresponsive: []millrace.NodeID{"b1"}, poor: []millrace.NodeID{"a1"}}, want: "c"},
		{zone: "b", doubtful: doubtful{poor: []millrace.NodeID{"a1", "b1", "c1"}}, want: "abc"},
		{zone: "b", avoid: []millrace.NodeID{"b1"}, want: "ac"},
		{zone: "d", want: "abc"},
		{zone: "", want: "abc"},
	} {
		asked := map[string]bool{}
		for viewer := range 100 {
			by := choice{m: m, doubtful: c.doubtful, zone: c.zone, avoid: c.avoid, viewer: fmt.Sprint(viewer), work: each1}
			requests, rest := by.route(topology.All())
			if rest.Len() > 0 {
				t.Fatalf("%+v: %d partitions are not asked for", c, rest.Len())
			}
			for _, l := range requests {
				asked[l.node.Zone] = true
			}
		}
		got := ""
		for _, zone := range []string{"a", "b", "c"} {
			if asked[zone] {
				got += zone
			}
		}
		if got != c.want {
			t.Errorf("%+v: asked zones %q, want %q", c, got, c.want)
		}
	}
}

// What the zone's node is not caught up on is asked elsewhere, the rest in the
// zone.
func TestRouteLeavesTheZoneForWhatItLacks(t *testing.T) {
	m := zoned(t, 2, "a1", "b1")
	var half topology.Set
	for p := range millrace.Partition(360) {
		half.Add(p)
	}
	m = topology.NewMap(m.Assignment(), m.Nodes(), map[millrace.NodeID]topology.Set{"a1": half, "b1": topology.All()})
	requests, _ := (&choice{m: m, zone: "a", viewer: "v", work: each1}).route(topology.All())
	if len(requests) != 2 || requests[0].node.ID != "a1" || requests[0].parts != half || requests[1].parts.Len() != 360 {
		t.Errorf("got %v", requests)
	}
}

func TestZoneShare(t *testing.T) {
	for _, c := range []struct {
		zone     string
		replicas int
		ids      []millrace.NodeID
		want     float64
	}{
		{"a", 3, []millrace.NodeID{"a1", "b1", "c1"}, 1},
		{"a", 2, []millrace.NodeID{"a1", "a2", "b1"}, 1},
		{"a", 1, []millrace.NodeID{"a1", "a2"}, 1},
		{"a", 2, []millrace.NodeID{"a1", "b1", "b2", "b3", "b4", "c1", "c2", "c3", "c4", "c5"}, 1}, // it has little to do
		{"b", 3, []millrace.NodeID{"a1", "a2", "b1"}, 0.5},
		{"a", 5, []millrace.NodeID{"a1", "b1", "b2", "b3", "b4"}, 0.25},
		{"b", 5, []millrace.NodeID{"a1", "b1", "b2", "b3", "b4"}, 1},
		{"z", 2, []millrace.NodeID{"a1", "b1"}, 0},
	} {
		if got := shareOf(zoned(t, c.replicas, c.ids...), c.zone); math.Abs(got-c.want) > 0.01 {
			t.Errorf("zone %s of %v: %v, want %v", c.zone, c.ids, got, c.want)
		}
	}
	m := zoned(t, 2, "a1", "b1", "c1")
	if got := shareOf(topology.NewMap(m.Assignment(), m.Nodes(), nil), "a"); got != 0 {
		t.Errorf("a cluster that serves nothing yet: %v", got)
	}
}

// The one node of a small zone has no more work than others, when all zones
// ask as much, and still as much stays at home as can.
func TestASmallZoneIsNotOverrun(t *testing.T) {
	for replicas, stays := range map[int]float64{3: 0.6, 5: 0.55} {
		ids := []millrace.NodeID{"a1", "b1", "b2", "b3", "b4"}
		m := zoned(t, replicas, ids...)
		work := map[millrace.NodeID]int{}
		home, all := 0, 0
		for _, name := range []string{"a", "b"} {
			z := zone{name: name}
			for viewer := range 2000 {
				requests, _ := (&choice{m: m, zone: z.preferred(m), viewer: fmt.Sprint(viewer), work: each1}).route(topology.All())
				for _, l := range requests {
					work[l.node.ID] += l.parts.Len()
					all += l.parts.Len()
					if l.node.Zone == name {
						home += l.parts.Len()
					}
				}
			}
		}
		for id, n := range work {
			if of := float64(n*len(ids)) / float64(all); of > 1.15 {
				t.Errorf("%d replicas: %s has %.2f of the mean work", replicas, id, of)
			}
		}
		if share := float64(home) / float64(all); share < stays {
			t.Errorf("%d replicas: %.2f of the work stays in its zone, want %.2f", replicas, share, stays)
		}
	}
}
