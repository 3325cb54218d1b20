package indexnode

import (
	"errors"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/maptest"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// An order to delete counts while etcd stands by it and another replica is
// alive and ready.
func TestOrderedToDelete(t *testing.T) {
	a, err := topology.Spread([]millrace.NodeID{"b", "c"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	a.Drop = map[millrace.NodeID]topology.Set{"a": topology.All()}
	ofB, ofC := a.Hosted("b"), a.Hosted("c")
	nodes := []topology.Node{{ID: "a", Addr: "a:1"}, {ID: "b", Addr: "b:1"}, {ID: "c", Addr: "c:1"}}
	some := ofB
	for p := range some.All() {
		some.Remove(p)
		break
	}
	m := topology.NewMap(a, nodes, map[millrace.NodeID]topology.Set{"b": some, "c": ofC})
	for i, c := range []struct {
		m     *topology.Map
		fault error
		id    millrace.NodeID
		want  topology.Set
	}{
		{m: m, id: "a", want: some.Or(ofC)},
		{m: m, id: "a", fault: errors.New("etcd is away")},
		{m: maptest.WithLost(t, m, "c"), id: "a", want: some},
		{m: m, id: "b"},
	} {
		if got := ordered(c.m, c.fault, c.id); got != c.want {
			t.Errorf("%d: %v, want %v", i, &got, &c.want)
		}
	}
}
