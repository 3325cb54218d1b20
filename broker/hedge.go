package broker

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
// delay and allow says yes, which is asked again each delay, or at once when
// first has ended without ok. It returns
//
//   - the one value that came with ok, having cancelled the other try, or
//   - when neither came with ok, what both had, in the order they ended.
//
// It returns only after every try that it started has returned, so tries must
// end soon after their context does.
func hedge[T any](ctx context.Context, delay time.Duration, allow func() bool, first, second try[T]) []T {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()

	type end struct {
		value T
		ok    bool
	}
	ends := make(chan end, 2) // room for both: nobody is left waiting to send
	start := func(t try[T]) {
		wg.Go(func() {
			v, ok := t(ctx)
			ends <- end{v, ok}
		})
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	start(first)
	running, started := 1, false
	var values []T
	for running > 0 {
		select {
		case e := <-ends:
			running--
			if e.ok {
				return []T{e.value}
			}
			values = append(values, e.value)
			if !started && ctx.Err() == nil {
				started = true
				running++
				start(second)
			}
		case <-timer.C:
			switch {
			case started:
			case allow():
				started = true
				running++
				start(second)
			default:
				timer.Reset(delay)
			}
		}
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

// of returns the durations of calls of about that many entities: within a
// factor of four.
func (l *latencies) of(entities int) *recent {
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
