//go:build linux

package cli

import (
	"fmt"
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/figure"
)

// The data of the loads: members with two hundred records each, so that a
// question for two hundred of them has 40,000 candidates.
const (
	loadMembers = 400
	loadEach    = 200
	loadFollows = 200
)

var loadBegan = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func loadLines() [][]byte {
	var lines [][]byte
	for i := range loadMembers * loadEach {
		at := millrace.TimeOf(loadBegan.Add(time.Duration(i) * time.Minute))
		lines = append(lines, fmt.Appendf(nil, `{"id":"r%d","actor":"member:%d","verb":%q,"created_at":%q,"likes":%d,"comments":%d,"language":"en"}`,
			i, i%loadMembers, []string{"post", "share"}[i%7%2], at, i%13, i%5))
	}
	return lines
}

func loadRequests() []*feedv1.GetFeedRequest {
	var reqs []*feedv1.GetFeedRequest
	r := rand.New(rand.NewPCG(1, 1))
	for v := range 64 {
		req := &feedv1.GetFeedRequest{
			Feed: "home", Viewer: &feedv1.Viewer{Id: fmt.Sprintf("viewer:%d", v)}, Filter: `record.language == "en"`,
			AsOf: timestamppb.New(loadBegan.Add(loadMembers * loadEach * time.Minute)),
		}
		for _, m := range r.Perm(loadMembers)[:loadFollows] {
			req.Entities = append(req.Entities, fmt.Sprintf("member:%d", m))
		}
		reqs = append(reqs, req)
	}
	return reqs
}

// TestFaultFrozenReplica freezes one node of three under load. Nobody notices:
// no request fails or lacks anything, and few are asked twice. When the node
// is back it is asked again.
func TestFaultFrozenReplica(t *testing.T) {
	lasts, measured := faultTime(t, 3*time.Second)
	if measured {
		apart(t)
	}
	c := startFaultCluster(t, 3, loadLines())
	l := newCaller(t, c.grpc, 5*time.Second, loadRequests())
	l.closed(c.ctx, 4, lasts/2) // warms the caches
	peak := l.closed(c.ctx, 8, lasts).goodput()
	t.Logf("eight clients in a closed loop are answered %.0f times a second", peak)
	rate := peak / 3
	if !measured { // others may have the processors in a moment
		rate = peak / 6
	}

	healthy := l.open(c.ctx, rate, lasts)
	healthy.want(t, "all well")

	calls, fired := c.calls(), c.fired()
	c.nodes[0].signal(syscall.SIGSTOP)
	frozen := l.open(c.ctx, rate, 2*lasts)
	calls, fired = c.calls()-calls, c.fired()-fired
	frozen.want(t, "one of three frozen")
	t.Logf("%.0f calls of nodes, %.0f of them hedges", calls, fired)
	if fired > 0.05*calls+30 {
		t.Errorf("%.0f of %.0f calls were hedges, more than one in twenty and the first thirty", fired, calls)
	}

	before := c.answered(0)
	c.nodes[0].signal(syscall.SIGCONT)
	clitest.WaitFor(c.ctx, t, "the thawed node to be asked again", func() bool {
		l.open(c.ctx, rate, time.Second).want(t, "thawed")
		return t.Failed() || c.answered(0) > before+20
	})
	if measured {
		figure.Print("frozen_replica_failed", float64(frozen.asked()-frozen.whole), "requests")
		figure.Print("frozen_replica_p99_vs_healthy", float64(frozen.quantile(0.99))/float64(healthy.quantile(0.99)), "x")
		figure.Print("frozen_replica_extra_calls", 100*fired/calls, "%")
	}
}

// calls is how many calls of nodes have ended, by any outcome.
func (c *faultCluster) calls() float64 {
	return metric(c.ctx, c.front, "millrace_broker_node_calls_total")
}

func (c *faultCluster) fired() float64 {
	return metric(c.ctx, c.front, "millrace_broker_hedges_total", `event="fired"`)
}

// answered is how many calls a node has answered.
func (c *faultCluster) answered(node int) float64 {
	return metric(c.ctx, c.front, "millrace_broker_node_calls_total", fmt.Sprintf(`node="node-%d"`, node+1), `outcome="answered"`)
}
