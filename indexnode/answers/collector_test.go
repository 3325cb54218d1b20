package answers

import (
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace/internal/figure"
)

// BenchmarkCollector gives node_p99_collector_vs_none: the p99 of all questions
// to a node that answers half of what it could, with its collector as it is,
// against that of the same node without, by turns. query_p99_marking_vs_idle,
// of package query, is of a collector that never rests; this one runs when it
// would in a node.
//
// Questions come as a Poisson process, each to a goroutine of its own, from its
// bytes to those of the answer, and their time counts from when they are due.
// Besides what the node holds there is as much memory as the binary takes on
// for the collector to wait longer.
func BenchmarkCollector(b *testing.B) {
	n, requests := benchNode(b)
	var wire [][]byte
	for _, req := range requests {
		text, err := proto.Marshal(req)
		if err != nil {
			b.Fatal(err)
		}
		wire = append(wire, text)
	}
	ask := func(i int) {
		req := new(nodev1.QueryRequest)
		if err := proto.Unmarshal(wire[i%len(wire)], req); err != nil {
			b.Error(err)
			return
		}
		resp, err := n.Query(b.Context(), req)
		if err != nil {
			b.Error(err)
			return
		}
		if text, err := proto.Marshal(resp); err != nil || len(text) == 0 {
			b.Error(err)
		}
	}
	ballast := make([]byte, 128<<20) // never touched
	defer runtime.KeepAlive(ballast)
	turn, turns := 2*time.Second, 6
	if testing.Short() {
		turn, turns = 50*time.Millisecond, 1
	}
	between := 2 * saturated(ask, turn)
	collect := debug.SetGCPercent(-1)
	defer debug.SetGCPercent(collect)
	var with, without []time.Duration
	collections := 0
	for range turns {
		debug.SetGCPercent(collect)
		runtime.GC() // what the turn without has left
		before := collectionsSoFar()
		with = append(with, arriving(ask, between, turn)...)
		collections += collectionsSoFar() - before
		debug.SetGCPercent(-1)
		without = append(without, arriving(ask, between, turn)...)
	}
	for b.Loop() {
		ask(0)
	}
	slices.Sort(with)
	slices.Sort(without)
	p99 := func(took []time.Duration) float64 { return float64(took[len(took)*99/100].Microseconds()) }
	b.ReportMetric(p99(with), "us-p99")
	b.ReportMetric(p99(without), "us-p99-none")
	b.ReportMetric(float64(collections), "collections")
	b.ReportMetric(float64(len(with)), "questions")
	figure.Print("node_p99_collector_vs_none", p99(with)/p99(without), "x")
}

// saturated returns the time from one answer to the next while as many
// questions are asked at a time as there are processors.
func saturated(ask func(int), d time.Duration) time.Duration {
	var wg sync.WaitGroup
	var mu sync.Mutex
	answers := 0
	for i := range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			asked := 0
			for end := time.Now().Add(d); time.Now().Before(end); asked++ {
				ask(i + asked)
			}
			mu.Lock()
			defer mu.Unlock()
			answers += asked
		})
	}
	wg.Wait()
	return d / time.Duration(answers)
}

// arriving asks for a while, with a mean time between questions.
func arriving(ask func(int), between, d time.Duration) []time.Duration {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var took []time.Duration
	due := time.Now()
	for i, end := 0, due.Add(d); due.Before(end); i++ {
		due = due.Add(time.Duration(rand.ExpFloat64() * float64(between)))
		time.Sleep(time.Until(due))
		at := due
		wg.Go(func() {
			ask(i)
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(at))
		})
	}
	wg.Wait()
	return took
}

func collectionsSoFar() int {
	var s debug.GCStats
	debug.ReadGCStats(&s)
	return int(s.NumGC)
}
