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
)

// after is a try that takes a while, unless it is cancelled.
func after(d time.Duration, value string, ok bool, log *[]string) try[string] {
	return func(ctx context.Context) (string, bool) {
		select {
		case <-time.After(d):
			return value, ok
		case <-ctx.Done():
			*log = append(*log, value+" cancelled")
			return value, false
		}
	}
}

func yes() bool { return true }
func no() bool  { return false }

func TestHedge(t *testing.T) {
	const delay, ms = 10 * time.Millisecond, time.Millisecond
	for name, c := range map[string]struct {
		first, second     time.Duration
		firstOK, secondOK bool
		allow             func() bool
		want              []string
		took              time.Duration
		cancelled         []string
	}{
		"fast":                      {first: 5 * ms, firstOK: true, second: ms, secondOK: true, allow: yes, want: []string{"first"}, took: 5 * ms},
		"slow, the hedge wins":      {first: 90 * ms, firstOK: true, second: 5 * ms, secondOK: true, allow: yes, want: []string{"second"}, took: 15 * ms, cancelled: []string{"first cancelled"}},
		"slow, the first wins":      {first: 12 * ms, firstOK: true, second: 50 * ms, secondOK: true, allow: yes, want: []string{"first"}, took: 12 * ms, cancelled: []string{"second cancelled"}},
		"slow, but not allowed":     {first: 90 * ms, firstOK: true, second: ms, secondOK: true, allow: no, want: []string{"first"}, took: 90 * ms},
		"fails early":               {first: 2 * ms, second: 5 * ms, secondOK: true, allow: no, want: []string{"second"}, took: 7 * ms},
		"fails late, not allowed":   {first: 30 * ms, second: 5 * ms, secondOK: true, allow: no, want: []string{"second"}, took: 35 * ms},
		"the hedge fails":           {first: 90 * ms, firstOK: true, second: 5 * ms, allow: yes, want: []string{"first"}, took: 90 * ms},
		"both fail":                 {first: 20 * ms, second: 5 * ms, allow: yes, want: []string{"second", "first"}, took: 20 * ms},
		"both hang to the deadline": {first: time.Hour, second: time.Hour, allow: yes, want: []string{"first", "second"}, took: time.Second, cancelled: []string{"first cancelled", "second cancelled"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				var a, b []string
				start := time.Now()
				got := hedge(ctx, delay, c.allow, after(c.first, "first", c.firstOK, &a), after(c.second, "second", c.secondOK, &b))
				if c.took == time.Second {
					slices.Sort(got) // which of both ends first does not matter
				}
				cancelled := append(a, b...)
				if !slices.Equal(got, c.want) || time.Since(start) != c.took || !slices.Equal(cancelled, c.cancelled) {
					t.Errorf("got %v after %v, %v; want %v after %v, %v", got, time.Since(start), cancelled, c.want, c.took, c.cancelled)
				}
			})
		})
	}
}

func TestHedgeDoesNotStartAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	hedge(ctx, time.Hour, yes, func(context.Context) (int, bool) { return 0, false },
		func(context.Context) (int, bool) { t.Error("second was started"); return 0, true })
}

// A twentieth of the calls may be hedges, and no more, however slow the nodes.
func TestHedgesStayWithinTheirBudget(t *testing.T) {
	b := newBudget(hedgeShare, hedgeBurst)
	spent := 0
	for range 1000 {
		b.earn()
		if b.spend() {
			spent++
		}
	}
	if spent < 50 || spent > 50+hedgeBurst {
		t.Errorf("%d hedges for 1000 calls", spent)
	}
}

func TestHedgeDelayFollowsLatency(t *testing.T) {
	var r recent
	if d := r.hedgeAfter(); d != hedgeDelay {
		t.Errorf("without a past: %v", d)
	}
	for i := range 256 {
		r.add(time.Duration(i%100) * time.Millisecond)
	}
	if d := r.hedgeAfter(); d < 135*time.Millisecond || d > 150*time.Millisecond {
		t.Errorf("between 0 and 99 ms: %v", d)
	}
	for range 256 {
		r.add(time.Microsecond)
	}
	if d := r.hedgeAfter(); d != minHedgeDelay {
		t.Errorf("fast: %v", d)
	}
}

