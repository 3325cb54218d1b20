package query

import (
	"fmt"
	"math"
	"math/rand/v2"
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

// A class of age has the times of all records that are put into it.
func TestAgeOf(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	seen := map[uint8]bool{}
	for range 100_000 {
		now := r.Int64N(int64(millrace.MaxTime))
		at := min(max(now-r.Int64N(1<<r.IntN(48))+r.Int64N(1<<20), 0), int64(millrace.MaxTime))
		class := ageOf(now+1<<firstAge, at)
		seen[class] = true
		if from, to := timesOf(now, int(class)); float64(at) < from || to < float64(at) {
			t.Fatalf("at %d a record of %d is in class %d, which has %v to %v", now, at, class, from, to)
		}
	}
	if len(seen) < 50 {
		t.Errorf("only %d classes were seen", len(seen))
	}
}

// What is known of a class of age, in whatever order classes are met, is the bound of its
// times; and what is known of it and all that is older is no less than the bound of each
// of those, and no more than that of all their times together.
func TestBoundsOfAges(t *testing.T) {
	for _, weight := range []int{-6, 6} {
		m, err := relevance.Parse("m.yaml", fmt.Appendf(nil, "name: m\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures:\n  likes: record.likes\n  recency: decay(record.time, 36000.0)\nscorer: linear\nparameters: {bias: -100, weights: {likes: 1, recency: %d}}\n", weight), relevance.ShippedSchemas())
		if err != nil {
			t.Fatal(err)
		}
		l := schemas.Activity().Layout()
		s, err := m.Bind(l, nil, nil, asOf)
		if err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(8, 8))
		for range 100 {
			c := ceilings{of: s.Ceilings(l)}
			c.of.Limits(func(int) uint64 { return 7 })
			for range 5 {
				first := r.IntN(60)
				last := first + r.IntN(10)
				c.learn(asOf, first, last)
				for age := first; age <= last; age++ {
					if want := c.of.Of(timesOf(asOf, age)); c.byAge[age] != want {
						t.Fatalf("the bound of class %d is %v, want %v", age, c.byAge[age], want)
					}
					_, newest := timesOf(asOf, age)
					if all := c.of.Of(math.Inf(-1), newest); c.older[age] > all {
						t.Fatalf("the bound of class %d and of what is older is %v, and need not be more than %v", age, c.older[age], all)
					}
					for k := age; k < 90; k++ {
						if each := c.of.Of(timesOf(asOf, k)); c.older[age] < each {
							t.Fatalf("the bound of class %d and of what is older is %v, and of class %d alone %v", age, c.older[age], k, each)
						}
					}
				}
			}
		}
	}
}

// boosted scores what is old, and what the viewer lacks, above the rest.
const boosted = `
name: boosted
version: "1"
schemas: [millrace.Activity]
viewer: {hours: double, languages: list(string)}
features:
  recency: decay(record.time, coalesce(viewer.hours, 1.0) * 3600.0)
  likes: log1p(record.likes)
  shown: log1p(record.impressions) * clamp(record.likes - 9.0 * size(viewer.languages), 0.0, 2.0)
  young: age(record.time) < 600.0 && record.likes < 40.0
  foreign: "!(record.language in viewer.languages)"
scorer: logistic
parameters: {bias: -2, weights: {recency: -6, likes: 0.25, shown: 0.1, young: 0.75, foreign: -0.5}}
`

