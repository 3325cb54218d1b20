package query

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// The workload of a team that nobody tuned for: records with a text and a list
// of 24 floats, of 30 days, 26 a timeline; questions of 650 timelines that want
// the last 7 days of them, about six records each, of which a filter lets 26 %
// pass; two linear models of 30 terms by turns; one item an object, top 20.
const (
	listItems     = 24
	listRows      = 26
	listTimelines = 650
	listDays      = 30
	windowDays    = 7
	dayMillis     = 86_400_000
)

// listRecord is a record as a team holds it in Go: a struct.
type listRecord struct {
	id, object, language, text       string
	at, likes, comments, impressions int64
	features                         [listItems]float32
}

// listWorld is timelines both ways: ours, and slices of structs.
type listWorld struct {
	keys   []millrace.Timeline
	ours   []*cache.Timeline
	theirs [][]listRecord
	bytes  int // of bodies
}

// newListWorld makes timelines of a thousand different ones: to encode all anew
// would take longer than the benchmark.
func newListWorld(b *testing.B, timelines int) *listWorld {
	w := &listWorld{}
	r := rand.New(rand.NewPCG(16, 16))
	different := min(timelines, 1000)
	slabs, records := make([]*column.Slab, different), make([][]listRecord, different)
	for i := range slabs {
		slabs[i], records[i] = drawList(b, r, i)
	}
	for i := range timelines {
		at := i * 7919 % different
		w.keys = append(w.keys, millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"})
		w.ours, w.theirs = append(w.ours, hold(b, slabs[at])), append(w.theirs, slices.Clone(records[at]))
		body := slabs[at].Layout().Index(schemas.BodyColumn)
		for row := range listRows {
			w.bytes += len(slabs[at].StringAt(body, row))
		}
	}
	return w
}

// drawList draws the records of the i-th timeline.
func drawList(b *testing.B, r *rand.Rand, i int) (*column.Slab, []listRecord) {
	s := schemas.Activity()
	d, err := schemas.NewDecoder(s, s)
	if err != nil {
		b.Fatal(err)
	}
	words := strings.Fields("about the day at sea when all of us saw how far a boat may go before night and nobody said a word to anybody else until morning came")
	times := make([]int64, listRows)
	for j := range times {
		times[j] = asOf - r.Int64N(listDays*dayMillis) - 1
	}
	slices.Sort(times)
	records := make([]listRecord, listRows)
	a := column.New(s.Layout(), listRows, listRows*512).Append()
	for j := range records {
		rec := &records[j]
		*rec = listRecord{
			id: fmt.Sprintf("post:%d/%d", i, j), object: fmt.Sprint("article:", r.IntN(100_000)), language: [...]string{"en", "de", "es", "zh"}[r.IntN(4)],
			at: times[j], likes: r.Int64N(48), comments: r.Int64N(9), impressions: r.Int64N(5000),
		}
		var text, list []string
		for range 30 + r.IntN(12) {
			text = append(text, words[r.IntN(len(words))])
		}
		rec.text = strings.Join(text, " ")
		for k := range rec.features {
			rec.features[k] = float32(r.NormFloat64())
			list = append(list, fmt.Sprint(rec.features[k]))
		}
		body, err := s.EncodeJSON(fmt.Appendf(nil, `{"id":%q,"actor":"member:%d","verb":"post","created_at":%d,"object":%q,"language":%q,"text":%q,"likes":%d,"comments":%d,"impressions":%d,"features":[%s]}`,
			rec.id, i, rec.at, rec.object, rec.language, rec.text, rec.likes, rec.comments, rec.impressions, strings.Join(list, ",")))
		if err == nil {
			err = d.Append(a, body)
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	return a.Slab(), records
}

// listModel is one of two models of 30 terms; near is what it reads of the list
// for a viewer, if anything.
func listModel(b *testing.B, n int, near string) (*relevance.Model, [listItems]float64) {
	var features, weights strings.Builder
	var w [listItems]float64
	for i := range w {
		w[i] = math.Round(100*math.Sin(float64(1+i*7+n*100))) / 100
		fmt.Fprintf(&features, "  f%d: record.features[%d]\n", i, i)
		fmt.Fprintf(&weights, "    f%d: %v\n", i, w[i])
	}
	m, err := relevance.Parse("list.yaml", fmt.Appendf(nil, `
name: list%d
version: "1"
schemas: [millrace.Activity]
viewer: {language: string, near: double}
features:
%s  likes: log1p(record.likes)
  comments: log1p(record.comments)
  fresh: decay(record.created_at, 86400)
  fresh_likes: decay(record.created_at, 86400) * log1p(record.likes)
  home: record.language == viewer.language
  near: %s
scorer: linear
parameters:
  weights:
%s    likes: 0.3
    comments: 0.5
    fresh: 2
    fresh_likes: 0.25
    home: 0.4
    near: 0.1
`, n, features.String(), near, weights.String()), relevance.ShippedSchemas())
	if err != nil {
		b.Fatal(err)
	}
	return m, w
}

// askList answers as a team would write it by hand.
func askList(timelines [][]listRecord, from int64, language string, near bool, w *[listItems]float64) []ranked {
	var all []ranked
	for _, records := range timelines {
		for i := len(records) - 1; i >= 0 && records[i].at >= from; i-- {
			r := &records[i]
			if r.likes < 23 || r.language != "en" && r.language != "de" {
				continue
			}
			all = append(all, ranked{r.score(language, near, w), r})
		}
	}
	slices.SortFunc(all, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.score, a.score), cmp.Compare(b.at, a.at)) })
	seen := map[string]bool{}
	best := all[:0]
	for _, s := range all {
		if !seen[s.object] {
			seen[s.object] = true
			if best = append(best, s); len(best) == 20 {
				break
			}
		}
	}
	return best
}

