package indexnode

import (
	"errors"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
)

// What a node forgets of a partition is all that the store has of it: its
// timelines, and the features that its entities have and route. The rest stays
// cached.
func TestForgetPartition(t *testing.T) {
	n, replicas := openNode(t, cache.Config{})
	w := newWorld(5)
	at := map[millrace.Partition][2]millrace.Offset{}
	known := map[millrace.Timeline]bool{}
	for range 400 {
		e := w.draw(t)
		p := partition.Of(e.entity)
		next := at[p]
		next[e.stream]++
		at[p] = next
		if err := bring(t.Context(), replicas, []event{e}, next[e.stream]); err != nil {
			t.Fatal(err)
		}
		if e.stream == kafka.Features {
			known[millrace.Timeline{Entity: e.entity, Type: cache.Features}] = true
			known[millrace.Timeline{Entity: e.entity, Type: cache.Objects}] = true
		}
	}
	for p := range at {
		for tl, err := range n.store.Timelines(p) {
			if err != nil {
				t.Fatal(err)
			}
			known[tl] = true
		}
	}
	for tl := range known {
		n.cache.Put(tl, cache.Empty)
	}
	var gone millrace.Partition
	for tl := range known {
		if tl.Type == cache.Features {
			gone = partition.Of(tl.Entity)
		}
	}
	if err := (*host)(n).ForgetPartition(gone); err != nil {
		t.Fatal(err)
	}
	r := n.cache.Reader()
	defer r.Leave()
	kinds := map[bool]map[millrace.ContentType]bool{true: {}, false: {}}
	for tl := range known {
		of := partition.Of(tl.Entity) == gone
		if kinds[of][tl.Type] = true; (r.Peek(tl) == nil) != of {
			t.Errorf("%v of partition %d is cached: %v", tl, partition.Of(tl.Entity), !of)
		}
	}
	if len(kinds[true]) < 4 || len(kinds[false]) < 4 {
		t.Fatalf("the partition has no more than %v, the others %v", kinds[true], kinds[false])
	}
}

// An order to delete counts while etcd stands by it and another replica is
// alive and ready.
func TestOrderedToDelete(t *testing.T) {
	a, err := cluster.Spread([]millrace.NodeID{"b", "c"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	a.Drop = map[millrace.NodeID]cluster.Set{"a": cluster.All()}
	ofB, ofC := a.Hosted("b"), a.Hosted("c")
	nodes := []cluster.Node{{ID: "a", Addr: "a:1"}, {ID: "b", Addr: "b:1"}, {ID: "c", Addr: "c:1"}}
	some := ofB
	for p := range some.All() {
		some.Remove(p)
		break
	}
	m := cluster.NewMap(a, nodes, map[millrace.NodeID]cluster.Set{"b": some, "c": ofC})
	for i, c := range []struct {
		m     *cluster.Map
		fault error
		id    millrace.NodeID
		want  cluster.Set
	}{
		{m: m, id: "a", want: some.Or(ofC)},
		{m: m, id: "a", fault: errors.New("etcd is away")},
		{m: m.WithLost("c"), id: "a", want: some},
		{m: m, id: "b"},
	} {
		if got := ordered(c.m, c.fault, c.id); got != c.want {
			t.Errorf("%d: %v, want %v", i, &got, &c.want)
		}
	}
}
