package team

import (
	"fmt"
	"math"
	"runtime"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

// truth has the oracle's answer to every question. The oracle computes answers in the simplest
// way, from records that it has in memory.
type truth struct {
	answers    []oracle.Answer // by question; their items have no records, to save memory
	candidates []int           // the numbers of candidates of questions, sorted
	scored     int             // how many candidates of all questions passed the filter
}

// newTruth has the oracle answer all questions, on all processors.
func (w *world) newTruth(s *schemas.Schema, known relevance.Schemas) (*truth, error) {
	feed := oracle.New()
	for e := range w.entities {
		for _, x := range w.records(e) {
			line, err := w.line(&x)
			if err != nil {
				return nil, err
			}
			if err := feed.Load(s, line); err != nil {
				return nil, err
			}
		}
	}
	t := &truth{answers: make([]oracle.Answer, len(w.asked))}
	var g errgroup.Group
	workers := runtime.GOMAXPROCS(0)
	for worker := range workers {
		g.Go(func() error { return t.ask(w, feed, s, known, worker, workers) })
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for _, a := range t.answers {
		t.candidates = append(t.candidates, a.Stages.Candidates)
		t.scored += a.Stages.Scored
	}
	slices.Sort(t.candidates)
	return t, nil
}

// ask answers every step-th question, beginning with the one of index first.
func (t *truth) ask(w *world, feed *oracle.Feed, s *schemas.Schema, known relevance.Schemas, first, step int) error {
	eval, err := oracle.NewEval(s)
	if err != nil {
		return err
	}
	passes, err := eval.Filter(filter)
	if err != nil {
		return err
	}
	var scores []oracle.Score
	for i := range models {
		m, err := relevance.Parse(modelpack.SpecFile, []byte(models[i].spec(w.flat)), known)
		if err != nil {
			return err
		}
		scores = append(scores, eval.Score(m))
	}
	for i := first; i < len(w.asked); i += step {
		a := feed.Query(w.asked[i].query(passes, scores[w.asked[i].model]))
		for j := range a.Items {
			a.Items[j].Record = millrace.Record{}
		}
		t.answers[i] = a
	}
	return nil
}

func (q *question) query(passes oracle.Filter, score oracle.Score) oracle.Query {
	o := oracle.Query{
		From: millrace.Time(asOf - window.Milliseconds()), To: millrace.MaxTime, AsOf: millrace.Time(asOf),
		Filter: passes, Score: score, Limit: limit, Distinct: true,
		Viewer: millrace.Viewer{
			ID: q.viewer, Attributes: map[string]any{"languages": q.reads, "country": q.country},
			Features: map[string]float64{"freshness_hours": q.freshness},
		},
	}
	for _, k := range kinds {
		o.Types = append(o.Types, millrace.ContentType(k))
	}
	for _, e := range q.follows {
		o.Entities = append(o.Entities, millrace.Entity(e))
	}
	return o
}

// judgeFeed returns how Millrace's answer to the ith question differs from the oracle's; "" if
// it does not. Scores must be equal to the last bit.
func (t *truth) judgeFeed(i int, got *feedv1.GetFeedResponse) string {
	return oracle.Diff(t.answers[i].Items, oracle.FeedItems(got.Items))
}

// tolerance is by how much the scores of a baseline, which adds up in another order, may
// differ from the oracle's: absolutely, and for scores above 1 as a share of the score.
const tolerance = 1e-9

// judge returns how a baseline's answer to the ith question differs from the oracle's; "" if
// it does not. It must have the same records in the same order, of the same objects, with
// the same further records, and scores within the tolerance.
func (t *truth) judge(i int, got []item) string {
	want := t.answers[i].Items
	if len(got) != len(want) {
		return fmt.Sprintf("%d items, want %d", len(got), len(want))
	}
	for j, g := range got {
		x := want[j]
		var also []string
		for _, a := range x.Also {
			also = append(also, string(a.ID))
		}
		switch {
		case g.id != string(x.ID) || g.author != string(x.Entity) || kinds[g.kind] != string(x.Type) || g.at != int64(x.Time) || g.object != string(x.Object):
			return fmt.Sprintf("item %d is %s of %s, want %s of %s", j, g.id, g.object, x.ID, x.Object)
		case math.Abs(g.score-x.Score) > tolerance*max(1, math.Abs(x.Score)):
			return fmt.Sprintf("item %d scores %v, want %v", j, g.score, x.Score)
		case !slices.Equal(g.also, also):
			return fmt.Sprintf("item %d has also %v, want %v", j, g.also, also)
		}
	}
	return ""
}