// A large call is not late because it takes longer than small ones.
func TestHedgeDelayIsBySize(t *testing.T) {
	var l latencies
	for range 64 {
		l.of(3).add(2 * time.Millisecond)
		l.of(10_000).add(200 * time.Millisecond)
	}
	if small, large := l.of(2).hedgeAfter(), l.of(9_000).hedgeAfter(); small != 3*time.Millisecond || large != 300*time.Millisecond {
		t.Errorf("small %v, large %v", small, large)
	}
	l.of(1 << 40).add(1) // whatever the size, there is a place
}

// A call goes on as long as others did that took longer.
func TestBeyond(t *testing.T) {
	var r recent
	if got := r.beyond(7); got != 7 {
		t.Errorf("without any, 7 more than 7 and not %d", got)
	}
	for _, d := range []time.Duration{1, 5, 20, 30} {
		r.add(d)
	}
	for d, want := range map[time.Duration]time.Duration{0: 14, 5: 20, 19: 6, 30: 30, 50: 50} {
		if got := r.beyond(d); got != want {
			t.Errorf("%d more than %d, want %d", got, d, want)
		}
	}
}

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
		if took := time.Since(start); took != hedgeDelay {
			t.Errorf("took %v, want the hedge's delay of %v", took, hedgeDelay)
		}
		if e := resp.Explain; e.HedgesFired != 1 || e.HedgesWon != 1 || e.HedgeSavedMillis != millis(hedgeDelay) {
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
			if m.Reason != missTimeout || w.m.Replicas(partitionOf(m))[0] != "n1" {
				t.Errorf("missing %v", m)
			}
		}
		if n := len(resp.Coverage.Missing); n == 0 || int(resp.Coverage.PartitionsAnswered)+n != int(resp.Coverage.PartitionsAsked) {
			t.Errorf("coverage %v", resp.Coverage)
		}
		if ctx.Err() != nil {
			t.Error("the answer came too late")
		}
		if n := resp.GetExplain().GetHedgesFired(); n > 0 || b.budget.mu.have < hedgeBurst {
			t.Errorf("%d hedges, %v left of the budget, though there is nobody else to ask", n, b.budget.mu.have)
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
func TestMuteNodesAreNotWaitedFor(t *testing.T) {
	for _, lost := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 2, 1)
			for i := range 30 {
				w.add(timelineOf(i), recordID(i), timeAt(i), "")
			}
			frozen := w.nodes["n1"]
			frozen.set(func() { frozen.frozen = true })
			if lost {
				w.m = w.m.WithLost("n1")
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
			if took > 2*muteProbe {
				t.Errorf("lost %v: a later one waited %s", lost, took)
			}
			if len(resp.GetItems()) == 0 || len(resp.GetCoverage().GetMissing()) == 0 {
				t.Errorf("lost %v: %v", lost, resp.GetCoverage())
			}
			for _, m := range resp.GetCoverage().GetMissing() {
				if m.Reason != missUnreachable {
					t.Errorf("lost %v: missing %v", lost, m)
				}
			}
			frozen.set(func() { frozen.frozen = false })
			time.Sleep(pingLimit + 2*beat) // virtual: the fake's ping does not thaw with it
			if b.health.mute("n1") {
				t.Errorf("lost %v: a node that answers pings is still mute", lost)
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
		missTimeout:     context.DeadlineExceeded,
		missUnreachable: errUnreachable,
		missOverloaded:  &millrace.Error{Reason: millrace.ReasonOverloaded},
		missTooLarge:    errTooLarge,
		missModel:       &millrace.Error{Reason: millrace.ReasonNotHere},
		missError:       errors.New("broken"),
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
		for range 12 { // as many as the gate lets in at first
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
