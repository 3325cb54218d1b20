package fanout

import (
	"context"
	"math/bits"
	"slices"
	"sync"
	"time"
)

// try is one way to get a T; ok says that it got all of what was wanted.
type try[T any] func(ctx context.Context) (value T, ok bool)

// hedge runs first. It runs second at the same time when first has taken longer than
// delay and allow says yes; allow is called again after each further delay. If first ends
// without ok before second began, and ctx has not ended, it then runs second. It returns
//
//   - the one value that came with ok; the other try has been cancelled, or
//   - if neither came with ok, the values of the tries that ran, in the order they ended.
//
// It returns only after every try that it started has returned, so tries must
// end soon after their context does. first runs on the caller's goroutine: most
// calls need no other. allow is called with a lock held, never twice at once.
func hedge[T any](ctx context.Context, delay time.Duration, allow func() bool, first, second try[T]) []T {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &beside[T]{ended: make(chan end[T], 1)} // room for one: second never blocks on it
	h.after(delay, allow, func() end[T] {
		v, ok := second(ctx)
		if ok {
			cancel()
		}
		return end[T]{v, ok}
	})
	v, ok := first(ctx)
	begun := h.stop()
	switch {
	case ok:
		cancel()
		if begun {
			<-h.ended
		}
	case begun:
		return h.join(v)
	case ctx.Err() == nil:
		w, ok := second(ctx)
		if ok {
			return []T{w}
		}
		return []T{v, w}
	}
	return []T{v}
}

// end is how a try ended.
type end[T any] struct {
	value T
	ok    bool
}

// beside runs a second try at the same time as a first one.
type beside[T any] struct {
	ended chan end[T] // gets the end of the second try, if it has begun

	mu struct {
		sync.Mutex
		timer *time.Timer
		over  bool // the first has ended
		begun bool
	}
}

// after begins the second try as soon as allow says yes. It calls allow after delay, and
// again after each further delay.
func (b *beside[T]) after(delay time.Duration, allow func() bool, second func() end[T]) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.timer = time.AfterFunc(delay, func() {
		if b.begin(delay, allow) {
			b.ended <- second()
		}
	})
}

func (b *beside[T]) begin(delay time.Duration, allow func() bool) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.mu.over:
	case allow():
		b.mu.begun = true
	default:
		b.mu.timer.Reset(delay)
	}
	return b.mu.begun
}

// stop keeps the second try from beginning, and reports whether it has begun already.
func (b *beside[T]) stop() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.over = true
	b.mu.timer.Stop()
	return b.mu.begun
}

// join waits for the second try, after the first ended with v and without ok. It returns
// what hedge returns.
func (b *beside[T]) join(v T) []T {
	var e end[T]
	values := make([]T, 0, 2)
	select {
	case e = <-b.ended:
		values = append(values, e.value, v)
	default:
		e = <-b.ended
		values = append(values, v, e.value)
	}
	if e.ok {
		return []T{e.value}
	}
	return values
}

// budget limits hedges to a share of shard requests. Each shard request earns that share
// of a hedge, up to a burst. Each hedge spends one, and so does asking other nodes after
// an overloaded one. It starts full.
type budget struct {
	share, burst float64

	mu struct {
		sync.Mutex
		have float64
	}
}

// hedgeShare is the share of shard requests that may be hedged, and hedgeBurst how many
// hedges may come at once.
const (
	hedgeShare = 0.05
	hedgeBurst = 10
)

func newBudget(share, burst float64) *budget {
	b := &budget{share: share, burst: burst}
	b.mu.have = burst
	return b
}

func (b *budget) earn() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.have = min(b.burst, b.mu.have+b.share)
}

func (b *budget) spend() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.have < 1 {
		return false
	}
	b.mu.have--
	return true
}

// latencies keeps the recent durations of answered calls, from which the delay before a
// hedge is worked out. Calls are kept apart by how many entities they asked for: a large
// call is not late just because it takes longer than small ones.
type latencies [12]recent

// forSize returns the durations of calls of about that many entities: within a
// factor of four.
func (l *latencies) forSize(entities int) *recent {
	return &l[min(bits.Len(uint(entities))/2, len(l)-1)]
}

// recent is the latest 256 durations of answered node calls, and the hedge delay, which is
// worked out anew after every recentEvery calls.
type recent struct {
	mu struct {
		sync.Mutex
		ring  [256]time.Duration
		n     int           // how many were ever added
		delay time.Duration // 0: not worked out yet
	}
}

// The delay before a hedge is hedgeAbove times the hedgeQuantile of recent durations, but at
// least minHedgeDelay and at most maxHedgeDelay. With a shorter delay, calls that are hardly
// late would use up the budget.
const (
	hedgeQuantile = 0.95
	hedgeAbove    = 1.5
	minHedgeDelay = time.Millisecond
	maxHedgeDelay = time.Second
	hedgeDelay    = 50 * time.Millisecond // while there are fewer than recentEvery durations
	inquiryDelay  = 3 * time.Second       // of a question that Inquires: its calls take much longer than others
	recentEvery   = 16                    // calls after which the delay is worked out anew
)

func (r *recent) add(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := &r.mu
	m.ring[m.n%len(m.ring)] = d
	m.n++
	if m.n%recentEvery == 0 {
		have := slices.Clone(m.ring[:min(m.n, len(m.ring))])
		slices.Sort(have)
		at := have[int(hedgeQuantile*float64(len(have)))]
		m.delay = min(max(time.Duration(hedgeAbove*float64(at)), minHedgeDelay), maxHedgeDelay)
	}
}

// beyond estimates how much longer a call goes on that has taken d so far: the mean of
// what the recent calls that took longer than d took beyond d, or d if none took longer.
func (r *recent) beyond(d time.Duration) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	var sum, n time.Duration
	for _, x := range r.mu.ring[:min(r.mu.n, len(r.mu.ring))] {
		if x > d {
			sum += x - d
			n++
		}
	}
	if n == 0 {
		return d
	}
	return sum / n
}

// hedgeAfter returns the delay before a hedge.
func (r *recent) hedgeAfter() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.delay == 0 {
		return hedgeDelay
	}
	return r.mu.delay
}
