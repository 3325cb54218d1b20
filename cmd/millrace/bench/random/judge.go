package random

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

// verified is how many questions the oracle answers too: package oracle, Millrace's own slow
// and simple reference.
const verified = 4

// judge asks every question once and compares the answers with theirs, the baseline's. It
// compares the answers to the first questions, verified of them, with the oracle's too, to the
// last bit of the scores. It keeps the answers' items in m.first.
func (m *measuring) judge(ctx context.Context, res *result, s *schemas.Schema, known relevance.Schemas, theirs [][]item) error {
	truth, err := m.world.truth(s, known)
	if err != nil {
		return fmt.Errorf("oracle: %w", err)
	}
	if len(theirs) != len(m.asked) {
		return fmt.Errorf("the baseline answers %d of %d questions", len(theirs), len(m.asked))
	}
	for i := range m.asked {
		resp, err := m.ask(ctx, i)
		if err != nil {
			return err
		}
		if i < verified {
			if diff := oracle.Diff(truth(i), oracle.FeedItems(resp.Items)); diff != "" {
				return fmt.Errorf("question %d is answered otherwise than by the oracle:\n%s", i, diff)
			}
		}
		if diff := differs(theirs[i], resp.Items); diff != "" {
			return fmt.Errorf("question %d is answered otherwise than by the baseline: %s", i, diff)
		}
		m.first = append(m.first, resp.Items)
		if i < verified {
			if err := m.explain(ctx, i, res); err != nil {
				return err
			}
		}
	}
	return nil
}

// explain asks a question again with explain, and adds to the result which share of its
// candidates passed the filter, and how nodes executed it. It returns an error if the
// question met another number of candidates than the world has for it.
func (m *measuring) explain(ctx context.Context, i int, res *result) error {
	explained := proto.Clone(m.asked[i]).(*feedv1.GetFeedRequest)
	explained.Explain = true
	resp, err := m.cluster.Feed.GetFeed(ctx, explained)
	if err != nil {
		return err
	}
	met := m.world.candidates()
	want := 0.0
	for _, e := range m.world.questions[i].follows {
		want += met[e]
	}
	if got := float64(resp.GetExplain().GetCandidates()); got != want {
		return fmt.Errorf("question %d met %v candidates, and there are %v", i, got, want)
	}
	res.passes += float64(resp.GetExplain().GetScored()) / max(1, want) / float64(min(verified, len(m.asked)))
	res.execution = resp.GetReceipt().GetExecution()
	return nil
}

// same compares an answer with the first to its question, to the last bit of the
// scores.
func same(first, got []*feedv1.Item) error {
	if len(got) != len(first) {
		return fmt.Errorf("%d items, and %d before", len(got), len(first))
	}
	for i, x := range first {
		if g := got[i]; g.Id != x.Id || g.Object != x.Object || math.Float64bits(g.Score) != math.Float64bits(x.Score) {
			return fmt.Errorf("item %d is %s of %v, and was %s of %v before", i, g.Id, g.Score, x.Id, x.Score)
		}
	}
	return nil
}

// tolerance is how much a score may differ from the baseline's, which adds up in another
// order: an absolute number for scores from -1 to 1, and a share of larger ones.
const tolerance = 1e-9

// differs says how an answer differs from the baseline's; "" if it does not.
func differs(want []item, got []*feedv1.Item) string {
	if len(want) != len(got) {
		return fmt.Sprintf("%d items, the baseline has %d", len(got), len(want))
	}
	for i, g := range got {
		x := want[i]
		var also []string
		for _, a := range g.Also {
			also = append(also, a.Id)
		}
		switch {
		case g.Id != x.ID || g.Object != x.Object:
			return fmt.Sprintf("item %d is %s about %s with %v, the baseline has %s about %s with %v", i, g.Id, g.Object, g.Score, x.ID, x.Object, x.Score)
		case !(math.Abs(g.Score-x.Score) <= tolerance*max(1, math.Abs(x.Score))):
			return fmt.Sprintf("item %d scores %v, by the baseline %v", i, g.Score, x.Score)
		case !slices.Equal(also, x.Also):
			return fmt.Sprintf("item %d has also %v, by the baseline %v", i, also, x.Also)
		}
	}
	return ""
}

// truth returns a function that computes the oracle's answer to question i.
func (w *world) truth(s *schemas.Schema, known relevance.Schemas) (func(i int) []oracle.Item, error) {
	eval, err := oracle.NewEval(s)
	if err != nil {
		return nil, err
	}
	var filters []string
	for _, c := range w.filter {
		filters = append(filters, c.cel)
	}
	filter, err := eval.Filter(strings.Join(filters, " && "))
	if err != nil {
		return nil, err
	}
	pack, err := w.pack(known)
	if err != nil {
		return nil, err
	}
	model, err := modelpack.Validate(pack, known)
	if err != nil {
		return nil, err
	}
	score := eval.Score(model)
	return func(i int) []oracle.Item {
		asked := w.questions[i]
		q := oracle.Query{
			From: millrace.Time(asOf - w.window.Milliseconds()), To: millrace.MaxTime, AsOf: millrace.Time(asOf),
			Filter: filter, Score: score, Limit: w.limit, Cap: w.cap, Distinct: w.distinct, Viewer: w.viewer(asked),
		}
		follows := map[string]bool{}
		for _, e := range asked.follows {
			follows[e] = true
			q.Entities = append(q.Entities, millrace.Entity(e))
		}
		for _, k := range w.asked {
			q.Types = append(q.Types, millrace.ContentType(kindName(k)))
		}
		feed := oracle.New()
		for _, x := range w.log {
			if follows[x.entity] {
				line, err := w.line(x)
				if err == nil {
					err = feed.Load(s, line)
				}
				if err != nil {
					panic(err) // it was written to the log before
				}
			}
		}
		return feed.Query(q).Items
	}, nil
}

// viewer returns the viewer of a question as a node sees them: numbers as features, and all
// else as attributes.
func (w *world) viewer(q *question) millrace.Viewer {
	v := millrace.Viewer{ID: q.viewer, Attributes: map[string]any{}, Features: map[string]float64{}}
	for i, a := range w.attrs {
		if x, ok := q.values[i].(float64); ok {
			v.Features[a.name] = x
			continue
		}
		v.Attributes[a.name] = q.values[i]
	}
	return v
}
