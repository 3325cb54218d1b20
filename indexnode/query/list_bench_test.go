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
	bytes  int     // of bodies
	record float64 // bytes that a cached one takes
}

// newListWorld makes timelines of a thousand different ones: to encode all anew
// would take longer than the benchmark.
func newListWorld(b *testing.B, timelines int) *listWorld {
	w, before := &listWorld{}, 0
	if held.Cache != nil {
		before = held.Stats().Bytes
	}
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
	w.record = float64(held.Stats().Bytes-before) / float64(timelines*listRows)
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
// ones. Ours is measured with what is folded, without, and with models of which
// the part that is not folded reads the list.
func BenchmarkLists(b *testing.B) {
	l := newListRun(b, "viewer.near", false)
	var ours, theirs, full, explained []time.Duration
	for range 41 {
		q, t := l.draw()
		ours, theirs = append(ours, l.answer(b, false, q)), append(theirs, l.byHand(t))
		q, _ = l.draw()
		explained = append(explained, l.answer(b, true, q))
		folding = false
		full = append(full, l.answer(b, false, q))
		folding = true
	}
	q, _ := l.draw()
	b.ReportAllocs()
	for b.Loop() {
		l.answer(b, false, q)
	}
	bodies := float64(l.world.bytes) / float64(len(l.world.keys)*listRows)
	b.ReportMetric(float64(median(ours).Microseconds())/listQuestions, "us/question")
	b.ReportMetric(float64(median(theirs).Microseconds())/listQuestions, "us/question-by-hand")
	b.ReportMetric(float64(l.candidates)/float64(l.asked), "candidates")
	b.ReportMetric(float64(l.kept)/float64(l.candidates), "kept")
	b.ReportMetric(l.world.record, "B/record")
	b.ReportMetric(bodies, "B/record-body")
	figure.Print("lists_vs_by_hand", ratio(ours, theirs), "x")
	figure.Print("lists_unfolded_vs_by_hand", ratio(full, theirs), "x")
	figure.Print("lists_explained_vs_plain", ratio(explained, ours), "x")
	figure.Print("lists_bytes_vs_body", l.world.record/bodies, "x")
	two, _ := l.draw()
	figure.Print("lists_allocs", testing.AllocsPerRun(20, func() { l.answer(b, false, two[:2]) }), "allocations")

	ours, theirs, l = nil, nil, newListRun(b, "viewer.near * record.features[0]", true)
	for range 41 {
		q, t := l.draw()
		ours, theirs = append(ours, l.answer(b, false, q)), append(theirs, l.byHand(t))
	}
	figure.Print("lists_in_the_rest_vs_by_hand", ratio(ours, theirs), "x")
	runtime.KeepAlive(l)
}

// listQuestions is how many questions are measured at a time.
const listQuestions = 10

// listRun is a world of which all is folded for two models, and questions to it.
type listRun struct {
	world   *listWorld
	r       *rand.Rand
	spec    Spec
	near    bool // the models read the list for the viewer
	models  [2]*relevance.Model
	weights [2][listItems]float64

	asked, candidates, kept int64
}

func newListRun(b *testing.B, near string, reads bool) *listRun {
	timelines := 30_000
	if testing.Short() {
		timelines = 2000
	}
	f, err := filter.Compile(`record.likes >= 23 && record.language in viewer.languages`, expr.Env{Record: []*column.Layout{schemas.Activity().Layout()}})
	if err != nil {
		b.Fatal(err)
	}
	l := &listRun{world: newListWorld(b, timelines), r: rand.New(rand.NewPCG(17, 17)), near: reads}
	l.spec = Spec{
		From: asOf - windowDays*dayMillis, To: asOf, AsOf: asOf, Filter: f, Limit: 20, DistinctObjects: true, Folds: held.Cache,
		Viewer: &millrace.Viewer{ID: "member:1", Attributes: map[string]any{"language": "en", "languages": []string{"en", "de"}}, Features: map[string]float64{"near": 0.5}},
	}
	for n := range l.models {
		l.models[n], l.weights[n] = listModel(b, n, near)
	}
	l.check(b)
	var q []asked
	for at := range l.world.keys {
		q = append(q, asked{timeline: l.world.keys[at], held: l.world.ours[at]})
	}
	for range 16 { // until all is folded
		for some := range slices.Chunk(q, listTimelines) {
			l.answer(b, false, [][]asked{some, some})
		}
	}
	for i, tl := range l.world.ours {
		for _, m := range l.models {
			if tl.Folded(cache.IDOf(m)) == nil && tl.First().FirstAt(int64(l.spec.From)) < listRows {
				b.Fatalf("timeline %d is not folded", i)
			}
		}
	}
	l.asked, l.candidates, l.kept = 0, 0, 0
	return l
}

// draw draws questions, as ours and by hand.
func (l *listRun) draw() (ours [][]asked, theirs [][][]listRecord) {
	for range listQuestions {
		var q []asked
		var t [][]listRecord
		for range listTimelines {
			at := l.r.IntN(len(l.world.keys))
			q, t = append(q, asked{timeline: l.world.keys[at], held: l.world.ours[at]}), append(t, l.world.theirs[at])
		}
		ours, theirs = append(ours, q), append(theirs, t)
	}
	return ours, theirs
}

// answer answers questions, the models by turns.
func (l *listRun) answer(b *testing.B, explain bool, queries [][]asked) time.Duration {
	spec := l.spec
	spec.Explain = explain
	return timed(func() {
		for i, q := range queries {
			spec.Model = l.models[i%2]
			ask := l.ask(b, spec, q)
			stages := ask.Answer().Stages
			l.asked, l.candidates, l.kept = l.asked+1, l.candidates+stages.Candidates, l.kept+stages.Scored
			ask.Release()
		}
	})
}

func (l *listRun) ask(b *testing.B, s Spec, timelines []asked) *Query {
	q := New(s)
	for i := range timelines {
		q.Add(timelines[i].timeline, timelines[i].held, column.Packed{})
	}
	if err := q.Scan(context.Background()); err != nil {
		b.Fatal(err)
	}
	return q
}

func (l *listRun) byHand(queries [][][]listRecord) time.Duration {
	return timed(func() {
		for i, q := range queries {
			askList(q, int64(l.spec.From), "en", l.near, &l.weights[i%2])
		}
	})
}

// check holds our answers against those by hand.
func (l *listRun) check(b *testing.B) {
	ours, theirs := l.draw()
	for i := range 8 {
		spec := l.spec
		spec.Model = l.models[i%2]
		q := l.ask(b, spec, ours[i])
		got, want := q.Answer().Items, askList(theirs[i], int64(spec.From), "en", l.near, &l.weights[i%2])
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

func ratio(a, b []time.Duration) float64 { return float64(median(a)) / float64(median(b)) }
