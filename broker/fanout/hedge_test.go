package fanout

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
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
		l.forSize(3).add(2 * time.Millisecond)
		l.forSize(10_000).add(200 * time.Millisecond)
	}
	if small, large := l.forSize(2).hedgeAfter(), l.forSize(9_000).hedgeAfter(); small != 3*time.Millisecond || large != 300*time.Millisecond {
		t.Errorf("small %v, large %v", small, large)
	}
	l.forSize(1 << 40).add(1) // whatever the size, there is a place
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

// A budget starts full, earns no more than fits, and is spent by whole hedges.
func TestBudget(t *testing.T) {
	b := newBudget(0.25, 2)
	spends := func() (n int) {
		for b.spend() {
			n++
		}
		return n
	}
	if n := spends(); n != 2 {
		t.Errorf("%d at first", n)
	}
	for earned, want := range map[int]int{0: 0, 3: 0, 4: 1, 7: 1, 8: 2, 100: 2} {
		b.mu.have = 0
		for range earned {
			b.earn()
		}
		if n := spends(); n != want {
			t.Errorf("%d after %d calls, want %d", n, earned, want)
		}
	}
}

// The delay is worked out every 16 calls, of the last 256, within its bounds.
func TestHedgeDelayIsOfLateCalls(t *testing.T) {
	const ms = time.Millisecond
	var r recent
	for range recentEvery - 1 {
		r.add(2 * ms)
	}
	if d := r.hedgeAfter(); d != hedgeDelay {
		t.Errorf("after few: %v", d)
	}
	if r.add(40 * ms); r.hedgeAfter() != 60*ms { // the slowest of 16 is what 95 % are not above
		t.Errorf("after 16: %v", r.hedgeAfter())
	}
	for range recentEvery {
		r.add(2 * ms)
	}
	if d := r.hedgeAfter(); d != 3*ms { // of 32 it is the second slowest
		t.Errorf("after 32: %v", d)
	}
	for range 256 {
		r.add(time.Minute)
	}
	if d := r.hedgeAfter(); d != maxHedgeDelay || r.beyond(time.Second) != 59*time.Second {
		t.Errorf("after 256 slow ones: %v, %v", d, r.beyond(time.Second))
	}
	sizes := map[*recent]int{}
	var l latencies
	for _, n := range []int{0, 1, 2, 3, 4, 7, 8, 31, 32, 1 << 21, 1 << 22, 1 << 40} {
		sizes[l.forSize(n)]++
	}
	if len(sizes) != 5 || l.forSize(1) == l.forSize(2) || l.forSize(2) != l.forSize(7) || l.forSize(7) == l.forSize(8) || l.forSize(8) != l.forSize(31) || l.forSize(1<<21) != l.forSize(1<<40) {
		t.Errorf("%d kinds of sizes", len(sizes))
	}
}

// Whether a hedge may be sent is asked again after each further delay, and it is told which
// of two that failed ended first.
func TestAllowIsAskedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		allow := func() bool { asked++; return asked == 4 }
		var log []string
		began := time.Now()
		got := hedge(t.Context(), time.Second, allow, after(time.Minute, "first", true, &log), after(time.Second, "second", true, &log))
		if !slices.Equal(got, []string{"second"}) || time.Since(began) != 5*time.Second || asked != 4 {
			t.Errorf("%v after %s and %d questions", got, time.Since(began), asked)
		}
		time.Sleep(time.Hour)
		if asked != 4 {
			t.Errorf("it is asked %d times", asked)
		}
		if got := hedge(t.Context(), time.Second, yes, after(2*time.Second, "first", false, &log), after(9*time.Second, "second", false, &log)); !slices.Equal(got, []string{"first", "second"}) {
			t.Errorf("%v", got)
		}
		if got := hedge(t.Context(), time.Second, yes, after(2*time.Second, "first", false, &log), after(9*time.Second, "second", true, &log)); !slices.Equal(got, []string{"second"}) {
			t.Errorf("%v", got)
		}
		if got := hedge(t.Context(), time.Minute, yes, after(time.Second, "first", false, &log), after(9*time.Second, "second", false, &log)); !slices.Equal(got, []string{"first", "second"}) {
			t.Errorf("%v", got)
		}
	})
}
