package oracle

import (
	"maps"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/expr/celref"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// loaded returns the bundled network, with features for member:1 alone.
func loaded(t *testing.T) *Feed {
	t.Helper()
	f := New()
	for line := range sample.Records() {
		if err := f.Load(schemas.Activity(), line); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
	}
	for _, line := range []string{
		`{"entity":"member:1","updated_at":2,"followers":5}`,
		`{"entity":"member:1","updated_at":1,"followers":6}`,
		`{"entity":"member:2","subject":"post:1","updated_at":1,"followers":7}`,
	} {
		if err := f.Load(schemas.Features(), []byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func eval(t *testing.T) *Eval {
	t.Helper()
	e, err := NewEval(schemas.Activity(), schemas.Features())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestLoad(t *testing.T) {
	f := loaded(t)
	records := 0
	for _, tl := range f.Timelines() {
		records += len(f.Live(tl))
	}
	if records < 2*5924+2*2218+759+624 {
		t.Errorf("%d records on all timelines", records)
	}
	if err := f.Load(schemas.Activity(), []byte(`{"id":"r"}`)); err == nil {
		t.Error("half a record was taken")
	}
}

// Filters over every kind of value, against what plain code says.
func TestFilter(t *testing.T) {
	f, e := loaded(t), eval(t)
	for src, keep := range map[string]func(c *Candidate, v map[string]any) bool{
		`record.likes > 1`:                                 func(c *Candidate, v map[string]any) bool { return v["likes"].(int64) > 1 },
		`record.language == viewer.lang`:                   func(c *Candidate, v map[string]any) bool { return v["language"] == "en" },
		`record.language in ["de", "fr"]`:                  func(c *Candidate, v map[string]any) bool { return v["language"] == "de" || v["language"] == "fr" },
		`record.verb == "comment" && record.country != ""`: func(c *Candidate, v map[string]any) bool { return c.Type == "comment" && v["country"] != "" },
		`entity.followers == 5.0`:                          func(c *Candidate, v map[string]any) bool { return c.Entity == "member:1" },
	} {
		filter, err := e.Filter(src)
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		viewer := &millrace.Viewer{Attributes: map[string]any{"lang": "en"}}
		kept := 0
		for _, c := range f.candidates(&Query{Entities: sample.Members(), To: millrace.MaxTime}) {
			got := filter(&c, viewer, 0) == celref.True
			if want := keep(&c, values(e.row(&c.Record))); got != want {
				t.Errorf("%s: %v of %s in %s, want %v", src, got, c.ID, c.Timeline, want)
			}
			if got {
				kept++
			}
		}
		if kept == 0 {
			t.Errorf("%s keeps nothing, and proves nothing", src)
		}
	}
	if _, err := e.Filter("record.likes >"); err == nil {
		t.Error("half a filter compiles")
	}
	if all, err := e.Filter(""); all != nil || err != nil {
		t.Errorf("no filter gives %v", err)
	}
}

// recency ranks by time, so the answer can be said without a model.
func TestScore(t *testing.T) {
	m, err := relevance.Builtin().Get("recency")
	if err != nil {
		t.Fatal(err)
	}
	f := loaded(t)
	q := Query{Entities: sample.Members()[:20], To: millrace.MaxTime, Limit: 50, Score: eval(t).Score(m)}
	got := f.Query(q)
	q.Score = func(c *Candidate, _ *millrace.Viewer, _ millrace.Time) float64 { return float64(c.Time) }
	want := f.Query(q)
	for i := range got.Items {
		got.Items[i].Score, want.Items[i].Score = 0, 0
	}
	if d := Diff(want.Items, got.Items); d != "" || len(got.Items) != 50 {
		t.Errorf("%d items by recency:\n%s", len(got.Items), d)
	}
}

// An answer of the whole is the merge of answers of any parts: the claim of
// ARCHITECTURE.md that lets brokers ask nodes for their top N alone.
func TestPartsMergeToTheWhole(t *testing.T) {
	f := loaded(t)
	score := func(c *Candidate, _ *millrace.Viewer, _ millrace.Time) float64 { return float64(len(c.ID) % 3) }
	for n := range 60 {
		q := Query{Entities: sample.Members()[n : n+100], To: millrace.MaxTime, Limit: 1 + n*n%97, Cap: n % 5, Distinct: n%2 == 0, Score: score}
		parts := make([]Query, 1+n%7)
		for i, e := range q.Entities {
			at := (i*7 + n) % len(parts)
			parts[at].Entities = append(parts[at].Entities, e)
		}
		var all []Item
		for _, p := range parts {
			part := q
			part.Entities = p.Entities
			all = append(all, spread(f.Query(part).Items)...)
		}
		if d := Diff(f.Query(q).Items, merge(all, &q)); d != "" {
			t.Fatalf("query %d in %d parts:\n%s", n, len(parts), d)
		}
	}
}

// spread makes candidates of items and of what they name as also.
func spread(items []Item) (all []Item) {
	for _, it := range items {
		all = append(all, Item{Rank: it.Rank, Object: it.Object})
		for _, a := range it.Also {
			all = append(all, Item{Rank: a, Object: it.Object})
		}
	}
	return all
}

// merge is what a broker does.
func merge(all []Item, q *Query) []Item {
	sortItems(all)
	if q.Distinct {
		return topObjects(all, q.Limit)
	}
	return all[:min(q.Limit, len(all))]
}

// The features of a record's object are those that its timeline's entity
// routes: of its own id, where it names no object.
func TestObjects(t *testing.T) {
	f := New()
	for _, line := range []string{
		`{"id":"post:1","actor":"member:1","verb":"post","created_at":1,"about":["member:2"]}`,
		`{"id":"share:1","actor":"member:1","verb":"share","created_at":2,"object":"post:1"}`,
		`{"id":"post:2","actor":"member:1","verb":"post","created_at":3}`,
	} {
		if err := f.Load(schemas.Activity(), []byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	for _, line := range []string{
		`{"entity":"member:1","subject":"post:1","updated_at":2,"followers":5}`,
		`{"entity":"member:1","subject":"post:1","updated_at":1,"followers":6}`,
		`{"entity":"member:2","subject":"post:1","updated_at":1,"followers":7}`,
	} {
		if err := f.Load(schemas.Features(), []byte(line)); err != nil {
			t.Fatal(err)
		}
	}
	m, err := relevance.Parse("m.yaml", []byte("name: m\nversion: \"1\"\nobject: millrace.Features\nfeatures: {f: 'coalesce(object.followers, -1)'}\nscorer: linear\nparameters: {weights: {f: 1}}\n"), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, it := range f.Query(Query{Entities: []millrace.Entity{"member:1", "member:2"}, To: millrace.MaxTime, Limit: 10, Score: eval(t).Score(m)}).Items {
		got[string(it.Entity)+" "+string(it.ID)] = it.Score
	}
	want := map[string]float64{"member:1 post:1": 5, "member:1 share:1": 5, "member:1 post:2": -1, "member:2 post:1": 7}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