type ranked struct {
	score float64
	*listRecord
}

func (r *listRecord) score(language string, near bool, w *[listItems]float64) float64 {
	var sum float64
	for i, x := range r.features {
		sum += w[i] * float64(x)
	}
	likes := math.Log1p(float64(r.likes))
	fresh := math.Exp2(-float64(asOf-r.at) / 1000 / 86400)
	sum += 0.3*likes + 0.5*math.Log1p(float64(r.comments)) + 2*fresh + 0.25*fresh*likes
	if r.language == language {
		sum += 0.4
	}
	if near {
		return sum + 0.1*float64(0.5*float64(r.features[0]))
	}
	return sum + 0.1*0.5
}

// BenchmarkLists gives the figures of that workload: CPU time of ours against
// loops over structs, from resolved timelines to ranked items, by turns; what a
// cached record takes against its body; and of explained answers against plain
// ones. Ours is measured with what is folded, without, and with models whose
// rest reads the list.
func BenchmarkLists(b *testing.B) {
	timelines := 30_000
	if testing.Short() {
		timelines = 2000
	}
	began := int64(0)
	if held.Cache != nil {
		began = int64(held.Stats().Bytes)
	}
	w := newListWorld(b, timelines)
	bytes := float64(int64(held.Stats().Bytes)-began) / float64(timelines*listRows)
	f, err := filter.Compile(`record.likes >= 23 && record.language in viewer.languages`, expr.Env{Record: []*column.Layout{schemas.Activity().Layout()}})
	if err != nil {
		b.Fatal(err)
	}
	spec := Spec{
		From: asOf - windowDays*dayMillis, To: asOf, AsOf: asOf, Filter: f, Limit: 20, DistinctObjects: true, Folds: held.Cache,
		Viewer: &millrace.Viewer{ID: "member:1", Attributes: map[string]any{"language": "en", "languages": []string{"en", "de"}}, Features: map[string]float64{"near": 0.5}},
	}
	r := rand.New(rand.NewPCG(17, 17))
	drawn := func(n int) (ours [][]asked, theirs [][][]listRecord) {
		for range n {
			var q []asked
			var t [][]listRecord
			for range listTimelines {
				at := r.IntN(timelines)
				q, t = append(q, asked{timeline: w.keys[at], held: w.ours[at]}), append(t, w.theirs[at])
			}
			ours, theirs = append(ours, q), append(theirs, t)
		}
		return ours, theirs
	}
	const questions = 40
	var models [2][2]*relevance.Model // by whether the rest reads the list
	var weights [2][listItems]float64
	for n := range 2 {
		models[0][n], weights[n] = listModel(b, n, "viewer.near")
		models[1][n], _ = listModel(b, n, "viewer.near * record.features[0]")
	}
	var candidates, kept int64
	answer := func(near int, explain bool, queries [][]asked) time.Duration {
		spec := spec
		spec.Explain = explain
		return timed(func() {
			for i, asks := range queries {
				spec.Model = models[near][i%2]
				q := New(spec)
				for i := range asks {
					q.Add(asks[i].timeline, asks[i].held, column.Packed{})
				}
				if err := q.Scan(context.Background()); err != nil {
					b.Fatal(err)
				}
				a := q.Answer()
				candidates, kept = candidates+a.Stages.Candidates, kept+a.Stages.Scored
				q.Release()
			}
		})
	}
	byHand := func(near bool, queries [][][]listRecord) time.Duration {
		return timed(func() {
			for i, q := range queries {
				askList(q, int64(spec.From), "en", near, &weights[i%2])
			}
		})
	}
	sameAnswers(b, spec, models, weights, drawn)
	for range 12 * timelines / (questions * listTimelines) * 2 { // all is folded
		q, _ := drawn(questions)
		answer(0, false, q)
		answer(1, false, q)
	}
	candidates, kept = 0, 0
	var ours, theirs, full, near, theirNear, explained []time.Duration
	for range 9 {
		q, t := drawn(questions)
		ours, theirs = append(ours, answer(0, false, q)), append(theirs, byHand(false, t))
		q, t = drawn(questions)
		near, theirNear = append(near, answer(1, false, q)), append(theirNear, byHand(true, t))
		q, _ = drawn(questions)
		explained = append(explained, answer(0, true, q))
		folding = false
		full = append(full, answer(0, false, q))
		folding = true
	}
	q, _ := drawn(questions)
	b.ReportAllocs()
	for b.Loop() {
		answer(0, false, q)
	}
	runtime.KeepAlive(w)
	b.ReportMetric(float64(median(ours).Microseconds())/questions, "us/question")
	b.ReportMetric(float64(median(theirs).Microseconds())/questions, "us/question-by-hand")
	b.ReportMetric(float64(candidates)/float64(len(ours)*4*questions), "candidates")
	b.ReportMetric(float64(kept)/float64(candidates), "kept")
	b.ReportMetric(bytes, "B/record")
	b.ReportMetric(float64(w.bytes)/float64(timelines*listRows), "B/record-body")
	figure.Print("lists_vs_by_hand", ratio(ours, theirs), "x", 0.5)
	figure.Tell("lists_unfolded_vs_by_hand", ratio(full, theirs), "x")
	figure.Tell("lists_in_the_rest_vs_by_hand", ratio(near, theirNear), "x")
	figure.Print("lists_explained_vs_plain", ratio(explained, ours), "x", 3)
	figure.Print("lists_bytes_vs_body", bytes*float64(timelines*listRows)/float64(w.bytes), "x", 1.1)
	figure.Print("lists_allocs", testing.AllocsPerRun(20, func() { answer(0, false, q[:2]) }), "allocations", 0)
}

func ratio(a, b []time.Duration) float64 { return float64(median(a)) / float64(median(b)) }

// sameAnswers holds ours against those by hand.
func sameAnswers(b *testing.B, spec Spec, models [2][2]*relevance.Model, weights [2][listItems]float64, drawn func(int) ([][]asked, [][][]listRecord)) {
	b.Helper()
	ours, theirs := drawn(8)
	for i := range ours {
		spec.Model = models[i/2%2][i%2]
		q := New(spec)
		for _, a := range ours[i] {
			q.Add(a.timeline, a.held, column.Packed{})
		}
		if err := q.Scan(context.Background()); err != nil {
			b.Fatal(err)
		}
		got, want := q.Answer().Items, askList(theirs[i], int64(spec.From), "en", i/2%2 == 1, &weights[i%2])
		if len(got) != len(want) {
			b.Fatalf("%d items, by hand %d", len(got), len(want))
		}
		for j := range got {
			if math.Abs(got[j].Score-want[j].score) > 1e-9 || string(got[j].ID) != want[j].id {
				b.Fatalf("question %d, item %d: %s %v, by hand %s %v", i, j, got[j].ID, got[j].Score, want[j].id, want[j].score)
			}
		}
		q.Release()
	}
}
