package clusters

import (
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/maptest"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Only who is ready and not behind takes a node's place, of what it hosts itself.
func TestWhoIsBehindTakesNobodysPlace(t *testing.T) {
	var a topology.Assignment
	for p := range a.Replicas {
		a.Replicas[p] = []millrace.NodeID{"n1", "n2"}
	}
	a.Replicas[9] = []millrace.NodeID{"n1"}
	var behind, none topology.Set
	behind.Add(7)
	m := topology.NewMap(a, []topology.Node{{ID: "n1", Addr: "a:1"}, {ID: "n2", Addr: "a:2"}}, map[millrace.NodeID]topology.Set{"n1": topology.All(), "n2": topology.All()})
	m = maptest.WithLag(t, m, "n2", topology.Lag{Behind: behind})
	for id, want := range map[millrace.NodeID]string{"n1": "7,9", "n2": none.Ranges(), "n3": none.Ranges()} {
		if got := Alone(m, id); got.Ranges() != want {
			t.Errorf("of %s nobody else serves %q, not %q", id, got.Ranges(), want)
		}
	}
}
