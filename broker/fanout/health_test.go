package fanout

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

func TestHealthComparesWithTheCluster(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		node  nodeHealth
		calls int
		took  time.Duration
		want  bool
	}{
		"like all":       {nodeHealth{calls: 100, took: 1000 * ms}, 300, 3000 * ms, false},
		"slow":           {nodeHealth{calls: 100, took: 4000 * ms}, 300, 6000 * ms, true},
		"slow by little": {nodeHealth{calls: 100, took: 40 * ms}, 300, 60 * ms, false},
		"failing":        {nodeHealth{calls: 100, failed: 10, took: 100 * ms}, 300, 3000 * ms, true},
		"few calls":      {nodeHealth{calls: 9, failed: 9}, 300, 3000 * ms, false},
	} {
		if got := c.node.bad(c.calls, c.took); got != c.want {
			t.Errorf("%s: bad is %v", name, got)
		}
	}
}

// A node of which calls fail is not asked first, at once, and tried again after a pause.
func TestAnUnreachableNodeIsNotAskedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := zoned(t, 2, "n0", "n1"), newHealth()
		poor := func() []millrace.NodeID { return h.doubtful(m).poor }
		if got := poor(); len(got) > 0 {
			t.Fatalf("at first: %v", got)
		}
		for range silentCalls {
			h.failed("n1")
		}
		if got := poor(); !slices.Equal(got, []millrace.NodeID{"n1"}) {
			t.Errorf("after %d failures %v are not asked first", silentCalls, got)
		}
		time.Sleep(firstPause)
		if got := poor(); len(got) > 0 {
			t.Errorf("after a pause %v are not tried", got)
		}
		if got := poor(); !slices.Equal(got, []millrace.NodeID{"n1"}) {
			t.Errorf("while it is tried %v are not asked first by others", got)
		}
	})
}

// A node that comes later is used by degrees.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := zoned(t, 2, "n0", "n1")
		h := newHealth()
		if got := h.doubtful(m); len(got.poor) > 0 {
			t.Fatalf("at first: %v", got)
		}
		a := m.Assignment()
		for p := range a.Replicas {
			a.Replicas[p] = append(a.Replicas[p], "late")
		}
		m = topology.NewMap(a, append(slices.Clone(m.Nodes()), topology.Node{ID: "late", Addr: "fake:1"}), nil)
		share := func() (n int) {
			for range 1000 {
				if !slices.Contains(h.doubtful(m).poor, millrace.NodeID("late")) {
					n++
				}
			}
			return n
		}
		if n := share(); n < 130 || n > 270 {
			t.Errorf("asked first by %d of 1000 at the start", n)
		}
		for range 10 {
			time.Sleep(healthEvery)
			h.doubtful(m)
		}
		if n := share(); n != 1000 {
			t.Errorf("asked first by %d of 1000 a minute later", n)
		}
	})
}
