package query

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/relevance"
)

// BenchmarkFinite gives what it costs to look for a score that is a finite
// number, by which versions of models are judged: questions whose scan looks
// against the same of which it is known already, by turns. Of a model that has
// scores the first batch tells; of one that has none each is looked at.
func BenchmarkFinite(b *testing.B) {
	keys, all := world(b)
	none, err := relevance.Parse("spec.yaml", []byte("name: none\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {none: record.likes / (record.likes - record.likes)}\nscorer: linear\nparameters: {weights: {none: 1}}\n"), relevance.ShippedSchemas())
	if err != nil {
		b.Fatal(err)
	}
	queries := draw(rand.New(rand.NewPCG(11, 11)), 20, keys, all)
	folding = false // each row is scored
	defer func() { folding = true }()
	// ask answers the questions, and tells whether the last had a finite score.
	ask := func(s Spec, known bool) (finite bool) {
		for _, timelines := range queries {
			q := New(s)
			q.finite = known
			for i := range timelines {
				q.Add(timelines[i].timeline, timelines[i].held, column.Packed{})
			}
			if err := q.Scan(context.Background()); err != nil {
				b.Fatal(err)
			}
			finite = q.Measured().Finite
			q.Release()
		}
		return finite
	}
	for _, c := range []struct {
		name string
		spec Spec
		has  bool
	}{{"finite", question(b), true}, {"none", func() Spec { s := question(b); s.Model = none; return s }(), false}} {
		b.Run(c.name, func(b *testing.B) {
			if ask(c.spec, false) != c.has || !ask(c.spec, true) {
				b.Fatal("the model is another than meant")
			}
			var looks, knows []time.Duration
			for b.Loop() {
				for range 15 {
					looks = append(looks, timed(func() { ask(c.spec, false) }))
					knows = append(knows, timed(func() { ask(c.spec, true) }))
				}
			}
			figure.Print("query_judged_"+c.name+"_vs_not", float64(median(looks))/float64(median(knows)), "x")
		})
	}
}
