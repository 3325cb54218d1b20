//go:build linux

package cli

import "testing"

// TestFaultAlertsOfMoves does what TestFaultAlerts does with a coordinator that repairs
// soon, and begins moves slowly.
func TestFaultAlertsOfMoves(t *testing.T) {
	w := startWatched(t, watchedConfig{nodes: 3, coordinator: "grace: 10s\nmoves_per_second: 1\n"})
	w.breaks(
		alertFault{
			"a plan is paused and forgotten", fires{"MillracePlanStandsStill"}, nil,
			func() { w.command("node drain node-3 --apply --yes"); w.command("cluster pause") },
			func() { w.command("cluster cancel --apply --yes") },
		},
		alertFault{
			"two of three nodes are gone for good", fires{"MillraceMassLoss"}, []string{"MillraceProcessDown", "MillraceNodesGone", "MillraceAnswersPartial"},
			func() { w.nodes[1].kill(); w.nodes[2].kill() }, func() { w.nodes[1].restart(); w.nodes[2].restart() },
		},
		alertFault{
			"a node is gone that no other can stand in for", fires{"MillraceNoRepair"}, []string{"MillraceProcessDown", "MillraceNodesGone"},
			func() {
				w.command("cluster assign --nodes node-1,node-2,node-3 --replicas 3 --replace")
				w.waitWhole()
				w.nodes[2].kill()
			}, w.nodes[2].restart,
		},
	)
}
