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

// verified is how many questions the oracle answers too.
const verified = 4

// truth is the oracle's answers to the first few questions.
func (w *world) truth(n int) ([]oracle.Answer, error) {
	f := feed()
	eval, err := oracle.NewEval(schemas.Activity())
	if err != nil {
		return nil, err
	}
	filter, err := eval.Filter(f.Filter)
	if err != nil {
		return nil, err
	}
	m, err := model()
	if err != nil {
		return nil, err
	}
	score := eval.Score(m)
	var all []oracle.Answer
	for _, req := range w.asked[:min(n, len(w.asked))] {
		timelines := oracle.New()
		q := oracle.Query{
			From: asOf - millrace.Time(f.Window.Milliseconds()), To: millrace.MaxTime, AsOf: asOf, Types: f.Types,
			Filter: filter, Score: score, Limit: f.Limit, Distinct: f.DistinctObjects, Viewer: viewerOf(req.Viewer),
		}
		for _, name := range req.Entities {
			var i int
			if _, err := fmt.Sscanf(name, "member:%d", &i); err != nil {
				return nil, err
			}
			q.Entities = append(q.Entities, millrace.Entity(name))
			bodies, err := w.records(i)
			if err != nil {
				return nil, err
			}
			for _, body := range bodies {
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

func viewerOf(v *feedv1.Viewer) millrace.Viewer {
	out := millrace.Viewer{ID: v.Id, Features: v.Features, Attributes: map[string]any{}}
	for name, value := range v.Attributes {
		if list := value.GetListValue(); list != nil {
			var texts []string
			for _, x := range list.Values {
				texts = append(texts, x.GetStringValue())
			}
			out.Attributes[name] = texts
			continue
		}
		out.Attributes[name] = value.GetStringValue()
	}
	return out
}

// differs tells how an explained answer is not the oracle's, or "".
func differs(want oracle.Answer, got *feedv1.GetFeedResponse) string {
	var b strings.Builder
	if e := got.GetExplain(); e.GetCandidates() != int64(want.Stages.Candidates) || e.GetScored() != int64(want.Stages.Scored) {
		fmt.Fprintf(&b, "%d candidates, %d scored; want %d, %d\n", e.GetCandidates(), e.GetScored(), want.Stages.Candidates, want.Stages.Scored)
	}
	b.WriteString(oracle.Diff(want.Items, oracle.FeedItems(got.Items)))
	return b.String()
}

// digest is a hash of what an answer shows: items, order, scores.
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
