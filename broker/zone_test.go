package broker

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// A broker asks its own zone, and when that is gone the others.
func TestBrokerInAZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // no call is late, so that none is made twice
		w := newWorld(t, 2, 2)
		nodes := []topology.Node{{ID: "n0", Addr: "fake:0", Zone: "a"}, {ID: "n1", Addr: "fake:1", Zone: "b"}}
		w.m = topology.NewMap(w.m.Assignment(), nodes, map[millrace.NodeID]topology.Set{"n0": topology.All(), "n1": topology.All()})
		b, err := New(Config{Maps: w, Zone: "b", Dial: w.dial, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ask := func() {
			t.Helper()
			for i := range 20 {
				req := recentRequest(5)
				req.Viewer.Id = fmt.Sprint(i)
				if resp, err := b.GetFeed(t.Context(), req); err != nil || len(resp.Coverage.Missing) > 0 {
					t.Fatalf("%v, %v", resp, err)
				}
			}
		}
		if ask(); w.nodes["n0"].calls() > 0 || w.nodes["n1"].calls() != 20 {
			t.Errorf("%d calls left the zone", w.nodes["n0"].calls())
		}
		w.m = topology.NewMap(w.m.Assignment(), nodes[:1], map[millrace.NodeID]topology.Set{"n0": topology.All()})
		if ask(); w.nodes["n0"].calls() != 20 {
			t.Errorf("%d of 20 were asked of the other zone", w.nodes["n0"].calls())
		}
	})
}
