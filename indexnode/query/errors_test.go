package query

import (
	"context"
	"errors"
	"fmt"
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

// failsAt is a watcher and a context, one of which fails at the n-th look.
type failsAt struct {
	context.Context
	looks, pieces, n int
	watched          bool // the watcher fails, not the context
}

var errEnough = errors.New("enough")

func (f *failsAt) Err() error {
	if f.looks++; !f.watched && f.looks >= f.n {
		return errEnough
	}
	return nil
}

func (f *failsAt) Scored(int, int, time.Duration) error {
	if f.pieces++; f.watched && f.pieces == f.n {
		return errEnough
	}
	return nil
}

func (*failsAt) Processor() bool { return false }

func (f *failsAt) failed() bool { return f.watched && f.pieces >= f.n || !f.watched && f.looks >= f.n }

// An error of the context or of the watcher ends a question wherever it is met: in every
// batch, while numbers are folded, when all is scanned again, beside, and in accounts.
func TestAnErrorEndsAQuestionAnywhere(t *testing.T) {
	var slabs []*column.Slab
	for i := range 8 {
		n := 40
		if i == 2 || i == 3 {
			n = batchRows + 300
		}
		lines := make([]string, n)
		for j := range lines {
			lines[j] = fmt.Sprintf(`{"id":"%d/%d","actor":"member:%d","verb":"post","created_at":%d,"object":"o%d","likes":%d}`, i, j, i, asOf-int64(n-j)*1000, j%3, j%5)
		}
		slabs = append(slabs, slabOf(t, schemas.Activity(), lines))
	}
	activities(t, 1, 1) // makes the cache
	s := question(t)
	s.Filter, s.DistinctObjects, s.Cap = nil, true, 1
	for name, begin := range map[string]func(ctx context.Context, q *Query) error{
		"Scan": func(ctx context.Context, q *Query) error { return q.Scan(ctx) },
		"Beside": func(ctx context.Context, q *Query) error {
			if err := q.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, err := q.Beside(ctx, relevance.Join(s.Model, s.Model.Interpreted()))
			return err
		},
		"Account": func(ctx context.Context, q *Query) error {
			if err := q.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, err := q.Account(ctx, "0/1")
			return err
		},
		"Above": func(ctx context.Context, q *Query) error {
			if err := q.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, err := q.Above(ctx, []millrace.Rank{{}})
			return err
		},
	} {
		for _, watched := range []bool{false, true} {
			if watched && (name == "Account" || name == "Above") {
				continue
			}
			for n := 1; ; n++ {
				// Half of the timelines are folded, and the others are when the question comes.
				var keys []millrace.Timeline
				var all []*cache.Timeline
				for i, slab := range slabs {
					keys = append(keys, millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"})
					all = append(all, hold(t, slab))
					all[i].Owe(1 << 20)
				}
				var err error // one is of two parts
				if all[3], err = cache.NewTimeline(millrace.MinTime, slabs[3].Rows(0, 700), slabs[3].Rows(700, slabs[3].Len())); err != nil {
					t.Fatal(err)
				}
				if _, err := ask(t.Context(), s, keys[4:], all[4:]); err != nil || all[7].Folded(cache.IDOf(s.Model)) == nil {
					t.Fatal("nothing is folded", err)
				}
				q := newQuery()
				q.begin(s)
				for _, i := range []int{4, 5, 0, 1, 2, 3, 6, 7} {
					q.Add(keys[i], all[i], column.Packed{})
				}
				f := &failsAt{Context: t.Context(), n: n, watched: watched}
				if name == "Beside" {
					q.WatchBeside(f)
				} else {
					q.Watch(f)
				}
				err = begin(f, q)
				if !f.failed() {
					if err != nil || n < 3 {
						t.Fatalf("%s: %d looks, %v", name, n, err)
					}
					if all[0].Folded(cache.IDOf(s.Model)) == nil {
						t.Errorf("%s: nothing was folded", name)
					}
					break
				}
				if !errors.Is(err, errEnough) {
					t.Fatalf("%s, watched %v: what fails at look %d ends with %v", name, watched, n, err)
				}
				if name == "Scan" && n%3 == 0 { // the memory of a question that has failed serves the next
					q.reset()
					q.begin(s)
					for i, tl := range all {
						q.Add(keys[i], tl, column.Packed{})
					}
					if err := q.Scan(t.Context()); err != nil {
						t.Fatal(err)
					}
					folding = false
					want := itemsOf(t, s, keys, all)
					folding = true
					differ(t, "after a failure", printed(q.Answer().Items), want)
					differ(t, "by what was folded after a failure", itemsOf(t, s, keys, all), want)
				}
			}
		}
	}
}

// A viewer's value of a type that no value may have is refused, by the filter and by each
// model, whether they were bound to a question before or not.
func TestStrangeValuesOfViewersAreRefused(t *testing.T) {
	keys, all := activities(t, 2, 5)
	plain := relevance.Join(question(t).Model)
	m, err := relevance.Parse("m.yaml", []byte("name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {x: double}\nfeatures: {f: record.likes * viewer.x}\nscorer: linear\nparameters: {weights: {f: 1}}\n"), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	f, err := filter.Compile(`viewer.x == 1.0 || record.likes >= 0`, expr.Env{Record: []*column.Layout{schemas.Activity().Layout()}})
	if err != nil {
		t.Fatal(err)
	}
	good, bad := &millrace.Viewer{Attributes: map[string]any{"x": 1.0}}, &millrace.Viewer{Attributes: map[string]any{"x": struct{}{}}}
	refused := func(what string, err error) {
		t.Helper()
		if e := (*millrace.Error)(nil); !errors.As(err, &e) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for name, change := range map[string]func(*Spec){
		"filter":           func(s *Spec) { s.Filter = f },
		"filter by clause": func(s *Spec) { s.Filter, s.Explain = f, true },
		"model":            func(s *Spec) { s.Model = m },
	} {
		q := newQuery()
		for round, viewer := range []*millrace.Viewer{bad, good, bad, good} {
			s := question(t)
			s.Filter = nil
			change(&s)
			s.Viewer = viewer
			q.begin(s)
			for i, tl := range all {
				q.Add(keys[i], tl, column.Packed{})
			}
			err := q.Scan(t.Context())
			if viewer == good && err != nil {
				t.Errorf("%s, round %d: %v", name, round, err)
			} else if viewer == bad {
				refused(name, err)
			}
			if viewer == good {
				q.spec.Viewer = bad
				_, err := q.Account(t.Context(), "0/1")
				refused(name+", Account", err)
				_, err = q.Above(t.Context(), []millrace.Rank{{}})
				refused(name+", Above", err)
			}
			q.reset()
		}
	}
	s := question(t)
	s.Viewer, s.Shadow = bad, relevance.Join(s.Model, m)
	q := New(s)
	defer q.Release()
	q.Add(keys[0], all[0], column.Packed{})
	if err := q.Scan(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, it := range q.Answer().Items {
		refused("shadow", it.Shadow.Err)
	}
	_, err = q.Beside(t.Context(), relevance.Join(m))
	refused("Beside", err)
	if beside, err := q.Beside(t.Context(), plain); err != nil || !slices.Equal(printed(beside[0]), printed(q.Answer().Items)) {
		t.Errorf("after it: %v, %v", beside, err)
	}
}

// A query knows whether it was a model that panicked, once, and a shadow model that panics
// has no scores.
func TestPanicsOfModels(t *testing.T) {
	keys, all := activities(t, 1, 5)
	s := question(t)
	s.Filter, s.Features, s.Shadow = nil, true, relevance.Join(&relevance.Model{})
	q := newQuery()
	q.begin(s)
	q.Add(keys[0], all[0], column.Packed{})
	if err := q.Scan(t.Context()); err != nil || q.Scoring() {
		t.Fatal(err, "or it is scoring still")
	}
	for _, it := range q.Answer().Items {
		if it.Shadow.Scores != nil || it.Shadow.Err == nil || !strings.Contains(it.Shadow.Err.Error(), "panicked") {
			t.Errorf("%+v", it.Shadow)
		}
	}
	q.account(&Item{}, q.segment(0), 0)
	if _, err := q.Above(t.Context(), nil); err != nil || q.Scoring() {
		t.Error(err, "or it is scoring still")
	}
	panics := func(f func()) {
		defer func() {
			if recover() == nil {
				t.Error("it does not panic")
			}
		}()
		f()
	}
	for name, of := range map[string]struct {
		by    func()
		model bool
	}{
		"scores":       {func() { q.count(&q.spent, func() { panic("no") }) }, true},
		"told":         {func() { q.account(nil, q.segment(0), 0) }, true},
		"of an answer": {func() { q.admit(candidate{segment: 99}) }, false},
		"accounts": {func() {
			q.places[0].hi = 1000 // rows that are not there
			q.Above(t.Context(), nil)
		}, true},
		"the row of an account": {func() {
			q.places[0].hi = 1000
			q.Account(t.Context(), "nothing")
		}, false},
	} {
		panics(of.by)
		if first, second := q.Scoring(), q.Scoring(); first != of.model || second {
			t.Errorf("%s: a model was running: %v, and then %v", name, first, second)
		}
	}
	panics(func() { q.count(&q.spent, func() { panic("no") }) })
	if q.reset(); q.Scoring() {
		t.Error("the next question begins as one that panicked")
	}
}
