package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/internal/cluster/maptest"
)

// As package fanout has them.
const (
	usualDelay  = 50 * time.Millisecond // before a hedge, where no call was answered yet
	mostHedges  = 10                    // at once
	pingBeat    = 100 * time.Millisecond
	muteWait    = 100 * time.Millisecond // for a node that answers nobody
	longestPing = 5 * time.Second
	filterWait  = 250 * time.Millisecond // of a node's refusal of a filter for another that takes it
)

// One replica of three is frozen: the answer is whole and comes soon after
// the hedge's delay, and explain tells of it.
func TestFrozenReplicaIsHedged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, 3)
		for i := range 30 {
			w.add(timelineOf(i), recordID(i), timeAt(i), "")
		}
		b := w.broker()
		req := recentRequest(30)
		req.Explain = true
		first, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if len(first.Explain.Calls) != 1 {
			t.Fatalf("three full replicas need one call, not %v", first.Explain.Calls)
		}
		for _, n := range w.nodes {
			n.frozen = string(n.id) == first.Explain.Calls[0].Node
		}
		start := time.Now()
		resp, err := b.GetFeed(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if len(resp.Coverage.Missing) > 0 || len(resp.Items) != 20 {
			t.Errorf("%d items, coverage %v", len(resp.Items), resp.Coverage)
		}
		if took := time.Since(start); took != usualDelay {
			t.Errorf("took %v, want the hedge's delay of %v", took, usualDelay)
		}
		if e := resp.Explain; e.HedgesFired != 1 || e.HedgesWon != 1 || e.HedgeSavedMillis != millis(usualDelay) {
			t.Errorf("%d hedges fired, %d won, %v ms saved", e.HedgesFired, e.HedgesWon, e.HedgeSavedMillis)
		}
		var told []string
		for _, c := range resp.Explain.Calls {
			told = append(told, fmt.Sprint(c.Hedge, " ", c.Outcome))
		}
		slices.Sort(told)
		if want := []string{"false cancelled", "true answered"}; !slices.Equal(told, want) {
			t.Errorf("explain tells %v, want %v", told, want)
		}
	})
}

// Both replicas of some partitions hang: what could be answered is, in time,
// and the rest is named.
func TestLateNodesMakeAPartialAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 1)
		for i := range 30 {
			w.add(timelineOf(i), recordID(i), timeAt(i), "")
		}
		w.nodes["n1"].frozen = true
		b := w.broker()
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		resp, err := b.GetFeed(ctx, recentRequest(30))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range resp.Coverage.Missing {
			if m.Reason != fanout.MissTimeout || w.m.Replicas(partitionOf(m))[0] != "n1" {
				t.Errorf("missing %v", m)
			}
		}
		if n := len(resp.Coverage.Missing); n == 0 || int(resp.Coverage.PartitionsAnswered)+n != int(resp.Coverage.PartitionsAsked) {
			t.Errorf("coverage %v", resp.Coverage)
		}
		if ctx.Err() != nil {
			t.Error("the answer came too late")
		}
		if n := resp.GetExplain().GetHedgesFired(); n > 0 {
			t.Errorf("%d hedges, though there is nobody else to ask", n)
		}
		req := recentRequest(30)
		req.MinCoverage = 0.99
		_, err = b.GetFeed(t.Context(), req)
		if e := refusal(t, err); e.Reason != millrace.ReasonCoverage || e.Field != "min_coverage" {
			t.Errorf("min_coverage: %+v", e)
		}
	})
}

// All replicas of some partitions are frozen, whether their leases have ended
// or not: who waits for them is let go together, and who comes after does not
// wait, and is told so. When they thaw they are asked again, whether anybody
// waited for them or not.
func TestUnresponsiveNodesAreNotWaitedFor(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 2, 1)
			for i := range 30 {
				w.add(timelineOf(i), recordID(i), timeAt(i), "")
			}
			frozen := w.nodes["n1"]
			frozen.set(func() { frozen.frozen = true })
			if lost {
				w.m = maptest.WithLost(t, w.m, "n1")
			}
			b := w.broker()
			ask := func() (*feedv1.GetFeedResponse, time.Duration) {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				began := time.Now()
				resp, err := b.GetFeed(ctx, recentRequest(30))
				if err != nil {
					t.Errorf("lost %v: %v", lost, err)
				}
				return resp, time.Since(began)
			}
			var all sync.WaitGroup
			for range 10 {
				all.Go(func() {
					if _, took := ask(); took > 3*time.Second {
						t.Errorf("lost %v: a request waited %s for a node that answers nobody", lost, took)
					}
				})
			}
			all.Wait()
			resp, took := ask()
			if took > 2*muteWait {
				t.Errorf("lost %v: a later one waited %s", lost, took)
			}
			if len(resp.GetItems()) == 0 || len(resp.GetCoverage().GetMissing()) == 0 {
				t.Errorf("lost %v: %v", lost, resp.GetCoverage())
			}
			for _, m := range resp.GetCoverage().GetMissing() {
				if m.Reason != fanout.MissUnreachable {
					t.Errorf("lost %v: missing %v", lost, m)
				}
			}
			frozen.set(func() { frozen.frozen = false })
			time.Sleep(longestPing + 2*pingBeat) // virtual: the fake's ping does not thaw with it
			if b.fanout.Unresponsive("n1") {
				t.Errorf("lost %v: a node that answers pings is still unresponsive", lost)
			}
			if resp, _ := ask(); len(resp.GetCoverage().GetMissing()) > 0 {
				t.Errorf("lost %v: back, and %v", lost, resp.GetCoverage())
			}
		})
	}
}

// A partition is missing for the reason that its nodes give.
func TestMissingSaysWhy(t *testing.T) {
	for want, err := range map[string]error{
		fanout.MissTimeout:     context.DeadlineExceeded,
		fanout.MissUnreachable: fanout.ErrUnreachable,
		fanout.MissOverloaded:  &millrace.Error{Reason: millrace.ReasonOverloaded},
		fanout.MissTooLarge:    fanout.ErrTooLarge,
		fanout.MissModel:       &millrace.Error{Reason: millrace.ReasonNotHere},
		fanout.MissError:       errors.New("broken"),
	} {
		w := newWorld(t, 2, 1)
		for i := range 30 {
			w.add(timelineOf(i), recordID(i), timeAt(i), "")
		}
		w.nodes["n1"].err = err
		resp, err := w.broker().GetFeed(t.Context(), recentRequest(30))
		if err != nil || len(resp.Coverage.Missing) == 0 || len(resp.Items) == 0 {
			t.Fatalf("%s: %v, %v", want, resp.GetCoverage(), err)
		}
		for _, m := range resp.Coverage.Missing {
			if m.Reason != want {
				t.Errorf("%s: %v", want, m)
			}
		}
	}
}

// A node that takes long over everything and has no replica beside it is
// waited for: it answers pings.
func TestSlowNodesAreWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 2, 1)
		for i := range 30 {
			w.add(timelineOf(i), recordID(i), timeAt(i), "")
		}
		slow := w.nodes["n1"]
		slow.set(func() { slow.delay = func() time.Duration { return 8 * time.Second } })
		b := w.broker()
		var all sync.WaitGroup
		for range 12 { // as many as the limiter lets in at first
			all.Go(func() {
				resp, err := b.GetFeed(t.Context(), recentRequest(30))
				if err != nil || len(resp.Coverage.Missing) > 0 {
					t.Errorf("%v, %v", resp.GetCoverage(), err)
				}
			})
			time.Sleep(300 * time.Millisecond) // virtual
		}
		all.Wait()
	})
}