// TestBoundsLeaveNoneOut asks for the best of some thousands, with what is
// folded and so with bounds, and without: the answers are the same.
func TestBoundsLeaveNoneOut(t *testing.T) {
	defer func() { folding = true }()
	keys, all := activities(t, 300, 20)
	var models []*relevance.Model
	for _, name := range []string{"home", "recency"} {
		m, err := relevance.Builtin().Get(name)
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, m, m.Interpreted())
	}
	m, err := relevance.Parse("boosted.yaml", []byte(boosted), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	models = append(models, m)
	f, err := filter.Compile(`record.likes > 2`, expr.Env{Record: []*column.Layout{schemas.Activity().Layout()}})
	if err != nil {
		t.Fatal(err)
	}
	// Of half the timelines the entity has features, so that there are two plans,
	// of which the second meets rows when the worst of the best is known.
	features := someObjects(t, 1).First()
	r := rand.New(rand.NewPCG(5, 6))
	unscored := make([]int64, len(models))
	for i := range 40 * len(models) {
		s := question(t)
		s.Filter = []*filter.Filter{nil, s.Filter, f}[r.IntN(3)]
		s.Model = models[i/40]
		s.Limit = 1 + r.IntN(30)
		s.Cap, s.DistinctObjects = r.IntN(2)*r.IntN(4), r.IntN(3) == 0
		s.AsOf -= millrace.Time(r.IntN(3) * 3_000_000) // some records are of later
		s.Viewer = &millrace.Viewer{ID: "v", Attributes: map[string]any{"languages": []string{"de", "zh"}[:r.IntN(3)]}}
		if r.IntN(4) == 0 {
			s.Viewer.Features = map[string]float64{"freshness_hours": r.Float64() * 5, "hours": r.Float64() * 9}
		}
		split := r.IntN(2) * len(all) / 2
		answer := func(folded bool) ([]string, *Query) {
			folding = folded
			q := New(s)
			for i, tl := range all {
				if i < split {
					q.Add(keys[i], tl, column.Packed{})
				} else {
					q.Add(keys[i], tl, features)
				}
			}
			if err := q.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			a := q.Answer()
			return append(printed(a.Items), fmt.Sprintf("%+v %s", a.Stages, a.Execution)), q
		}
		want, q := answer(false)
		q.Release()
		got, q := answer(true)
		unscored[i/40] += q.unscored
		q.Release()
		if !slices.Equal(got, want) {
			at := 0
			for at < min(len(got), len(want)) && got[at] == want[at] {
				at++
			}
			t.Fatalf("question %d of %s, %+v, item %d: %s\nwithout bounds: %s", i, s.Model.Name(), s, at, got[at:], want[at:])
		}
	}
	for i, n := range unscored {
		if n == 0 {
			t.Errorf("%s: all was scored", models[i].Name())
		}
	}
}

// Bounds of a question before, whose viewer has less to gain, are not those of
// the next: a plan meets rows when another has told the worst of the best.
func TestBoundsOfEarlierQuestions(t *testing.T) {
	keys, all := activities(t, 300, 20)
	features := someObjects(t, 1).First()
	q := newQuery()
	s := question(t)
	warm(t, s, keys, all)
	for i, languages := range [][]string{nil, nil, {"de", "en"}} {
		s.Viewer = &millrace.Viewer{ID: "v", Attributes: map[string]any{"languages": languages}}
		answer := func(q *Query) []string {
			q.begin(s)
			for i, tl := range all {
				if i%2 == 0 {
					q.Add(keys[i], tl, column.Packed{})
				}
			}
			for i, tl := range all {
				if i%2 == 1 {
					q.Add(keys[i], tl, features)
				}
			}
			if err := q.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			return printed(q.Answer().Items)
		}
		if got, want := answer(q), answer(newQuery()); !slices.Equal(got, want) {
			t.Errorf("question %d: %s\nas the first: %s", i, got, want)
		}
		q.reset()
	}
}

// Few of many candidates are scored, and of many timelines none.
func TestMostAreNotScored(t *testing.T) {
	keys, all := activities(t, 1000, 20)
	s := question(t)
	warm(t, s, keys, all)
	for i := range 3 {
		if i == 2 {
			s.Filter = nil
		}
		q := New(s)
		for i, tl := range all {
			q.Add(keys[i], tl, column.Packed{})
		}
		if err := q.Scan(t.Context()); err != nil {
			t.Fatal(err)
		}
		if of := q.Answer().Stages.Scored; q.unscored < of*3/4 {
			t.Errorf("%d of %d are left out", q.unscored, of)
		}
		if q.beyonds < len(all)/4 {
			t.Errorf("%d timelines are left out", q.beyonds)
		}
		q.Release()
	}
}

