package bench

import (
	"fmt"
	"hash/fnv"
	"math"
	"strings"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/schemas"
)

// verified is how many questions the oracle answers too. The oracle is a simple
// implementation of feeds (package oracle), with which answers are compared.
const verified = 4

// truth returns the oracle's answers to the first n questions.
func (w *world) truth(n int) ([]oracle.Answer, error) {
	eval, err := oracle.NewEval(schemas.Activity())
	if err != nil {
		return nil, err
	}
	filter, err := eval.Filter(w.feed.Filter)
	if err != nil {
		return nil, err
	}
	score := eval.Score(w.model)
	var all []oracle.Answer
	for _, asked := range w.asked[:min(n, len(w.asked))] {
		timelines := oracle.New()
		q := oracle.Query{
			From: asOf - millrace.Time(w.feed.Window.Milliseconds()), To: millrace.MaxTime, AsOf: asOf, Types: w.feed.Types,
			Filter: filter, Score: score, Limit: w.feed.Limit, Distinct: w.feed.DistinctObjects, Viewer: asked.viewer.vocabulary(),
		}
		for _, entity := range asked.follows {
			q.Entities = append(q.Entities, entityName(entity))
			for _, x := range w.records(entity) {
				body, err := w.body(&x)
				if err != nil {
					return nil, err
				}
				e, err := schemas.Activity().Envelope(body)
				if err != nil {
					return nil, err
				}
				timelines.ApplyEnvelope(schemas.Activity(), e)
			}
		}
		all = append(all, timelines.Query(q))
	}
	return all, nil
}

// vocabulary returns the viewer in the form in which filters and models see it.
func (v *viewer) vocabulary() millrace.Viewer {
	var reads []string
	for _, l := range v.reads {
		reads = append(reads, languages[l])
	}
	return millrace.Viewer{
		ID:         v.name,
		Attributes: map[string]any{"languages": reads, "country": countries[v.country], "muted": countries[v.muted]},
		Features:   map[string]float64{"freshness_hours": v.freshnessHours, "chatty": v.chatty, "visual": v.visual},
	}
}

// differs says how an explained answer differs from the oracle's; "" if it does not.
func differs(want oracle.Answer, got *feedv1.GetFeedResponse) string {
	var b strings.Builder
	if e := got.GetExplain(); e.GetCandidates() != int64(want.Stages.Candidates) || e.GetScored() != int64(want.Stages.Scored) {
		fmt.Fprintf(&b, "%d candidates, %d scored; want %d, %d\n", e.GetCandidates(), e.GetScored(), want.Stages.Candidates, want.Stages.Scored)
	}
	b.WriteString(oracle.Diff(want.Items, oracle.FeedItems(got.Items)))
	return b.String()
}

// digest returns a hash of what an answer shows: the items' ids, objects and scores, how many
// others each names as also, and their order.
func digest(resp *feedv1.GetFeedResponse) uint64 {
	h := fnv.New64a()
	var word [8]byte
	for _, it := range resp.Items {
		h.Write([]byte(it.Id))
		h.Write([]byte(it.Object))
		bits := math.Float64bits(it.Score)
		for i := range word {
			word[i] = byte(bits >> (8 * i))
		}
		h.Write(word[:])
		h.Write([]byte{byte(len(it.Also))})
	}
	return h.Sum64()
}
