package rig

import "testing"

// However many processors there are, every node has one, and none goes unused.
func TestShare(t *testing.T) {
	for _, c := range []struct{ processors, nodes, want int }{{2, 1, 2}, {2, 3, 1}, {1, 3, 1}, {16, 3, 6}} {
		if got := Share(c.processors, c.nodes); got != c.want {
			t.Errorf("%d processors, %d nodes: %d for each, want %d", c.processors, c.nodes, got, c.want)
		}
	}
}
