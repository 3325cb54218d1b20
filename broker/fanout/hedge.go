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

// hedge runs first, and second beside it when first has taken longer than
// delay and allow says yes, which is asked again each delay, or after it when
// first has ended without ok. It returns
//
//   - the one value that came with ok, having cancelled the other try, or
//   - when neither came with ok, what both had, in the order they ended.
//
// It returns only after every try that it started has returned, so tries must
// end soon after their context does. First runs on the caller's goroutine: most
// calls need no other.
func hedge[T any](ctx context.Context, delay time.Duration, allow func() bool, first, second try[T]) []T {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h := &beside[T]{ended: make(chan end[T], 1)} // room: nobody is left waiting to send
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

// beside is a second try beside a first one.
type beside[T any] struct {
	ended chan end[T] // of the second, if it has begun

	mu struct {
		sync.Mutex
		timer *time.Timer
		over  bool // the first has ended
		begun bool
	}
}

// after begins the second try when delay has passed, or a multiple of it, and
// allow says yes.
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

// stop sees to it that the second try does not begin any more, and reports
// whether it has.
func (b *beside[T]) stop() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.mu.over = true
	b.mu.timer.Stop()
	return b.mu.begun
}

// join waits for the second try, the first having ended with v and without ok.
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

// budget lets a share of requests be sent twice. Each request earns the share
// of one, up to a burst; each extra one spends one.
type budget struct {
	share, burst float64

	mu struct {
		sync.Mutex
		have float64
	}
}

// The share of node calls that may be hedges, and how many may come at once.
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

// latencies is what the delay before a hedge is taken from: recent durations
// of answered calls, apart by how many entities they asked for, since a large
// call is not late when it takes longer than small ones do.
type latencies [12]recent

// forSize returns the durations of calls of about that many entities: within a
// factor of four.
func (l *latencies) forSize(entities int) *recent {
	return &l[min(bits.Len(uint(entities))/2, len(l)-1)]
}

// recent is the latest durations of answered node calls, for a quantile that
// is worked out anew now and then.
type recent struct {
	mu struct {
		sync.Mutex
		ring  [256]time.Duration
		n     int // ever added
		delay time.Duration
	}
}

// The delay before a hedge: somewhat above a quantile of recent durations, so
// that the budget lasts for when it is needed; its bounds, and what it is
// before there are any durations.
const (
	hedgeQuantile = 0.95
	hedgeAbove    = 1.5
	minHedgeDelay = time.Millisecond
	maxHedgeDelay = time.Second
	hedgeDelay    = 50 * time.Millisecond
	inquiryDelay  = 3 * time.Second // of what is no answer alone
	recentEvery   = 16
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

// beyond guesses for how much longer a call goes on that has taken d: as long
// as those of late did that took longer, on average, or as long again if none
// did.
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

func (r *recent) hedgeAfter() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.delay == 0 {
		return hedgeDelay
	}
	return r.mu.delay
}
