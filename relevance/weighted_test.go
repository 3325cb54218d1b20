package relevance

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/relevance/trees/trained"
	"github.com/millrace/millrace/relevance/weights"
)

const weightedSpec = `
name: weighted
version: "7"
schemas: [millrace.Activity]
viewer: {taste: double}
features:
  likes: log1p(record.likes)
  taste: viewer.taste * record.comments
  verb: record.verb
  level: record.shares
  code: lookup(codes, record.verb, 0.5)
scorer: logistic
parameters: {bias: 0.25, weights: {likes: 1.5, taste: 2, verb: {post: 1, share: 3}, level: {1: 4, 2.5: 5}, code: 6}, tables: {codes: {post: 7, like: 8}}}
`

// A model with other weights scores as the model that is written with them, bit
// for bit, generated or not, folded or not; and the model itself as before.
func TestWeightedIsTheModelOfThatPack(t *testing.T) {
	home, err := BuiltinSpec("home")
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(5, 6))
	var records []map[string]any
	for range 200 {
		records = append(records, map[string]any{
			"created_at": int64(r.IntN(1_000_000_000)), "verb": []string{"post", "share", "like", "a type that nobody knows"}[r.IntN(4)],
			"likes": r.IntN(50), "comments": r.IntN(9), "shares": r.IntN(4), "impressions": r.IntN(999), "language": []string{"de", "en"}[r.IntN(2)],
		})
	}
	rows := activities(t, ShippedSchemas()["millrace.Activity"].Layout, records...)
	viewer := &millrace.Viewer{ID: "v", Attributes: map[string]any{"languages": []string{"de"}}, Features: map[string]float64{"taste": 0.3}}
	for _, c := range []struct {
		spec    string
		set     map[string]float64
		written []string // of the spec, in turns what stands there and what in its place
	}{
		{string(home), map[string]float64{"recency": -0.1, "type.share": 1e-3, "engagement": 0}, []string{"recency: 4", "recency: -0.1", "share: 0.3", "share: 0.001", "engagement: 2", "engagement: 0"}},
		{weightedSpec, map[string]float64{"bias": -3}, []string{"bias: 0.25", "bias: -3"}},
		{weightedSpec, map[string]float64{"level.2.5": 0.1, "level.1": 0.7}, []string{"2.5: 5", "2.5: 0.1", "{1: 4", "{1: 0.7"}},
		{weightedSpec, map[string]float64{"tables.codes.post": 0.3, "code": 1. / 3}, []string{"{post: 7", "{post: 0.3", "code: 6", "code: 0.3333333333333333"}},
	} {
		m := parseSpec(t, c.spec)
		before := score(t, m, rows, viewer, 1_000_000_000)
		sealed := parseSpec(t, strings.NewReplacer(c.written...).Replace(c.spec))
		weighted, err := m.Weighted(c.set)
		if err != nil {
			t.Fatal(err)
		}
		want := score(t, sealed, rows, viewer, 1_000_000_000)
		for name, got := range map[string][]float64{
			"weighted": score(t, weighted, rows, viewer, 1_000_000_000), "interpreted": score(t, weighted.Interpreted(), rows, viewer, 1_000_000_000),
		} {
			for i := range got {
				if math.Float64bits(got[i]) != math.Float64bits(want[i]) {
					t.Fatalf("%v, %s: row %d scores %v, want %v", c.set, name, i, got[i], want[i])
				}
			}
		}
		moved := 0
		for i, x := range score(t, m, rows, viewer, 1_000_000_000) {
			if x != before[i] {
				t.Fatalf("%v has changed the model itself", c.set)
			}
			if x != want[i] {
				moved++
			}
		}
		if moved < 10 {
			t.Errorf("%v changes %d scores of 200: the test tries too little", c.set, moved)
		}
		a, err := weighted.BindFold(rows.Layout(), nil)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := sealed.BindFold(rows.Layout(), nil)
		if (a == nil) != (b == nil) {
			t.Error("one folds and the other does not")
		}
		if a != nil {
			x, y := make([]float64, 1), make([]float64, 1)
			a.Score(rows, []int32{3}, nil, x)
			if b.Score(rows, []int32{3}, nil, y); x[0] != y[0] {
				t.Errorf("folded %v, want %v", x, y)
			}
		}
	}
}