// A timeline is not left out because its newest record, or what others have in
// a column, is far from the best.
func TestTimelinesThatStandOut(t *testing.T) {
	s := schemas.Activity()
	d, err := schemas.NewDecoder(s, s)
	if err != nil {
		t.Fatal(err)
	}
	const minute, day = 60_000, 86_400_000
	held := func(oldest, newest int64, comments int) *cache.Timeline {
		a := column.New(s.Layout(), 20, 0).Append()
		for j := range 20 {
			body, err := s.EncodeJSON(fmt.Appendf(nil, `{"id":"%d","actor":"a","verb":"post","created_at":%d,"likes":%d,"comments":%d,"impressions":9}`, j, asOf-newest-(oldest-newest)*int64(19-j)/19, j%7, comments*(19-j)/19))
			if err == nil {
				err = d.Append(a, body)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		return hold(t, a.Slab())
	}
	for name, c := range map[string]struct {
		recency float64
		last    *cache.Timeline
		beyond  int // timelines at least that are left out
	}{
		"old":      {-6, held(20*day, 0, 2), 0},
		"comments": {6, held(2*day, day, 100_000), 30},
	} {
		m, err := relevance.Parse("lonely.yaml", fmt.Appendf(nil, `
name: lonely
version: "1"
schemas: [millrace.Activity]
viewer: {weight: double}
features:
  likes: log1p(record.likes)
  recency: decay(record.time, 3600.0)
  comments: record.comments * coalesce(viewer.weight, 1.0)
scorer: linear
parameters: {weights: {likes: 0.01, recency: %v, comments: 0.0001}}
`, c.recency), relevance.ShippedSchemas())
		if err != nil {
			t.Fatal(err)
		}
		all := make([]*cache.Timeline, 50)
		for i := range all {
			if all[i] = held(2*minute, minute, 2); i > 15 && c.beyond > 0 {
				all[i] = held(2*day, day, 2)
			}
		}
		spec := Spec{To: asOf + 1, AsOf: asOf, Model: m, Viewer: &millrace.Viewer{}, Limit: 3, Folds: question(t).Folds}
		warm(t, spec, make([]millrace.Timeline, len(all)+1), append(all, c.last))
		for round := range 2 {
			q := New(spec)
			for i, tl := range append(all, c.last) {
				q.Add(millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("e", i)), Type: "post"}, tl, column.Packed{})
			}
			if err := q.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			if q.beyonds < c.beyond {
				t.Errorf("%s, round %d: %d timelines were left out", name, round, q.beyonds)
			}
			for _, it := range q.Answer().Items {
				if it.Entity != "e50" {
					t.Errorf("%s, round %d: %s is among the best", name, round, it.Timeline)
				}
			}
			q.Release()
		}
	}
}

// What is below every bound is left out, and what may reach it is not, however
// little the difference is.
func TestThresholdOfLogistic(t *testing.T) {
	m, err := relevance.Parse("boosted.yaml", []byte(boosted), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.Bind(schemas.Activity().Layout(), nil, &millrace.Viewer{}, asOf)
	if err != nil {
		t.Fatal(err)
	}
	c := s.Ceilings(schemas.Activity().Layout())
	for _, floor := range []float64{1, 0.999999, 0.5, 1e-9, 1e-300} {
		x := c.Threshold(floor)
		if below := 1 / (1 + math.Exp(-x)); below >= floor {
			t.Errorf("a sum of %v scores %v, not below %v", x, below, floor)
		}
		if floor <= 0.5 && 1/(1+math.Exp(-(x+2e-6*max(1, math.Abs(x))))) < floor*(1-1e-9) {
			t.Errorf("the threshold of %v is %v, and could be more", floor, x)
		}
	}
	for _, floor := range []float64{0, -1, math.NaN()} {
		if x := c.Threshold(floor); !math.IsInf(x, -1) {
			t.Errorf("of %v the threshold is %v", floor, x)
		}
	}
}
