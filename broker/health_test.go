package broker

import (
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/race"
)

// load asks for a feed every 10 ms, one request at a time at most 100 in
// flight, and returns how long each took.
func load(t *testing.T, b *Broker, n int) (took []time.Duration) {
	t.Helper()
	ends := make(chan time.Duration, n)
	for i := range n {
		go func() {
			start := time.Now()
			req := recentRequest(20)
			req.Viewer = &feedv1.Viewer{Id: string(entity(i))}
			resp, err := b.GetFeed(t.Context(), req)
			if err != nil || len(resp.Coverage.Missing) > 0 {
				t.Errorf("request %d: %v, %v", i, resp.GetCoverage(), err)
			}
			ends <- time.Since(start)
		}()
		time.Sleep(10 * time.Millisecond) // virtual
	}
	for range n {
		took = append(took, <-ends)
	}
	slices.Sort(took)
	return took
}

func p99(took []time.Duration) time.Duration { return took[len(took)*99/100] }

// slowWorld has three full replicas that take about 10 ms an answer.
func slowWorld(t *testing.T) *world {
	w := newWorld(t, 3, 3)
	w.add(timelineOf(1), "r1", timeAt(1), "")
	for _, n := range w.nodes {
		n.delay = func() time.Duration { return time.Duration(8+rand.IntN(5)) * time.Millisecond }
	}
	return w
}

// One replica of three freezes: nothing fails, the slowest hundredth is hardly
// slower, few requests are sent twice; and when it thaws it is used again.
func TestFrozenNodeUnderLoad(t *testing.T) {
	if race.Enabled {
		t.Skip("TestFrozenNodeAmongHiccups shows the race detector the same; `make test` runs this without it")
	}
	synctest.Test(t, func(t *testing.T) {
		w := slowWorld(t)
		b := w.broker()
		healthy := p99(load(t, b, 1000))
		frozen := w.nodes["n1"]
		frozen.set(func() { frozen.frozen = true })
		before := w.calls()
		took := p99(load(t, b, 3000))
		if took > healthy*3/2 {
			t.Errorf("p99 %v, healthy %v", took, healthy)
		}
		if extra := w.calls() - before - 3000; extra > 150 {
			t.Errorf("%d calls beyond one a request", extra)
		}
		frozen.set(func() { frozen.frozen = false })
		load(t, b, 9000) // a minute and a half to come back slowly
		before = frozen.calls()
		load(t, b, 300)
		if n := frozen.calls() - before; n < 50 {
			t.Errorf("the thawed node got %d of 300 requests", n)
		}
	})
}

// One replica of three freezes while the others stop for a moment now and
// then, as all processes of a busy machine do: for that moment they are no
// better than the frozen one, but nobody is sent there to wait for it.
func TestFrozenNodeAmongHiccups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := slowWorld(t)
		b := w.broker()
		load(t, b, 1000)
		for id, n := range w.nodes {
			n.set(func() {
				usual := n.delay
				n.frozen, n.delay = id == "n1", func() time.Duration {
					if stop := time.Duration(time.Now().UnixNano()) % time.Second; stop < 100*time.Millisecond {
						return 100*time.Millisecond - stop + usual()
					}
					return usual()
				}
			})
		}
		before, all := w.nodes["n1"].calls(), w.calls()
		took := load(t, b, 3000)
		if worst := took[len(took)-1]; worst > time.Second {
			t.Errorf("a request took %v", worst)
		}
		if n := w.nodes["n1"].calls() - before; n > 150 {
			t.Errorf("the frozen node got %d of 3000 requests", n)
		}
		t.Logf("%d calls beyond one a request", w.calls()-all-3000)
	})
}

// A node fifty times slower than the others is asked seldom, and again when
// it has recovered.
func TestSlowNodeUnderLoad(t *testing.T) {
	if race.Enabled {
		t.Skip("TestFrozenNodeAmongHiccups shows the race detector the same; `make test` runs this without it")
	}
	synctest.Test(t, func(t *testing.T) {
		w := slowWorld(t)
		b := w.broker()
		healthy := p99(load(t, b, 1000))
		slow := w.nodes["n1"]
		usual := slow.delay
		slow.set(func() { slow.delay = func() time.Duration { return 500 * time.Millisecond } })
		before, all := slow.calls(), w.calls()
		took := p99(load(t, b, 3000))
		if took > healthy*3/2 {
			t.Errorf("p99 %v, healthy %v", took, healthy)
		}
		if n := slow.calls() - before; n > 300 {
			t.Errorf("the slow node got %d of 3000 requests", n)
		}
		if extra := w.calls() - all - 3000; extra > 150 {
			t.Errorf("%d calls beyond one a request", extra)
		}
		slow.set(func() { slow.delay = usual })
		load(t, b, 9000)
		before = slow.calls()
		load(t, b, 300)
		if n := slow.calls() - before; n < 50 {
			t.Errorf("the recovered node got %d of 300 requests", n)
		}
	})
}