func parseSpec(t testing.TB, src string) *Model {
	t.Helper()
	m, err := Parse("spec.yaml", []byte(src), ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// What is no parameter is refused with the name that may be meant.
func TestWeightsOfWrongNames(t *testing.T) {
	m := parseSpec(t, weightedSpec)
	for name, wayOut := range map[string]string{
		"lieks": "did you mean likes?", "verb": "verb.post", "verb.pots": "did you mean verb.post?", "verb.": "verb.", "level.3": "did you mean level.1?", "likes.x": "likes",
		"tables.codes.pst": "did you mean tables.codes.post?", "tables.nosuch.a": "tables.codes.", "bais": "did you mean bias?", "": "known are", "codes.post": "tables.codes.post",
	} {
		_, err := m.Weighted(map[string]float64{"likes": 1, name: 2})
		var e *millrace.Error
		if !errors.As(err, &e) || e.Field != "weights" || e.Reason != millrace.ReasonUnknown || !strings.Contains(e.Detail, fmt.Sprintf("model weighted 7 has no parameter %q", name)) || !strings.Contains(e.WayOut, wayOut) {
			t.Errorf("%q: %v (%+v), want %q", name, err, e, wayOut)
		}
	}
	text := SpecText{Name: "spec.yaml", Text: []byte(strings.Replace(weightedSpec, "millrace.Activity", "nobody.Knows", 1))}
	for _, name := range []string{"likes", "bias", "verb.post", "level.2.5", "tables.codes.post", "verb", "nosuch", "level.3"} {
		_, want := m.Weighted(map[string]float64{name: 2})
		if got := text.CheckWeights(ID{Name: "weighted", Version: "7"}, map[string]float64{name: 2}); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v by the text, %v by the model", name, got, want)
		}
	}
	text.Text = []byte("scorer: liner\n")
	if err := text.CheckWeights(ID{}, nil); err == nil || !strings.Contains(err.Error(), `no scorer "liner"`) {
		t.Errorf("a text with a fault: %v", err)
	}
	models, err := trained.Models()
	if err != nil {
		t.Fatal(err)
	}
	var features, inputs []string
	for c := range trained.Columns {
		features, inputs = append(features, fmt.Sprintf("x%d: record.likes", c)), append(inputs, fmt.Sprintf("x%d", c))
	}
	spec := fmt.Sprintf("name: forest\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {%s}\nscorer: trees\ntrees: {model: model, class: 0, inputs: [%s]}\n", strings.Join(features, ", "), strings.Join(inputs, ", "))
	forest, err := SpecText{"spec.yaml", []byte(spec), func(string) ([]byte, error) { return models[0].File, nil }}.Parse(ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := forest.Weighted(map[string]float64{"x0": 1}); err == nil || !strings.Contains(err.Error(), "of trees, which have no weights") {
		t.Errorf("trees: %v", err)
	}
}

// A registry makes a model with other weights once, and keeps so many.
func TestRegistryKeepsWeighted(t *testing.T) {
	r, home := Builtin(), ID{Name: "home"}
	weighted := func(x float64) *Model {
		form := weights.Form(map[string]float64{"likes": x})
		m, err := r.Weighted(home, form, weights.Sum(form))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	first := weighted(0)
	if weighted(0) != first {
		t.Error("it is made twice")
	}
	if own, _ := r.Find(home); own == first {
		t.Error("it is the model itself")
	}
	if m, err := r.Weighted(home, "", ""); err != nil || m != builtinModel(t, "home") {
		t.Errorf("without weights: %v", err)
	}
	for i := range 2 * maxDerived {
		weighted(float64(i))
		if n := len(r.mu.derived); n > maxDerived {
			t.Fatalf("%d are kept", n)
		}
	}
	form := weights.Form(map[string]float64{"likes": 0.5})
	for what, bad := range map[string][2]string{
		"another checksum": {form, weights.Sum("x")}, "other text": {`{"likes": 0.5}`, weights.Sum(`{"likes": 0.5}`)}, "twice": {`{"likes":1,"likes":0.5}`, weights.Sum(`{"likes":1,"likes":0.5}`)},
		"no JSON": {"x", weights.Sum("x")}, "no checksum": {form, ""}, "no text": {"", weights.Sum(form)}, "more behind": {form + "{}", weights.Sum(form + "{}")},
		"large": {strings.Repeat("x", weights.MaxBytes+1), ""},
	} {
		if _, err := r.Weighted(home, bad[0], bad[1]); err == nil {
			t.Errorf("%s is taken", what)
		}
	}
	wrong := weights.Form(map[string]float64{"nosuch": 0.5})
	if _, err := r.Weighted(home, wrong, weights.Sum(wrong)); err == nil || !strings.Contains(err.Error(), `no parameter "nosuch"`) {
		t.Errorf("weights of another model: %v", err)
	}
	if _, err := r.Weighted(ID{"likes", "1", "x"}, form, weights.Sum(form)); err == nil || !strings.Contains(err.Error(), "no model likes 1") {
		t.Errorf("a model that is not here: %v", err)
	}
}
