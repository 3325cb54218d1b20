package broker

import (
	"context"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// When nodes get slower the more they are asked, the limiter settles where they
// answer quickly, and most of what they can do is done.
func TestGateFindsTheCapacity(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		w.add(timelineOf(1), "r1", timeAt(1), "")
		n := w.nodes["n0"]
		// Ten workers of 10 ms each: 1,000 answers a second, whatever queues.
		workers := make(chan struct{}, 10)
		n.work = func(ctx context.Context) error {
			select {
			case workers <- struct{}{}:
			case <-ctx.Done():
				return ctx.Err()
			}
			time.Sleep(10 * time.Millisecond)
			<-workers
			return nil
		}
		b := w.broker()
		run := func(every time.Duration, requests int) (good int) {
			done := make(chan bool, requests)
			for range requests {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					defer cancel()
					_, err := b.GetFeed(ctx, recentRequest(1))
					done <- err == nil
				}()
				time.Sleep(every)
			}
			for range requests {
				if <-done {
					good++
				}
			}
			return good
		}
		if good := run(2*time.Millisecond, 2500); good < 2490 { // half of the capacity, 5 s
			t.Errorf("%d of 2500 at half load", good)
		}
		if good := run(200*time.Microsecond, 50_000); good < 8_000 { // five times the capacity, 10 s
			t.Errorf("%d answers at five times the load, want 8,000 of 10,000", good)
		}
		if good := run(2*time.Millisecond, 2500); good < 2375 {
			t.Errorf("%d of 2500 after the overload", good)
		}
	})
}

// When answers share a processor, all of a flood that is let in is late. The
// limiter must learn from that, or nothing is ever answered again.
func TestGateClosesOnAFlood(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		w.add(timelineOf(1), "r1", timeAt(1), "")
		var asked atomic.Int64
		// Each takes 3 ms of one processor: 333 answers a second.
		w.nodes["n0"].work = func(ctx context.Context) error {
			asked.Add(1)
			defer asked.Add(-1)
			for range 3 {
				select {
				case <-time.After(time.Duration(asked.Load()) * time.Millisecond):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		}
		b := w.broker()
		run := func(every, lasts time.Duration) (good int) {
			n := int(lasts / every)
			done := make(chan bool, n)
			for range n {
				go func() {
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
					defer cancel()
					_, err := b.GetFeed(ctx, recentRequest(1))
					done <- err == nil
				}()
				time.Sleep(every)
			}
			for range n {
				if <-done {
					good++
				}
			}
			return good
		}
		run(6*time.Millisecond, 3*time.Second) // raises the limit
		run(300*time.Microsecond, 5*time.Second)
		if good := run(300*time.Microsecond, 10*time.Second); good < 3000 {
			t.Errorf("%d answers at ten times the load, want 3,000 of 3,330", good)
		}
		if good := run(6*time.Millisecond, 5*time.Second); good < 800 {
			t.Errorf("%d of 833 after the flood", good)
		}
	})
}

// Requests that wait for a lost node in vain do not lower the limit for others.
func TestGateStaysOpenForALostNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 3, 1)
		for i := range 30 {
			w.add(timelineOf(i), recordID(i), timeAt(i), "")
		}
		b := w.broker()
		for i := range 400 {
			lost := i > 100
			w.nodes["n0"].set(func() { w.nodes["n0"].frozen = lost })
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if resp, err := b.GetFeed(ctx, recentRequest(30)); err != nil || lost != (len(resp.Coverage.Missing) > 0) {
					t.Errorf("%v, %v", resp.GetCoverage(), err)
				}
			}()
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(time.Second)
		if limit := b.admission.Limit(); limit < 100 {
			t.Errorf("only %d requests are let in", limit)
		}
	})
}

// Answers that take ten times the usual and are brief all the same do not close
// the limiter: processors that are half busy do that.
func TestGateStaysOpenForBriefAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, 1)
		w.add(timelineOf(1), "r1", timeAt(1), "")
		var takes atomic.Int64
		w.nodes["n0"].work = func(context.Context) error {
			time.Sleep(time.Duration(takes.Load()))
			return nil
		}
		b := w.broker()
		run := func(each time.Duration) {
			takes.Store(int64(each))
			for range 2000 {
				go func() {
					if _, err := b.GetFeed(t.Context(), recentRequest(1)); err != nil {
						t.Error(err)
					}
				}()
				time.Sleep(time.Millisecond)
			}
			time.Sleep(time.Second) // the last are answered
		}
		run(500 * time.Microsecond)
		run(5 * time.Millisecond)
		if limit := b.admission.Limit(); limit < 100 {
			t.Errorf("only %d requests are let in", limit)
		}
	})
}
