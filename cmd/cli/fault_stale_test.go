//go:build linux

package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/figure"
)

// TestFaultStoppedBroker stops a broker while a feed is defined anew, lets it go
// on, and has it answer by the new definition soon. The command that defines it
// meanwhile says who has not heard of it.
func TestFaultStoppedBroker(t *testing.T) {
	_, measured := faultTime(t, time.Second)
	c := startFaultCluster(t, 3, loadLines())
	define := func(limit int) string {
		file := filepath.Join(t.TempDir(), "mine.yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, "name: mine\nmodel: recency\nlimit: %d\n", limit), 0o644); err != nil {
			t.Fatal(err)
		}
		out, _ := output("feed", "define", "--etcd", c.etcd.Addr(), file)
		return out
	}
	mine := &feedv1.GetFeedRequest{Feed: "mine", Viewer: &feedv1.Viewer{Id: "v"}, Entities: c.everything().Entities}
	answers := func(limit int) func() bool {
		return func() bool {
			resp, err := c.ask(c.ctx, mine)
			return err == nil && len(resp.Items) == limit && len(resp.Coverage.Missing) == 0
		}
	}
	define(7)
	clitest.WaitFor(c.ctx, t, "the definition to arrive", answers(7))

	c.broker.signal(syscall.SIGSTOP)
	if out := define(5); !strings.Contains(out, "NOT HEARD") {
		t.Errorf("who defines a feed anew is not told that a broker is stopped:\n%s", out)
	}
	c.broker.signal(syscall.SIGCONT)
	woken := time.Now()
	clitest.WaitFor(c.ctx, t, "the new definition to be heard", answers(5))
	t.Logf("heard after %s", time.Since(woken))
	if measured {
		figure.Print("stopped_broker_hears", time.Since(woken).Seconds(), "s")
	}
}

// TestFaultNodesDieWhileEtcdIsAway kills every node and starts it anew before etcd
// is back, which begins the leases of the dead ones anew. What answers then lack,
// they name; and by itself all is whole again.
func TestFaultNodesDieWhileEtcdIsAway(t *testing.T) {
	_, measured := faultTime(t, time.Second)
	c := startFaultCluster(t, 3, loadLines())
	addr := c.etcd.Addr()
	c.etcd.Close()
	for _, n := range c.nodes {
		n.kill()
		n.restart()
	}
	c.startEtcd(addr)
	back, reasons := time.Now(), map[string]int{}
	req := c.everything()
	clitest.WaitFor(c.ctx, t, "answers to be whole again", func() bool {
		resp, err := c.ask(c.ctx, req)
		for _, m := range resp.GetCoverage().GetMissing() {
			reasons[m.Reason]++
		}
		return err == nil && len(resp.Coverage.Missing) == 0
	})
	t.Logf("whole after %s; was missing by %v", time.Since(back), reasons)
	if measured {
		figure.Print("nodes_died_etcd_away_whole", time.Since(back).Seconds(), "s")
	}
}
