package query

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/figure"
)

// BenchmarkMarking gives the figure query_p99_marking_vs_idle: the p99 of
// queries while the collector marks without a pause, against that while it
// rests.
func BenchmarkMarking(b *testing.B) {
	keys, all := world(b)
	s, queries := question(b), draw(rand.New(rand.NewPCG(11, 11)), 20, keys, all)
	p99 := func() time.Duration {
		var took []time.Duration
		for range 50 {
			for _, q := range queries {
				began := time.Now()
				run(s, q)
				took = append(took, time.Since(began))
			}
		}
		slices.Sort(took)
		return took[len(took)*99/100]
	}
	p99()
	idle := p99()
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-done:
				return
			default:
				runtime.GC()
			}
		}
	}()
	marking := p99()
	close(done)
	<-stopped
	for b.Loop() {
		run(s, queries[0])
	}
	b.ReportMetric(float64(idle.Microseconds()), "us-p99-idle")
	b.ReportMetric(float64(marking.Microseconds()), "us-p99-marking")
	figure.Print("query_p99_marking_vs_idle", float64(marking)/float64(idle), "x", 1.2)
}
