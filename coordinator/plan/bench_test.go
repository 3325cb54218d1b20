package plan

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/internal/figure"
)

// BenchmarkPlan plans for 200 nodes in three zones, with three replicas of
// partitions of different sizes: from nothing, from 150 nodes, and after the loss
// of one.
func BenchmarkPlan(b *testing.B) {
	p := Problem{Nodes: nodes(200, 3), Wanted: 3, Limits: Limits{MovesPerNode: 2, Gain: 0.05}}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range p.Partitions {
		p.Partitions[i] = Partition{Bytes: 1<<28 + r.Int64N(1<<30), Load: r.ExpFloat64()}
	}
	more, lost := p, p
	more.Nodes = nodes(150, 3)
	more.Now = mustMake(b, more).Goal
	more.Nodes = p.Nodes
	lost.Now = mustMake(b, p).Goal
	lost.Nodes = nodes(200, 3)
	lost.Nodes[77].Gone = true
	for _, c := range []struct {
		name    string
		problem Problem
	}{{"first", p}, {"resize", more}, {"repair", lost}} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				mustMake(b, c.problem)
			}
			figure.Print("plan_"+c.name+"_ms", b.Elapsed().Seconds()*1000/float64(b.N), "ms")
		})
	}
}

// BenchmarkResizeMoves tells the moves of a resize that has an exact minimum:
// 720 partitions with two replicas, from 45 nodes to 60.
func BenchmarkResizeMoves(b *testing.B) {
	moves := 0
	for b.Loop() {
		moves = len(resized(b, Problem{Nodes: nodes(45, 0), Wanted: 2}, nodes(60, 0)).Moves)
	}
	figure.Print("plan_moves_45_to_60", float64(moves), "moves")
}
