package query

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// lists scores by items of a list and by the list, of the record alone and for a
// viewer, and by texts of any length.
const lists = `
name: lists
version: "1"
schemas: [millrace.Activity]
viewer: {taste: list(double), word: string}
features:
  third: record.features[2]
  taste: dot(record.features, viewer.taste)
  tasted: record.features[0] * viewer.taste[1]
  about: size(record.about) + size(record.features)
  mine: viewer.id in record.about
  long: size(record.text)
  word: record.text.contains(viewer.word)
  same: record.text == viewer.word
scorer: linear
parameters: {weights: {third: 1, taste: 0.5, tasted: 0.25, about: 0.01, mine: 2, long: 0.001, word: 3, same: 5}}
`

// Lists and texts that batches leave in the packed rows are what they are in a
// slab: a query keeps and scores what filter and model say of the decoded rows.
func TestListsInBatches(t *testing.T) {
	defer func() { folding = true }()
	s := schemas.Activity()
	d, err := schemas.NewDecoder(s, s)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(21, 21))
	var slabs []*column.Slab
	var keys []millrace.Timeline
	var all []*cache.Timeline
	for i := range 60 {
		key := millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"}
		a := column.New(s.Layout(), 1, 0).Append()
		for j := range 1 + r.IntN(60) {
			text := []string{"", "short", "a text that is longer", "by the sea"}[r.IntN(4)]
			var items, about []string
			for range r.IntN(5) {
				items = append(items, fmt.Sprint(float32(r.NormFloat64())))
			}
			for range r.IntN(3) {
				about = append(about, fmt.Sprintf("%q", fmt.Sprint("viewer:", r.IntN(4))))
			}
			body, err := s.EncodeJSON(fmt.Appendf(nil, `{"id":"%d/%d","actor":%q,"verb":"post","created_at":%d,"text":%q,"likes":%d,"about":[%s],"features":[%s]}`,
				i, j, key.Entity, asOf-100_000+1000*j, text, r.IntN(9), strings.Join(about, ","), strings.Join(items, ",")))
			if err == nil {
				err = d.Append(a, body)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		slabs, keys, all = append(slabs, a.Slab()), append(keys, key), append(all, hold(t, a.Slab()))
	}
	m, err := relevance.Parse("lists.yaml", []byte(lists), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	viewer := &millrace.Viewer{ID: "viewer:2", Attributes: map[string]any{"word": "by the sea", "taste": []float64{0.5, -1, 2}}}
	for _, src := range []string{
		`record.likes > 2`, `"viewer:1" in record.about`, `record.text.contains("text") || record.text == "short"`,
		`size(record.features) > 2 && size(record.about) < 2`, `record.text in ["by the sea", "short"]`,
	} {
		f, err := filter.Compile(src, expr.Env{Record: []*column.Layout{s.Layout()}})
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i, slab := range slabs {
			b, err := f.Bind(slab.Layout(), nil, viewer, asOf)
			if err != nil {
				t.Fatal(err)
			}
			scorer, err := m.Bind(slab.Layout(), nil, viewer, asOf)
			if err != nil {
				t.Fatal(err)
			}
			for _, row := range b.Select(slab, 0, slab.Len(), nil, nil) {
				var score [1]float64
				scorer.Score(slab, []int32{row}, nil, score[:])
				want = append(want, fmt.Sprint(keys[i].Entity, " ", slab.StringAt(s.Layout().Role("id"), int(row)), " ", score[0]))
			}
		}
		slices.Sort(want)
		spec := Spec{To: asOf, AsOf: asOf, Filter: f, Model: m, Viewer: viewer, Limit: 5000, Folds: held.Cache}
		for round := range 12 {
			folding = round > 0
			q := New(spec)
			for i, tl := range all {
				q.Add(keys[i], tl, column.Packed{})
			}
			if err := q.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, it := range q.Answer().Items {
				got = append(got, fmt.Sprint(it.Entity, " ", it.ID, " ", it.Score))
			}
			q.Release()
			if slices.Sort(got); !slices.Equal(got, want) || len(want) < 20 {
				t.Fatalf("%s, round %d: %d items, want %d\n%s\n%s", src, round, len(got), len(want), got, want)
			}
		}
	}
	if all[0].Folded(cache.IDOf(m)) == nil {
		t.Error("nothing was folded")
	}
}
