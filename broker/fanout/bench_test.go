package fanout

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/figure"
)

// BenchmarkHedge is what it costs to be ready to hedge a call, beside the call
// alone in a goroutine of its own.
func BenchmarkHedge(b *testing.B) {
	work := func(context.Context) (int, bool) { return rand.IntN(2), true }
	alone := func() {
		done := make(chan int, 1)
		go func() {
			v, _ := work(b.Context())
			done <- v
		}()
		<-done
	}
	const rounds = 1000
	var base, hedged time.Duration
	n := 0
	for b.Loop() {
		start := time.Now()
		for range rounds {
			alone()
		}
		middle := time.Now()
		for range rounds {
			hedge(b.Context(), time.Second, no, work, work)
		}
		base += middle.Sub(start)
		hedged += time.Since(middle)
		n += rounds
	}
	us := float64((hedged - base).Nanoseconds()) / 1000 / float64(n)
	b.ReportMetric(us, "µs-over")
	figure.Print("hedge_overhead_us", us, "us")
}
