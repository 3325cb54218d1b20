//go:build linux

package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/roles"
	"github.com/millrace/millrace/internal/figure"
)

// TestFaultBrokersRestart restarts two brokers by turns, as an operator does:
// told to stop, started, and the other one when the first is ready. A Go client
// that has both addresses notices nothing.
func TestFaultBrokersRestart(t *testing.T) {
	_, measured := faultTime(t, 0)
	turns, perSecond, drain := 2, 50, time.Second
	if measured {
		turns, perSecond, drain = 20, 500, roles.DrainFor
	}
	c := startFaultCluster(t, 2, loadLines())
	c.broker.end()
	var both []*process
	var addrs, admin []string
	for i := range 2 {
		name, addr, front := fmt.Sprintf("broker-%d", i+1), clitest.FreeAddr(t), clitest.FreeAddr(t)
		addrs, admin = append(addrs, addr), append(admin, front)
		both = append(both, start(t, c.failed, name, "broker", "--config", clitest.WriteConfig(t, name,
			"etcd: [%q]\ngrpc: %q\nadmin: %q\ndrain: %v\n", c.etcd.Addr(), addr, front, drain)))
		clitest.WaitFor(c.ctx, t, name, func() bool { return clitest.SaysReady(front) == "ok\n" })
	}
	l := c.steady(strings.Join(addrs, ","), perSecond)
	l.await(100)
	began := time.Now()
	for turn := range turns {
		both[turn%2].end()
		both[turn%2].restart()
		clitest.WaitFor(c.ctx, t, "the broker to be back", func() bool { return clitest.SaysReady(admin[turn%2]) == "ok\n" })
	}
	lasted := time.Since(began)
	l.await(100)
	failed := l.stop()
	t.Logf("%d restarts in %v, %d requests (%.0f/s), %d failed", turns, lasted.Round(time.Second), l.asked.Load(), float64(l.asked.Load())/time.Since(began).Seconds(), failed)
	if measured {
		figure.Print("broker_restarts_failed", float64(failed), "requests")
		figure.Print("broker_restarts_asked", float64(l.asked.Load()), "requests")
	}
}

// steady is a Go client of brokers that asks what callers do.
func (c *faultCluster) steady(addr string, perSecond int) *steady {
	c.t.Helper()
	cl, err := client.Dial(addr)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { cl.Close() })
	var reqs []*feedv1.GetFeedRequest
	for a := c.newAsker(); len(reqs) < 200; {
		reqs = append(reqs, a.draw().request())
	}
	return startSteady(c.ctx, c.t, cl, reqs, perSecond)
}
