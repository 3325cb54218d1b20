package query

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// TestFoldedEqualsFull asks with several models in turn of timelines that
// grow: what was kept never changes an answer.
func TestFoldedEqualsFull(t *testing.T) {
	defer func() { folding = true }()
	s := schemas.Activity()
	d, err := schemas.NewDecoder(s, s)
	if err != nil {
		t.Fatal(err)
	}
	keys, all := activities(t, 12, 7)
	home, err := relevance.Builtin().Get("home")
	if err != nil {
		t.Fatal(err)
	}
	recency, err := relevance.Builtin().Get("recency")
	if err != nil {
		t.Fatal(err)
	}
	models := []*relevance.Model{home, home.Interpreted(), recency}
	spec := question(t)
	spec.Limit = 40
	kept := map[cache.ModelID]int{}
	for round := range 120 {
		// Each model alone for a while, then in turn.
		spec.Model = models[(round/30+round%4/3*round)%len(models)]
		spec.From = asOf - millrace.Time(2000*(round%5)*(round%3))
		if round%3 == 0 {
			spec.From = 0
		}
		folding = false
		want := itemsOf(t, spec, keys, all)
		folding = true
		if got := itemsOf(t, spec, keys, all); !slices.Equal(got, want) {
			t.Fatalf("round %d, %s: got %s\nwant %s", round, spec.Model.Name(), got, want)
		}
		i := round % len(all)
		for _, m := range models {
			if all[i].Folded(cache.IDOf(m)) != nil {
				kept[cache.IDOf(m)]++
			}
		}
		body, err := s.EncodeJSON(fmt.Appendf(nil, `{"id":"new%d","actor":"a","verb":"post","created_at":%d,"language":"en","likes":%d,"impressions":90}`, round, int64(asOf-1), 1+round))
		if err != nil {
			t.Fatal(err)
		}
		k := held.keys[all[i]]
		if !held.Continue(k, s.Layout(), 1000, func(a *column.Appender) error { return d.Append(a, body) }) {
			t.Fatal("a timeline does not continue")
		}
		all[i] = heldAs(k)
		held.keys[all[i]] = k
	}
	for _, m := range models {
		if kept[cache.IDOf(m)] == 0 {
			t.Errorf("nothing was ever kept for %s (%p)", m.Name(), m)
		}
	}
}

// warm asks until what the question scores is folded.
func warm(t *testing.T, s Spec, keys []millrace.Timeline, all []*cache.Timeline) {
	t.Helper()
	for range 8 {
		if _, err := ask(t.Context(), s, keys, all); err != nil {
			t.Fatal(err)
		}
	}
}

// Two models by turns, over windows that keep few of a timeline's rows: both are
// folded, as far back as windows go, and further when one does. What is asked
// for once is not.
func TestFoldsFollowQuestions(t *testing.T) {
	defer func() { folding = true }()
	keys, all := activities(t, 12, 40)
	home, err := relevance.Builtin().Get("home")
	if err != nil {
		t.Fatal(err)
	}
	models := []*relevance.Model{home, home.Interpreted()}
	spec := question(t)
	check := func(want func(first int) bool) {
		t.Helper()
		for i, tl := range all {
			for _, m := range models {
				f := tl.Folded(cache.IDOf(m))
				if first := tl.First().FirstAt(int64(spec.From)); f == nil && first < 40 || f != nil && !want(int(f.First)-first) {
					t.Errorf("timeline %d, from row %d: %+v", i, first, f)
				}
			}
		}
		for _, m := range models {
			spec.Model = m
			folding = false
			want := itemsOf(t, spec, keys, all)
			folding = true
			if got := itemsOf(t, spec, keys, all); !slices.Equal(got, want) {
				t.Errorf("got %s\nwant %s", got, want)
			}
		}
	}
	spec.From, spec.Limit = asOf-10_000, 100
	if _, err := ask(t.Context(), spec, keys, all); err != nil {
		t.Fatal(err)
	}
	for i, tl := range all {
		if tl.Folded(cache.IDOf(home)) != nil {
			t.Errorf("timeline %d is folded for one question", i)
		}
	}
	for _, from := range []millrace.Time{asOf - 10_000, asOf - 60_000} {
		spec.From = from
		for range 16 {
			for _, m := range models {
				spec.Model = m
				if _, err := ask(t.Context(), spec, keys, all); err != nil {
					t.Fatal(err)
				}
			}
		}
		check(func(beyond int) bool { return beyond == 0 })
	}
	spec.From = asOf - 30_000 // it is folded already
	check(func(beyond int) bool { return beyond <= 0 })
}

