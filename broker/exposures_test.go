package broker

import (
	"math/rand/v2"
	"strings"
	"testing"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/exposure"
)

// The features of items are in as many exposures as the experiment asks for,
// and of no others is a node asked.
func TestExposuresHaveFeatures(t *testing.T) {
	for name, c := range map[string]struct {
		set, features string
		bare          bool // one node of two
		least, most   int  // of 400 answers
	}{
		"all":              {"limit: 5", "10000", false, 400, 400},
		"half":             {"limit: 5", "5000", false, 120, 280},
		"none":             {"limit: 5", "0", false, 0, 0},
		"drafted":          {"interleave: [recency, coarse]", "10000", false, 150, 250}, // the controls'
		"of an older node": {"limit: 5", "10000", true, 400, 400},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 2, 1)
			w.fill(rand.New(rand.NewPCG(5, 13)), 12, 200)
			w.nodes["n1"].bare = c.bare
			var told shows
			b, docs := w.experimental(nil, Feed{Name: "f", Model: "recency"})
			b.exposures = &told
			define(t, b, docs, 1, strings.Replace(halves("running", c.set), "share: 10000,", "share: 10000, features: "+c.features+",", 1))
			for range 400 {
				ask(t, b, string(recordID(rand.IntN(1e6))), nil)
			}
			with, without := 0, 0
			for i := range told.all {
				r := &told.all[i]
				if _, err := r.Append(nil); err != nil {
					t.Fatal(err)
				}
				if r.Models[0].Features == nil {
					continue
				}
				with++
				for _, it := range r.Items {
					switch {
					case len(it.Features) == 0 && c.bare:
						without++
					case len(it.Features) != 2 || it.Features[0] != exposure.Number(it.Score) || it.Features[1] != exposure.Text(it.ID):
						t.Fatalf("%+v", it)
					}
				}
			}
			asked := 0
			for _, n := range w.nodes {
				for _, q := range n.asked {
					if q.Features {
						asked++
					}
				}
			}
			if len(told.all) != 400 || with < c.least || with > c.most || (asked > 0) != (with > 0) || asked > 2*with || (without > 0) != c.bare {
				t.Errorf("%d of %d answers have features, %d items of them none; %d questions asked for them", with, len(told.all), without, asked)
			}
		})
	}
	// Nobody writes exposures: nobody asks for their features.
	w := newWorld(t, 2, 1)
	w.fill(rand.New(rand.NewPCG(5, 13)), 12, 200)
	b, docs := w.experimental(nil, Feed{Name: "f", Model: "recency"})
	define(t, b, docs, 1, strings.Replace(halves("running", "limit: 5"), "share: 10000,", "share: 10000, features: 10000,", 1))
	ask(t, b, "alice", func(*feedv1.GetFeedRequest) {})
	for _, n := range w.nodes {
		for _, q := range n.asked {
			if q.Features {
				t.Error("features that nobody gets are asked for")
			}
		}
	}
}
