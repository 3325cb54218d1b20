package random

import (
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/schemas/registry"
)

// Every workload that is drawn can be brought to a cluster: its schema is
// accepted, its model sealed (which holds what is computed here against what
// Millrace computes, for a hundred records), its filter compiled, its records
// encoded.
func TestDrawsAreValid(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	met := map[string]int{}
	for seed := range uint64(25) {
		w := newWorld(seed, size{100, 5, 1000, 60})
		s, known, err := w.known()
		if err != nil {
			t.Fatalf("seed %d: schema: %v\n%s", seed, err, w.avsc())
		}
		if _, err := w.pack(known); err != nil {
			t.Fatalf("seed %d: model: %v\n%s", seed, err, w.spec())
		}
		r, err := registry.New(nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Admit(s); err != nil {
			t.Fatal(err)
		}
		for _, c := range w.filter {
			if _, err := filter.Compile(c.cel, filter.EnvOf(r.Snapshot())); err != nil {
				t.Fatalf("seed %d: filter: %v\n%s", seed, err, c.cel)
			}
		}
		for body, err := range w.bodies(s) {
			if err != nil || len(body.Avro) == 0 {
				t.Fatalf("seed %d: a record: %v", seed, err)
			}
		}
		if n := candidatesOf(w); n < 60 || n > 600 || math.Abs(n-w.mean) > 1e-6 {
			t.Errorf("seed %d: a mean question has %v candidates, counted as %v; want 60 to 600", seed, n, w.mean)
		}
		met[w.model.scorer]++
		for _, f := range w.fields {
			if f.parent != "" {
				met["nested"]++
			}
		}
		if w.cap > 0 {
			met["cap"]++
		}
		if w.distinct {
			met["distinct"]++
		}
		if len(w.log) > len(w.records) {
			met["versions"]++
		}
	}
	for _, what := range []string{"linear", "logistic", "trees", "nested", "cap", "distinct", "versions"} {
		if met[what] == 0 {
			t.Errorf("no workload has %s: %v", what, met)
		}
	}
}

// candidatesOf counts what a mean question meets, record by record.
func candidatesOf(w *world) float64 {
	n := 0
	for _, q := range w.questions {
		for _, x := range w.records {
			if slices.Contains(q.follows, x.entity) && slices.Contains(w.asked, x.kind) && x.at >= asOf-w.window.Milliseconds() {
				n++
			}
		}
	}
	return float64(n) / float64(len(w.questions))
}

// A seed draws the same workload each time.
func TestSeedDecides(t *testing.T) {
	a, b := newWorld(3, size{200, 5, 2000, 60}), newWorld(3, size{200, 5, 2000, 60})
	if a.golang(false) != b.golang(false) || a.spec() != b.spec() || string(a.feed()) != string(b.feed()) || !reflect.DeepEqual(a.questions, b.questions) || !reflect.DeepEqual(a.log, b.log) {
		t.Error("the same seed draws two workloads")
	}
	if c := newWorld(4, size{200, 5, 2000, 60}); c.golang(false) == a.golang(false) {
		t.Error("two seeds draw the same")
	}
}

func TestDiffers(t *testing.T) {
	want := func() []item { return []item{{"a", "o", 2, []string{"c"}}, {"b", "b", 1, nil}} }
	got := []*feedv1.Item{{Id: "a", Object: "o", Score: 2, Also: []*feedv1.Also{{Id: "c"}}}, {Id: "b", Object: "b", Score: 1 + 1e-12}}
	if diff := differs(want(), got); diff != "" {
		t.Errorf("equal answers differ: %s", diff)
	}
	for name, spoil := range map[string]func([]item) []item{
		"one less":       func(a []item) []item { return a[1:] },
		"two swapped":    func(a []item) []item { a[0], a[1] = a[1], a[0]; return a },
		"another score":  func(a []item) []item { a[1].Score += 1e-6; return a },
		"no number":      func(a []item) []item { a[1].Score = math.NaN(); return a },
		"another object": func(a []item) []item { a[1].Object = "x"; return a },
		"no also":        func(a []item) []item { a[0].Also = nil; return a },
	} {
		if differs(spoil(want()), got) == "" {
			t.Errorf("%s: it passes", name)
		}
	}
}

// An answer that comes again is the same, to the last bit.
func TestSame(t *testing.T) {
	first := func() []*feedv1.Item {
		return []*feedv1.Item{{Id: "a", Object: "o", Score: 2}, {Id: "b", Object: "b", Score: 1}}
	}
	if err := same(first(), first()); err != nil {
		t.Error(err)
	}
	for name, spoil := range map[string]func([]*feedv1.Item) []*feedv1.Item{
		"one less":       func(a []*feedv1.Item) []*feedv1.Item { return a[1:] },
		"another":        func(a []*feedv1.Item) []*feedv1.Item { a[1].Id = "x"; return a },
		"another object": func(a []*feedv1.Item) []*feedv1.Item { a[1].Object = "x"; return a },
		"another bit":    func(a []*feedv1.Item) []*feedv1.Item { a[1].Score = math.Nextafter(1, 2); return a },
	} {
		if same(first(), spoil(first())) == nil {
			t.Errorf("%s: it passes", name)
		}
	}
}

func TestValidate(t *testing.T) {
	err := (&Config{Seeds: -1, Entities: 5, Viewers: -1, Duration: -1}).Validate()
	for _, field := range []string{"seeds", "entities", "viewers", "duration"} {
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}
