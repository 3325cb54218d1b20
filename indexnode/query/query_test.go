package query

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

const asOf = 1_700_000_000_000

// held is the cache that timelines of tests stand in, each under a key of its
// own. Those of tests, not of benchmarks, are in keys.
var held struct {
	*cache.Cache
	n    int
	keys map[*cache.Timeline]millrace.Timeline
}

func hold(t testing.TB, slab *column.Slab) *cache.Timeline {
	t.Helper()
	if held.Cache == nil {
		held.Cache, held.keys = cache.New(cache.Config{}), make(map[*cache.Timeline]millrace.Timeline)
	}
	tl, err := cache.NewTimeline(millrace.MinTime, slab)
	if err != nil {
		t.Fatal(err)
	}
	k := millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("held:", held.n)), Type: "post"}
	held.n++
	held.Fill(k, tl)
	tl = heldAs(k)
	if _, test := t.(*testing.T); test { // the collector marks these
		held.keys[tl] = k
	}
	return tl
}

func heldAs(k millrace.Timeline) *cache.Timeline {
	r := held.Reader()
	defer r.Leave() // it stays until it is replaced
	return r.Peek(k)
}

// activities returns timelines of activities, as a cache holds them.
func activities(t testing.TB, timelines, rows int) (keys []millrace.Timeline, all []*cache.Timeline) {
	t.Helper()
	s := schemas.Activity()
	d, err := schemas.NewDecoder(s, s)
	if err != nil {
		t.Fatal(err)
	}
	for i := range timelines {
		key := millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"}
		a := column.New(s.Layout(), rows, rows*120).Append()
		for j := range rows {
			body, err := s.EncodeJSON(fmt.Appendf(nil, `{"id":"%d/%d","actor":%q,"verb":"post","created_at":%d,"object":"o%d","language":%q,"text":"About photos","likes":%d,"comments":%d,"impressions":%d}`,
				i, j, key.Entity, asOf-int64((rows-j)*1000*(1+i%500)), (i*j)%7, [...]string{"en", "de", "zh"}[(i+j)%3], (i*31+j)%50, j%4, i%900))
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Append(a, body); err != nil {
				t.Fatal(err)
			}
		}
		keys, all = append(keys, key), append(all, hold(t, a.Slab()))
	}
	return keys, all
}

// question is a usual one: a filter that most pass, the home model.
func question(t testing.TB) Spec {
	t.Helper()
	m, err := relevance.Builtin().Get("home")
	if err != nil {
		t.Fatal(err)
	}
	f, err := filter.Compile(`record.language in ["en", "de"] && record.likes >= 1`, expr.Env{Record: []*column.Layout{schemas.Activity().Layout()}})
	if err != nil {
		t.Fatal(err)
	}
	return Spec{To: asOf, AsOf: asOf, Filter: f, Model: m, Viewer: &millrace.Viewer{ID: "member:1"}, Limit: 20, Folds: held.Cache}
}

// ask goes from resolved keys to a ranked answer.
func ask(ctx context.Context, s Spec, keys []millrace.Timeline, all []*cache.Timeline) (n int, err error) {
	q := New(s)
	defer q.Release()
	for i, tl := range all {
		q.Add(keys[i], tl, column.Packed{})
	}
	if err := q.Scan(ctx); err != nil {
		return 0, err
	}
	return len(q.Answer().Items), nil
}

