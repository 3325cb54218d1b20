package warm

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/figure"
)

// BenchmarkHandOver gives the figure handover_p99_warm: the p99 of the first
// questions to a node that was warmed by its peer, against that of the peer;
// and handover_p99_cold, the same of a node that was not. All three are asked
// each question, by turns, so that a busy machine is busy for all.
func BenchmarkHandOver(b *testing.B) {
	entities, questions := 6000, 3000
	if testing.Short() {
		entities, questions = 600, 100
	}
	var nodes [3]*node
	var names []string
	for i := range nodes {
		n, h := openNode(b, cache.Config{})
		names = members(b, n, h, entities, 5)
		nodes[i] = n
	}
	hot, warm := nodes[0], nodes[1]
	r := rand.New(rand.NewPCG(5, 5))
	zipf := rand.NewZipf(r, 1.05, 20, uint64(2*entities-1)) // the second half has no records
	draw := func() *nodev1.QueryRequest {
		asked := map[uint64]bool{}
		for len(asked) < 100 {
			asked[zipf.Uint64()] = true
		}
		var of []string
		for i := range asked {
			name := fmt.Sprint("nobody:", i)
			if i%2 == 0 {
				name = names[i/2]
			}
			of = append(of, name)
		}
		req := nodetest.OfAll(of)
		req.Types = []string{"post", "share"}
		return req
	}
	ask := func(n *node, req *nodev1.QueryRequest) time.Duration {
		began := time.Now()
		if _, err := n.Query(b.Context(), req); err != nil {
			b.Fatal(err)
		}
		return time.Since(began)
	}
	for range questions {
		ask(hot, draw())
	}
	began := time.Now()
	warmed(b, beside(b, warm, servedBy(b, hot)), topology.All())
	b.ReportMetric(time.Since(began).Seconds(), "s-warming")
	b.ReportMetric(float64(warm.CacheStats().Warmed), "timelines")
	var took [3][]time.Duration
	for i := range questions {
		req := draw()
		for j := range nodes {
			at := (i + j) % len(nodes)
			took[at] = append(took[at], ask(nodes[at], req))
		}
	}
	for b.Loop() {
		ask(warm, draw())
	}
	var p99 [3]float64
	for i := range took {
		slices.Sort(took[i])
		p99[i] = float64(took[i][len(took[i])*99/100].Microseconds())
	}
	b.ReportMetric(p99[0], "us-p99-before")
	b.ReportMetric(p99[1], "us-p99-warm")
	b.ReportMetric(p99[2], "us-p99-cold")
	figure.Print("handover_p99_warm", p99[1]/p99[0], "x")
	figure.Print("handover_p99_cold", p99[2]/p99[0], "x")
}
