package oracle

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/expr/celref"
)

// scores gives each record the score that the test says, 0 when it says none.
func scores(m map[millrace.RecordID]float64) Score {
	return func(c *Candidate, _ *millrace.Viewer, _ millrace.Time) float64 { return m[c.ID] }
}

func timeline(s string) millrace.Timeline {
	e, typ, _ := strings.Cut(s, "/")
	return millrace.Timeline{Entity: millrace.Entity(e), Type: millrace.ContentType(typ)}
}

func put(f *Feed, in, id string, at millrace.Time, object string) {
	f.Apply(timeline(in), millrace.Record{ID: millrace.RecordID(id), Time: at, Object: millrace.Object(object)})
}

// ask returns the answer as "id@entity/type+also,...".
func ask(f *Feed, q Query) string {
	if q.To == 0 {
		q.To = millrace.MaxTime
	}
	if q.Entities == nil {
		q.Entities = []millrace.Entity{"a", "b", "c", "a"}
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	if q.Score == nil {
		q.Score = scores(nil)
	}
	var out []string
	for _, it := range f.Query(q).Items {
		s := fmt.Sprintf("%s@%s", it.ID, it.Timeline)
		for _, a := range it.Also {
			s += fmt.Sprintf("+%s@%s", a.ID, a.Timeline)
		}
		out = append(out, s)
	}
	return strings.Join(out, " ")
}

func TestVersions(t *testing.T) {
	type change struct {
		version int64
		deleted bool
		time    millrace.Time
	}
	for name, c := range map[string]struct {
		changes []change
		want    millrace.Time // of the live record; 0 for none
	}{
		"one":                        {[]change{{0, false, 1}}, 1},
		"newer wins":                 {[]change{{1, false, 1}, {2, false, 2}}, 2},
		"older loses":                {[]change{{2, false, 2}, {1, false, 1}}, 2},
		"the first of one version":   {[]change{{1, false, 1}, {1, false, 2}}, 1},
		"deleted":                    {[]change{{1, false, 1}, {2, true, 2}}, 0},
		"deleted before it came":     {[]change{{2, true, 2}, {1, false, 1}}, 0},
		"deleted at its own version": {[]change{{0, false, 1}, {0, true, 2}}, 0},
		"before, at its own version": {[]change{{0, true, 2}, {0, false, 1}}, 0},
		"an older delete":            {[]change{{2, false, 1}, {1, true, 2}}, 1},
		"back again":                 {[]change{{1, true, 1}, {2, false, 2}}, 2},
		"deleted twice":              {[]change{{1, true, 1}, {1, true, 2}}, 0},
	} {
		f := New()
		for _, ch := range c.changes {
			f.Apply(timeline("a/post"), millrace.Record{ID: "r", Version: ch.version, Deleted: ch.deleted, Time: ch.time})
		}
		live := f.Live(timeline("a/post"))
		if c.want == 0 && len(live) == 0 && len(f.Timelines()) == 0 {
			continue
		}
		if len(live) != 1 || live[0].Time != c.want {
			t.Errorf("%s: live %v, want time %d", name, live, c.want)
		}
	}
}

func TestCandidates(t *testing.T) {
	f := New()
	for i, in := range []string{"a/post", "a/like", "b/post", "c/share", "d/post"} {
		put(f, in, fmt.Sprint("r", i), millrace.Time(10*i), "")
	}
	for _, c := range []struct {
		q    Query
		want string
	}{
		{Query{}, "r3@c/share r2@b/post r1@a/like r0@a/post"},
		{Query{Types: []millrace.ContentType{"post", "post"}}, "r2@b/post r0@a/post"},
		{Query{Types: []millrace.ContentType{"none"}}, ""},
		{Query{Entities: []millrace.Entity{"d", "x"}}, "r4@d/post"},
		{Query{From: 10, To: 30}, "r2@b/post r1@a/like"},
		{Query{From: 10, To: 10}, ""},
		{Query{Limit: 1}, "r3@c/share"},
	} {
		if got := ask(f, c.q); got != c.want {
			t.Errorf("%+v: %s, want %s", c.q, got, c.want)
		}
	}
}

func TestOrder(t *testing.T) {
	f := New()
	put(f, "a/post", "r1", 5, "")
	put(f, "a/post", "r2", 5, "")
	put(f, "b/post", "r1", 5, "") // the same record in three timelines
	put(f, "a/like", "r1", 5, "")
	put(f, "a/post", "new", 6, "")
	put(f, "a/post", "best", 1, "")
	put(f, "a/post", "nan", 9, "")
	put(f, "a/post", "minus", 8, "")
	put(f, "a/post", "zero", 4, "")
	s := scores(map[millrace.RecordID]float64{"best": 1, "nan": math.NaN(), "minus": math.Inf(-1), "zero": math.Copysign(0, -1)})
	want := "best@a/post new@a/post r1@a/like r1@a/post r1@b/post r2@a/post zero@a/post minus@a/post nan@a/post"
	if got := ask(f, Query{Score: s}); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The order said here and the order of the root package are one.
func TestOrderIsTheVocabularys(t *testing.T) {
	var ranks []millrace.Rank
	for _, score := range []float64{math.NaN(), math.Inf(1), 1, 0, math.Copysign(0, -1), -1, math.Inf(-1)} {
		for _, at := range []millrace.Time{0, 1} {
			for _, id := range []millrace.RecordID{"a", "a\x00", "b", "é"} {
				for _, in := range []string{"a/x", "a/y", "b/x"} {
					ranks = append(ranks, millrace.Rank{Score: score, Time: at, ID: id, Timeline: timeline(in)})
				}
			}
		}
	}
	for _, a := range ranks {
		for _, b := range ranks {
			if compareRanks(a, b) != a.Compare(b) {
				t.Errorf("%v and %v: %d here, %d in package millrace", a, b, compareRanks(a, b), a.Compare(b))
			}
		}
	}
}

func TestCap(t *testing.T) {
	f := New()
	put(f, "a/post", "a1", 9, "")
	put(f, "a/like", "a2", 8, "")
	put(f, "a/post", "a3", 7, "")
	put(f, "b/post", "b1", 6, "")
	put(f, "c/post", "c1", 5, "")
	if got, want := ask(f, Query{Cap: 2}), "a1@a/post a2@a/like b1@b/post c1@c/post"; got != want {
		t.Errorf("cap over types: %s, want %s", got, want)
	}
	if got, want := ask(f, Query{Cap: 1, Limit: 2}), "a1@a/post b1@b/post"; got != want {
		t.Errorf("cap before limit: %s, want %s", got, want)
	}
	if s := f.Query(Query{Entities: []millrace.Entity{"a", "b"}, To: 100, Cap: 1, Limit: 9, Score: scores(nil)}).Stages; s.Capped != 2 || s.Scored != 4 {
		t.Errorf("%+v, want 4 scored and 2 capped", s)
	}
}

func TestDistinct(t *testing.T) {
	f := New()
	put(f, "a/post", "x1", 20, "x")
	put(f, "b/post", "x1", 20, "x")
	put(f, "a/post", "y1", 18, "y")
	put(f, "a/like", "x2", 17, "x")
	put(f, "b/like", "x3", 16, "x")
	put(f, "c/like", "x4", 15, "x")
	put(f, "c/post", "z", 14, "")
	put(f, "c/like", "y2", 13, "y")
	put(f, "c/like", "z2", 12, "z") // about the record that is about itself
	for _, c := range []struct {
		limit int
		want  string
	}{
		{1, "x1@a/post"},
		{2, "x1@a/post+x1@b/post y1@a/post"},
		{3, "x1@a/post+x1@b/post+x2@a/like+x3@b/like y1@a/post z@c/post"},
		{4, "x1@a/post+x1@b/post+x2@a/like+x3@b/like y1@a/post+y2@c/like z@c/post+z2@c/like"},
	} {
		if got := ask(f, Query{Limit: c.limit, Distinct: true}); got != c.want {
			t.Errorf("limit %d:\ngot  %s\nwant %s", c.limit, got, c.want)
		}
	}
}

func TestFilterCounts(t *testing.T) {
	f := New()
	for i := range 15 {
		put(f, "a/post", fmt.Sprint(i), millrace.Time(i), "")
	}
	outcomes := []celref.Outcome{celref.True, celref.False, celref.Null, celref.Error, celref.NaN}
	filter := func(c *Candidate, v *millrace.Viewer, asOf millrace.Time) celref.Outcome {
		if v.ID != "me" || asOf != 7 {
			t.Errorf("viewer %q as of %d", v.ID, asOf)
		}
		return outcomes[min(int(c.Time), 14)*len(outcomes)/15]
	}
	a := f.Query(Query{Entities: []millrace.Entity{"a"}, From: 1, To: 15, AsOf: 7, Viewer: millrace.Viewer{ID: "me"}, Filter: filter, Score: scores(nil), Limit: 1})
	if want := (Stages{Candidates: 14, False: 3, Null: 3, Error: 3, NaN: 3, Scored: 2}); a.Stages != want {
		t.Errorf("%+v, want %+v", a.Stages, want)
	}
}

func TestFeatures(t *testing.T) {
	f := New()
	put(f, "a/post", "r", 1, "")
	put(f, "b/post", "s", 1, "")
	for _, version := range []int64{1, 3, 2} {
		f.ApplyFeatures("a", "a", millrace.Record{Version: version})
	}
	s := func(c *Candidate, _ *millrace.Viewer, _ millrace.Time) float64 {
		if c.Features == nil {
			return -1
		}
		return float64(c.Features.Version)
	}
	items := f.Query(Query{Entities: []millrace.Entity{"a", "b"}, To: 9, Score: s, Limit: 9}).Items
	if len(items) != 2 || items[0].Score != 3 || items[1].Score != -1 {
		t.Errorf("items %v, want scores 3 and -1", items)
	}
}

func TestDiff(t *testing.T) {
	rank := func(id string, score float64) millrace.Rank {
		return millrace.Rank{ID: millrace.RecordID(id), Score: score, Time: 7, Timeline: timeline("a/post")}
	}
	base := []Item{{Rank: rank("r", math.NaN()), Object: "o"}, {Rank: rank("s", 0), Object: "s", Also: []millrace.Rank{rank("t", 1)}}}
	same := slices.Clone(base)
	same[1].Score = math.Copysign(0, -1)
	same[0].Score = math.Float64frombits(0x7ff8000000000001)
	if d := Diff(base, same); d != "" {
		t.Errorf("equal answers differ:\n%s", d)
	}
	for name, c := range map[string]struct {
		change func(*Item)
		want   string
	}{
		"id":     {func(i *Item) { i.ID = "q" }, "(missing on the other side)"},
		"time":   {func(i *Item) { i.Time++ }, "00:00:00.008Z"},
		"type":   {func(i *Item) { i.Type = "like" }, `"a"/"like"`},
		"score":  {func(i *Item) { i.Score = 1e-300 }, "score 1e-300"},
		"bit":    {func(i *Item) { i.Score = math.SmallestNonzeroFloat64 }, "0000000000000001"},
		"object": {func(i *Item) { i.Object = "p" }, `object "p"`},
		"also":   {func(i *Item) { i.Also = nil }, `also "t"`},
	} {
		other := slices.Clone(base)
		c.change(&other[1])
		if d := Diff(base, other); !strings.Contains(d, c.want) || !strings.Contains(d, "item 1\n") || strings.Contains(d, "item 0\n") {
			t.Errorf("%s: the diff lacks %q:\n%s", name, c.want, d)
		}
	}
	if d := Diff(base, base[:1]); !strings.Contains(d, "want 2 items, got 1") || !strings.Contains(d, "got  nothing") {
		t.Errorf("a missing item:\n%s", d)
	}
	if d := Diff(base, []Item{base[1], base[0]}); !strings.Contains(d, "(item 1 on the other side)") {
		t.Errorf("another order:\n%s", d)
	}
	if d := Diff(make([]Item, 10), nil); !strings.Contains(d, "...") {
		t.Errorf("ten missing items:\n%s", d)
	}
}
