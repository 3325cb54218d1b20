//go:build linux

package cli

import (
	"syscall"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/internal/figure"
)

// TestFaultUnresponsiveReplicas freezes both replicas of a third of the partitions.
// Long before their leases end nobody waits for them any more: answers come
// soon, and name what is missing. When they thaw all is as before.
func TestFaultUnresponsiveReplicas(t *testing.T) {
	_, measured := faultTime(t, time.Second)
	c := startFaultCluster(t, 3, loadLines())
	const lease = 10 * time.Second // and the broker's own time
	ask := func() (*feedv1.GetFeedResponse, time.Duration) {
		began := time.Now()
		resp, err := c.ask(c.ctx, c.everything())
		if err != nil {
			t.Errorf("after %s: %v", time.Since(began), err)
		}
		return resp, time.Since(began)
	}
	ask()
	c.nodes[0].signal(syscall.SIGSTOP)
	c.nodes[1].signal(syscall.SIGSTOP)
	_, first := ask() // which may wait until they are found unresponsive
	resp, later := ask()
	t.Logf("the first request took %s, the next %s", first, later)
	if first > lease/2 || later > lease/2 {
		t.Errorf("requests waited %s and %s for nodes that answer nobody", first, later)
	}
	for _, m := range resp.GetCoverage().GetMissing() {
		if m.Reason != "unreachable" {
			t.Errorf("missing %v", m)
		}
	}
	if len(resp.GetItems()) == 0 || len(resp.GetCoverage().GetMissing()) == 0 {
		t.Errorf("%d items, %v", len(resp.GetItems()), resp.GetCoverage())
	}
	c.nodes[0].signal(syscall.SIGCONT)
	c.nodes[1].signal(syscall.SIGCONT)
	c.waitWhole()
	if measured {
		figure.Print("mute_replicas_wait", later.Seconds(), "s")
	}
}
