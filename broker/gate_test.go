package broker

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
)

// A full gate refuses at once; prefetches are refused when it is half full,
// and places come back.
func TestGate(t *testing.T) {
	g := newGate()
	enter := func(p Priority, n int) (leaves []func(bool)) {
		for range n {
			if leave, err := g.enter(p); err == nil {
				leaves = append(leaves, leave)
			} else if e := refusal(t, err); e.Reason != millrace.ReasonOverloaded || e.WayOut == "" {
				t.Errorf("got %+v", e)
			}
		}
		return leaves
	}
	early := enter(Prefetch, 1000)
	if len(early) != firstInFlight/2 {
		t.Errorf("%d prefetches were let in, want %d", len(early), firstInFlight/2)
	}
	if n := len(enter(Interactive, 1000)); n != firstInFlight/2 {
		t.Errorf("%d others were let in beside them, want %d", n, firstInFlight/2)
	}
	for _, leave := range early {
		leave(true)
	}
	if n := len(enter(Interactive, 1000)); n < len(early) || n > len(early)+firstInFlight/10 { // the limit may have risen
		t.Errorf("%d were let in where %d left", n, len(early))
	}
}

// When nodes get slower the more they are asked, the gate settles where they
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
