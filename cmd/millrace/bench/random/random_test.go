package random

import (
	"math"
	"reflect"
	"strings"
	"testing"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/schemas"
)

// Every workload that is drawn can be brought to a cluster: its schema is
// accepted, its model sealed (which holds what is computed here against what
// Millrace computes, for a hundred records), its filter compiled, its records
// encoded.
func TestDrawsAreValid(t *testing.T) {
	met := map[string]int{}
	for seed := range uint64(25) {
		w := newWorld(seed, 100, 5, 1000)
		s, known, err := w.known()
		if err != nil {
			t.Fatalf("seed %d: schema: %v\n%s", seed, err, w.avsc())
		}
		if _, err := w.pack(known); err != nil {
			t.Fatalf("seed %d: model: %v\n%s", seed, err, w.spec())
		}
		r, err := schemas.NewRegistry(nil, nil)
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

// A seed draws the same workload each time.
func TestSeedDecides(t *testing.T) {
	a, b := newWorld(3, 200, 5, 2000), newWorld(3, 200, 5, 2000)
	if a.golang(false) != b.golang(false) || a.spec() != b.spec() || string(a.feed()) != string(b.feed()) || !reflect.DeepEqual(a.questions, b.questions) || !reflect.DeepEqual(a.log, b.log) {
		t.Error("the same seed draws two workloads")
	}
	if c := newWorld(4, 200, 5, 2000); c.golang(false) == a.golang(false) {
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

func TestValidate(t *testing.T) {
	err := (&Config{Seeds: -1, Entities: 5, Viewers: -1, Duration: -1}).Validate()
	for _, field := range []string{"seeds", "entities", "viewers", "duration"} {
		if err == nil || !strings.Contains(err.Error(), field+":") {
			t.Errorf("%s is not named: %v", field, err)
		}
	}
}