// A timeline is folded, as far back as a window goes, for the first question before which as
// many rows were scored whole as would be folded.
func TestWhenATimelineIsFolded(t *testing.T) {
	keys, all := activities(t, 1, 20) // one each second
	s := question(t)
	s.Filter = nil
	for i, c := range []struct {
		rows  int // in the window
		first int // the first row that is folded then; -1: none is
	}{{10, -1}, {10, 10}, {15, 10}, {15, 10}, {15, 10}, {15, 5}, {20, 5}, {20, 5}, {20, 5}, {20, 5}, {20, 0}} {
		s.From = asOf - millrace.Time(c.rows*1000)
		if _, err := ask(t.Context(), s, keys, all); err != nil {
			t.Fatal(err)
		}
		f := all[0].Folded(cache.IDOf(s.Model))
		if (f != nil) != (c.first >= 0) || f != nil && int(f.First) != c.first {
			t.Errorf("question %d for %d rows: %+v is folded, want from row %d on", i, c.rows, f, c.first)
		}
	}
}

// How many rows a filter lets through is told from a quarter at first and from what it has kept
// then, of late rather than long ago.
func TestShares(t *testing.T) {
	if n := new(plan).share(100); n != 100 {
		t.Errorf("without a filter %d of 100 rows are scored", n)
	}
	p := &plan{filter: &filter.Bound{}}
	for _, c := range []struct {
		rows, kept int // that the filter sees
		of         int32
		want       uint32
	}{
		{0, 0, 1, 1}, {0, 0, 101, 26}, {1024, 1024, 101, 1 + 100*1280/2048}, {1<<20 - 1024, 0, 1025, 1 + 1024*1280/(1<<20+1024)},
		{1, 0, 1025, 1 + 1024*(512+256)/(1<<19+1024)}, {1, 1, 1025, 2},
	} {
		p.tally(c.rows, c.kept)
		if n := p.share(c.of); n != c.want {
			t.Errorf("%d of %d rows kept, %+v: %d of %d are to be scored, want %d", p.kept, p.filtered, c, n, c.of, c.want)
		}
	}
	if p.filtered != 1<<19+1 || p.kept != 513 {
		t.Errorf("%d of %d rows were kept", p.kept, p.filtered)
	}
}

// What a filter drops nearly all of is folded late.
func TestFoldsCountWhatIsScored(t *testing.T) {
	keys, all := activities(t, 50, 40)
	spec := question(t)
	f, err := filter.Compile(`record.likes == 49`, expr.Env{Record: []*column.Layout{schemas.Activity().Layout()}})
	if err != nil {
		t.Fatal(err)
	}
	spec.Filter = f
	folded := func() (n int) {
		for _, tl := range all {
			if tl.Folded(cache.IDOf(spec.Model)) != nil {
				n++
			}
		}
		return n
	}
	for range 8 {
		if _, err := ask(t.Context(), spec, keys, all); err != nil {
			t.Fatal(err)
		}
	}
	if n := folded(); n > 0 {
		t.Errorf("%d timelines are folded after 8 questions that scored none of their records", n)
	}
	for range 60 {
		if _, err := ask(t.Context(), spec, keys, all); err != nil {
			t.Fatal(err)
		}
	}
	if n := folded(); n < len(all) {
		t.Errorf("%d of %d timelines are folded after 68 questions", n, len(all))
	}
}

func itemsOf(t *testing.T, s Spec, keys []millrace.Timeline, all []*cache.Timeline) []string {
	t.Helper()
	q := New(s)
	defer q.Release()
	for i, tl := range all {
		q.Add(keys[i], tl, column.Packed{})
	}
	if err := q.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	return printed(q.Answer().Items)
}