// A warm query allocates nothing, whoever asks and when.
func TestAWarmQueryAllocatesNothing(t *testing.T) {
	keys, all := activities(t, 100, 20)
	for name, change := range map[string]func(*Spec){
		"plain":    func(*Spec) {},
		"distinct": func(s *Spec) { s.DistinctObjects = true },
		"cap":      func(s *Spec) { s.Cap = 2 },
	} {
		s := question(t)
		change(&s)
		other := s
		other.Viewer = &millrace.Viewer{ID: "member:2", Attributes: map[string]any{"languages": []string{"de", "en"}, "country": "India"}}
		other.AsOf += 1000
		warm(t, s, keys, all)
		warm(t, other, keys, all)
		if n := testing.AllocsPerRun(20, func() {
			for _, s := range []*Spec{&s, &other} {
				if n, err := ask(t.Context(), *s, keys, all); n == 0 || err != nil {
					t.Fatal(n, err)
				}
			}
		}); n > 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// Questions of all kinds after one another find what those before them bound,
// and answer as if they were the first.
func TestPlansOfEarlierQuestions(t *testing.T) {
	keys, all := activities(t, 20, 20)
	r := rand.New(rand.NewPCG(4, 4))
	home, err := relevance.Builtin().Get("home")
	if err != nil {
		t.Fatal(err)
	}
	recency, err := relevance.Builtin().Get("recency")
	if err != nil {
		t.Fatal(err)
	}
	filters := []*filter.Filter{nil}
	for _, src := range []string{`record.likes > 3`, `record.language in viewer.languages`, `as_of - record.created_at < duration("20m") && record.likes > 1`, `viewer.strict == true || record.likes != 4`} {
		f, err := filter.Compile(src, expr.Env{Record: []*column.Layout{schemas.Activity().Layout()}})
		if err != nil {
			t.Fatal(err)
		}
		filters = append(filters, f)
	}
	models := []*relevance.Model{home, recency, home.Interpreted()}
	viewers := []*millrace.Viewer{
		{ID: "a"}, {ID: "b", Attributes: map[string]any{"languages": []string{"de"}, "strict": true}},
		{ID: "c", Attributes: map[string]any{"languages": []string{"en", "zh"}, "strict": false}, Features: map[string]float64{"freshness_hours": 2}},
	}
	used := newQuery()
	for i := range 300 {
		s := question(t)
		s.Filter, s.Model, s.Viewer = filters[r.IntN(len(filters))], models[r.IntN(len(models))], viewers[r.IntN(len(viewers))]
		s.AsOf -= millrace.Time(r.IntN(3) * 600_000)
		answer := func(q *Query) []string {
			q.begin(s)
			for i, tl := range all {
				q.Add(keys[i], tl, column.Packed{})
			}
			if err := q.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			a := q.Answer()
			return append(printed(a.Items), fmt.Sprintf("%+v %s", a.Stages, a.Execution))
		}
		got, want := answer(used), answer(newQuery())
		if !slices.Equal(got, want) {
			t.Fatalf("question %d: %s\nas the first %s", i, got, want)
		}
		used.reset()
	}
	if len(used.spare) != maxSpare {
		t.Errorf("%d plans are kept", len(used.spare))
	}
}

func TestExpiredWorkStops(t *testing.T) {
	keys, all := activities(t, 1, 3*watchRows)
	q := New(question(t))
	defer q.Release()
	q.Add(keys[0], all[0], column.Packed{})
	if err := q.Scan(&endsAtSecondLook{Context: t.Context()}); !errors.Is(err, context.Canceled) || q.stages.Candidates > watchRows+batchRows {
		t.Errorf("after %d rows: %v", q.stages.Candidates, err)
	}
}

// A filter that takes long ends with its question, within a batch.
func TestExpiredFiltersStop(t *testing.T) {
	keys, all := activities(t, 1, batchRows)
	many := strings.Repeat(`record.text.contains("x") || `, 30) + "false"
	for _, src := range []string{`record.text.matches("([a-z ]?[a-z ]?){20}!") || record.text.matches("x")`, many} {
		s := question(t)
		var err error
		s.Filter, err = filter.Compile(src, expr.Env{Mode: expr.Filter, Record: []*column.Layout{schemas.Activity().Layout()}})
		if err != nil {
			t.Fatal(err)
		}
		q := New(s)
		q.Add(keys[0], all[0], column.Packed{})
		if err := q.Scan(&endsAtSecondLook{Context: t.Context()}); !errors.Is(err, context.Canceled) {
			t.Errorf("%.40s: %v", src, err)
		}
		q.Release()
		if src != many {
			continue
		}
		q = New(s)
		q.Add(keys[0], all[0], column.Packed{})
		if err := q.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := q.Beside(&endsAtSecondLook{Context: t.Context()}, relevance.Join(s.Model)); !errors.Is(err, context.Canceled) {
			t.Errorf("beside: %v", err)
		}
		q.Release()
	}
}

// So does a model that reads much of each record, within a batch: whether it scores
// the whole or what is kept of it, and beside another.
func TestExpiredScoringStops(t *testing.T) {
	keys, all := activities(t, 1, batchRows)
	var features, weights []string
	for i := range 2000 {
		features = append(features, fmt.Sprintf("f%d: record.text.contains(\"x%d\")", i, i))
		weights = append(weights, fmt.Sprintf("f%d: 1", i))
	}
	m, err := relevance.Parse("spec.yaml", fmt.Appendf(nil, "name: reads\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {%s}\nscorer: linear\nparameters: {weights: {%s}}\n", strings.Join(features, ", "), strings.Join(weights, ", ")), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	s := question(t)
	s.Filter, s.Model, s.Folds = nil, m, nil
	var seen watcher
	scan := func(ctx context.Context) (*Query, error) {
		q := New(s)
		t.Cleanup(q.Release)
		q.Watch(&seen)
		q.Add(keys[0], all[0], column.Packed{})
		return q, q.Scan(ctx)
	}
	if _, err := scan(&endsAtSecondLook{Context: t.Context()}); !errors.Is(err, context.Canceled) || seen.rows == 0 || seen.rows >= batchRows {
		t.Errorf("whole: after %d rows: %v", seen.rows, err)
	}
	seen = watcher{ends: errors.New("enough")}
	if _, err := scan(t.Context()); err != seen.ends || seen.rows == 0 || seen.rows >= batchRows {
		t.Errorf("its watcher has had enough after %d rows: %v", seen.rows, err)
	}
	seen = watcher{}
	s.Model, s.Folds = question(t).Model, nil
	q, err := scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.Beside(&endsAtSecondLook{Context: t.Context(), looks: 1}, relevance.Join(m)); !errors.Is(err, context.Canceled) {
		t.Errorf("beside: %v", err)
	}
	seen = watcher{ends: errors.New("enough")}
	q.WatchBeside(&seen)
	if _, err := q.Beside(t.Context(), relevance.Join(m)); err != seen.ends || seen.rows == 0 || seen.rows >= batchRows {
		t.Errorf("beside: its watcher has had enough after %d rows: %v", seen.rows, err)
	}
	seen = watcher{}
	s.Model, s.Folds = m, held.Cache
	kept := func() bool { return all[0].Folded(cache.IDOf(m)) != nil }
	for range 8 { // until it has paid to keep something
		if _, err := scan(&endsAtSecondLook{Context: t.Context(), looks: 1}); err == nil || kept() {
			t.Fatalf("kept: %v, though nobody waited: %v", kept(), err)
		}
	}
	if _, err := scan(t.Context()); err != nil || !kept() {
		t.Errorf("nothing was to be kept: %v", err)
	}
}

// So does what accounts for an answer, also within one long timeline.
func TestExpiredAccountsStop(t *testing.T) {
	for _, c := range []struct{ timelines, rows int }{{3, 20}, {1, 3 * batchRows}} {
		expiredAccountsStop(t, c.timelines, c.rows)
	}
}

func expiredAccountsStop(t *testing.T, timelines, rows int) {
	keys, all := activities(t, timelines, rows)
	q := New(question(t))
	defer q.Release()
	for i, tl := range all {
		q.Add(keys[i], tl, column.Packed{})
	}
	if err := q.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	q.Answer()
	for name, account := range map[string]func(context.Context) error{
		"Account": func(ctx context.Context) error { _, err := q.Account(ctx, "nothing"); return err },
		"Above":   func(ctx context.Context) error { _, err := q.Above(ctx, []millrace.Rank{{}}); return err },
	} {
		if err := account(t.Context()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		ends := &endsAtSecondLook{Context: t.Context()}
		if err := account(ends); !errors.Is(err, context.Canceled) || ends.looks != 2 {
			t.Errorf("%s: after %d looks: %v", name, ends.looks, err)
		}
	}
}

// watcher counts what is scored, and has had enough at once where ends is set.
type watcher struct {
	rows int
	ends error
}

func (w *watcher) Scored(rows, _ int, _ time.Duration) error {
	w.rows += rows
	return w.ends
}

func (*watcher) Processor() bool { return false }

// endsAtSecondLook is a context that ends while a query is at work.
type endsAtSecondLook struct {
	context.Context
	looks int
}

func (c *endsAtSecondLook) Err() error {
	if c.looks++; c.looks > 1 {
		return context.Canceled
	}
	return nil
}

// Where a timeline has several parts each row is found in its own.
func TestTimelinesOfSeveralParts(t *testing.T) {
	keys, whole := activities(t, 30, 20)
	var parted []*cache.Timeline
	for _, tl := range whole {
		var parts []*column.Slab
		for _, of := range [][2]int{{0, 7}, {7, 15}, {15, 20}} {
			s := column.New(tl.First().Layout(), of[1]-of[0], 0)
			s.Gather(tl.First(), of[0], of[1], nil)
			parts = append(parts, s)
		}
		tl, err := cache.NewTimeline(millrace.MinTime, parts...)
		if err != nil {
			t.Fatal(err)
		}
		parted = append(parted, tl)
	}
	for _, distinct := range []bool{false, true} { // of seven objects, so that all is scanned again
		s := question(t)
		s.DistinctObjects = distinct
		if got, want := itemsOf(t, s, keys, parted), itemsOf(t, s, keys, whole); len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("distinct %v: %s\nwant %s", distinct, got, want)
		}
	}
}
