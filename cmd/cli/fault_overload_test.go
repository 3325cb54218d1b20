//go:build linux

package cli

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace/broker/admission"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/figure"
)

// TestFaultOverload offers a cluster twice, five and ten times what it can
// answer. It goes on answering what it can and refuses the rest; nodes begin
// nothing whose time is up; and it is as before soon after. Interactive
// requests are served under a flood of prefetches.
func TestFaultOverload(t *testing.T) {
	lasts, measured := faultTime(t, time.Second)
	if measured {
		apart(t)
	}
	c := startFaultCluster(t, 3, loadLines())
	const deadline = 500 * time.Millisecond
	const underWay = 3 * 4 // queries, at most a few a node, which has one or two processors
	l := newCaller(t, c.grpc, deadline, loadRequests())
	l.closed(c.ctx, 4, lasts/2)           // warms the caches
	peak, apiece := 0.0, time.Duration(0) // whole answers a second; processor time of one
	stage := func(what string, load func() *tally) (*tally, time.Duration) {
		before := c.usage()
		got := load()
		used := c.usage().minus(before)
		t.Logf("%s: %v; %v", what, got, used)
		return got, (used.nodes + used.broker) / time.Duration(max(1, got.whole))
	}
	for _, clients := range []int{4, 8, 16} {
		got, each := stage(fmt.Sprintf("closed, %d clients", clients), func() *tally { return l.closed(c.ctx, clients, lasts) })
		if got.goodput() > peak {
			peak, apiece = got.goodput(), each
		}
	}
	for _, share := range []float64{0.8, 0.9, 1} {
		got, each := stage(fmt.Sprintf("open, %.1f of the peak", share), func() *tally { return l.open(c.ctx, share*peak, lasts) })
		if got.goodput() > peak {
			peak, apiece = got.goodput(), each
		}
	}
	for _, times := range []float64{2, 5, 10} {
		got, each := stage(fmt.Sprintf("open, %.0f times the peak", times), func() *tally { return l.open(c.ctx, times*peak, lasts) })
		goodput := 100 * got.goodput() / peak
		if len(got.failed) > 0 {
			t.Errorf("%d requests failed, the first by %v", len(got.failed), got.failed[0])
		}
		// By now every request was answered or its time is up.
		begun := c.begun()
		clitest.WaitFor(c.ctx, t, "the processes to rest", c.rests())
		// What was under way then is counted when it ends; a queue would be hundreds.
		if n := c.begun() - begun; n > underWay {
			t.Errorf("nodes began %v queries whose time was up", n)
		}
		recovery := c.recovers(l, peak/2)
		if measured {
			figure.Print(fmt.Sprintf("goodput_at_%.0fx", times), goodput, "% of peak")
			// The same where others take processor time from the cluster.
			figure.Print(fmt.Sprintf("goodput_for_its_time_at_%.0fx", times), 100*float64(apiece)/float64(each), "% of peak")
			figure.Print(fmt.Sprintf("recovery_after_%.0fx", times), recovery.Seconds(), "s")
		}
	}

	var wg sync.WaitGroup
	wg.Go(func() {
		got := l.open(prefetches(c.ctx), 12*peak/3, lasts)
		t.Logf("prefetches: %v", got)
	})
	got := l.open(c.ctx, peak/3, lasts)
	wg.Wait()
	t.Logf("interactive under prefetches: %v", got)
	if measured {
		figure.Print("interactive_under_prefetches", 100*float64(got.whole)/float64(got.asked()), "%")
	}
}

// recovers asks at a rate that can be answered, and returns how long it took
// until 19 of 20 requests were answered for a second.
func (c *faultCluster) recovers(l *caller, rate float64) time.Duration {
	began := time.Now()
	took := time.Duration(-1)
	clitest.WaitFor(c.ctx, c.t, "19 of 20 requests to be answered again", func() bool {
		at := time.Since(began)
		got := l.open(c.ctx, rate, time.Second)
		c.t.Logf("after %.1f s: %v", at.Seconds(), got)
		took = at
		return float64(got.whole) >= 0.95*float64(got.asked())
	})
	return took
}

// begun is how many queries nodes have begun.
func (c *faultCluster) begun() (sum float64) {
	for _, admin := range c.admin {
		sum += metric(c.ctx, admin, "millrace_indexnode_queries_total") - metric(c.ctx, admin, "millrace_indexnode_queries_total", `outcome="expired"`)
	}
	return sum
}

// rests reports, asked again and again, whether the processes have used next to
// no processor time for a fifth of a second.
func (c *faultCluster) rests() func() bool {
	last := c.usage()
	return func() bool {
		now := c.usage()
		if now.at.Sub(last.at) < 200*time.Millisecond {
			return false
		}
		used := now.minus(last)
		last = now
		return used.nodes+used.broker <= 20*time.Millisecond
	}
}

// usage is the processor time of processes.
type usage struct {
	at            time.Time
	lasted        time.Duration
	nodes, broker time.Duration
	measuring     time.Duration // this process
}

func (c *faultCluster) usage() usage {
	u := usage{at: time.Now(), broker: c.broker.cpu()}
	for _, n := range c.nodes {
		u.nodes += n.cpu()
	}
	var self syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &self); err != nil {
		c.t.Fatal(err)
	}
	u.measuring = time.Duration(self.Utime.Nano() + self.Stime.Nano())
	return u
}

func (u usage) minus(v usage) usage {
	return usage{u.at, u.at.Sub(v.at), u.nodes - v.nodes, u.broker - v.broker, u.measuring - v.measuring}
}

func (u usage) String() string {
	share := func(d time.Duration) float64 { return float64(d) / float64(u.lasted) }
	return fmt.Sprintf("processors: broker %.2f, nodes %.2f, this process %.2f", share(u.broker), share(u.nodes), share(u.measuring))
}

// prefetches marks the requests under ctx as prefetches.
func prefetches(ctx context.Context) context.Context {
	return metadata.AppendToOutgoingContext(ctx, admission.PriorityHeader, "prefetch")
}
