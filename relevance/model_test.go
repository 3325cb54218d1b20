package relevance

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/document"
)

func TestBuiltinModelsAreGenerated(t *testing.T) {
	for name, layout := range map[string]string{"recency": "millrace.Activity", "home": "millrace.Activity"} {
		m := builtinModel(t, name)
		s, err := m.Bind(ShippedSchemas()[layout].Layout, nil, &millrace.Viewer{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Execution(); got != "generated" {
			t.Errorf("%s is %s", name, got)
		}
		fold, err := m.BindFold(ShippedSchemas()[layout].Layout, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := fold.Execution() + ", " + s.rest().Execution(); got != "generated, generated" {
			t.Errorf("the parts of %s are %s", name, got)
		}
	}
}

func builtinModel(t testing.TB, name string) *Model {
	t.Helper()
	m, err := Builtin().Get(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestUnknownModelNamesTheKnown(t *testing.T) {
	_, err := Builtin().Get("hoem")
	var e *millrace.Error
	if !errors.As(err, &e) || e.Field != "model" || e.Reason != millrace.ReasonUnknown || e.WayOut != "use one of home, recency" {
		t.Errorf("got %#v", err)
	}
}

// activities fills a slab of millrace.Activity with fields by name.
func activities(t testing.TB, layout *column.Layout, rows ...map[string]any) *column.Slab {
	t.Helper()
	a := column.New(layout, len(rows), 0).Append()
	for _, fields := range rows {
		r := a.Begin()
		for name, v := range fields {
			f := layout.Index(name)
			if f < 0 {
				t.Fatalf("no field %s", name)
			}
			switch v := v.(type) {
			case int:
				r.SetInt(f, int64(v))
			case int64:
				r.SetInt(f, v)
			case float64:
				r.SetDouble(f, v)
			case bool:
				r.SetBool(f, v)
			case string:
				r.SetString(f, []byte(v))
			case []float64:
				r.SetDoubles(f, v)
			case []string:
				r.SetStrings(f, v)
			case nil:
				r.SetNull(f)
			}
		}
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
	}
	return a.Slab()
}

func score(t testing.TB, m *Model, rows *column.Slab, viewer *millrace.Viewer, asOf millrace.Time) []float64 {
	t.Helper()
	s, err := m.Bind(rows.Layout(), nil, viewer, asOf)
	if err != nil {
		t.Fatal(err)
	}
	sel := make([]int32, rows.Len())
	for i := range sel {
		sel[i] = int32(i)
	}
	out := make([]float64, len(sel))
	s.Score(rows, sel, nil, out)
	return out
}

// TestRecency: the score is the time, for every schema, generated or not.
func TestRecency(t *testing.T) {
	times := []int64{0, 1, 1700000000000, int64(millrace.MaxTime)}
	for name, field := range map[string]string{"millrace.Activity": "created_at", "millrace.Note": "at"} {
		var records []map[string]any
		for _, at := range times {
			records = append(records, map[string]any{field: at})
		}
		rows := activities(t, ShippedSchemas()[name].Layout, records...)
		m := builtinModel(t, "recency")
		for _, m := range []*Model{m, m.Interpreted()} {
			got := score(t, m, rows, &millrace.Viewer{ID: "member:1"}, 5)
			for i, at := range times {
				if got[i] != float64(at) {
					t.Errorf("%s: time %d scores %v", name, at, got[i])
				}
			}
		}
	}
}

// TestHomePrefers holds what a member would expect of the home feed.
func TestHomePrefers(t *testing.T) {
	const now, hour int64 = 1_700_000_000_000, 3_600_000
	viewer := &millrace.Viewer{ID: "member:1", Attributes: map[string]any{
		"languages": []string{"en"}, "types": []string{"post"}, "country": "de",
	}}
	base := func() map[string]any {
		return map[string]any{"created_at": now - 5*hour, "verb": "post", "language": "en", "country": "de", "likes": 3}
	}
	for _, c := range []struct {
		field         string
		better, worse any
	}{
		{"created_at", now - hour, now - 2*hour},
		{"likes", 100, 10},
		{"comments", 5, 0},
		{"shares", 5, 0},
		{"verb", "post", "like"},
		{"language", "en", "fr"},
		{"country", "de", "us"},
	} {
		better, worse := base(), base()
		better[c.field], worse[c.field] = c.better, c.worse
		rows := activities(t, ShippedSchemas()["millrace.Activity"].Layout, better, worse)
		for _, v := range []*millrace.Viewer{viewer, {}} {
			s := score(t, builtinModel(t, "home"), rows, v, millrace.Time(now))
			if math.IsNaN(s[0]) || math.IsNaN(s[1]) || s[0] < s[1] {
				t.Errorf("%s: %v scores %v, %v scores %v", c.field, c.better, s[0], c.worse, s[1])
			}
			if v == viewer && s[0] == s[1] {
				t.Errorf("%s does not matter", c.field)
			}
		}
	}
}

// TestHomeWithoutCounters: a schema that lacks what the model speaks of.
func TestHomeWithoutCounters(t *testing.T) {
	rows := activities(t, ShippedSchemas()["millrace.Note"].Layout, map[string]any{"at": 1000, "kind": "post"}, map[string]any{"at": 2000, "kind": "post"})
	s := score(t, builtinModel(t, "home"), rows, nil, 86_400_000)
	if !(s[1] > s[0]) {
		t.Errorf("newer %v, older %v", s[1], s[0])
	}
}

func TestViewerOfAnotherTypeIsRefused(t *testing.T) {
	_, err := builtinModel(t, "home").Bind(ShippedSchemas()["millrace.Activity"].Layout, nil,
		&millrace.Viewer{Attributes: map[string]any{"languages": "en"}}, 0)
	var e *millrace.Error
	if !errors.As(err, &e) || e.Field != "viewer.languages" {
		t.Errorf("got %v", err)
	}
}

// After a viewer that is refused a scorer is as it was.
func TestAScorerSurvivesARefusedViewer(t *testing.T) {
	rows := activities(t, ShippedSchemas()["millrace.Activity"].Layout, map[string]any{"likes": 3})
	m := parseSpec(t, "name: m\nversion: \"1\"\nabout: what likes say\nschemas: [millrace.Activity]\nviewer: {a: double, w: list(double), s: string}\nfeatures: {a: viewer.a * record.likes, s: \"viewer.s == record.verb\", w: \"viewer.w[0] * record.likes\"}\nscorer: linear\nparameters: {weights: {a: 1, s: 0, w: 0}}\n")
	if m.Spec().About != "what likes say" {
		t.Errorf("it is about %q", m.Spec().About)
	}
	s, err := m.Bind(rows.Layout(), nil, &millrace.Viewer{Attributes: map[string]any{"a": 2.0, "w": []float64{1}}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	score := func() float64 {
		var out [1]float64
		s.Score(rows, []int32{0}, nil, out[:])
		return out[0]
	}
	if got := score(); got != 6 {
		t.Errorf("it scores %v", got)
	}
	for _, bad := range []map[string]any{{"a": "x"}, {"a": []string{}}, {"a": []float64{}}, {"s": []string{}}, {"w": []string{"x"}}, {"w": true}, {"s": 1.0}, {"a": 5.0, "s": true}, {"a": 7}} {
		if err := s.Rebind(&millrace.Viewer{Attributes: bad}, 0); err == nil {
			t.Errorf("%v is taken", bad)
		}
		if got := score(); got != 6 {
			t.Errorf("after %v it scores %v", bad, got)
		}
	}
	if err := s.Rebind(&millrace.Viewer{Attributes: map[string]any{"a": 3.0, "w": []float64{1}, "s": nil}}, 0); err != nil || score() != 9 {
		t.Errorf("then it scores %v: %v", score(), err)
	}
}

// An empty list is one of numbers and of strings: JSON does not say of what it is.
func TestAnEmptyListIsOfAnyKind(t *testing.T) {
	m, err := Parse("spec.yaml", []byte(`name: lists
version: "1"
schemas: [millrace.Activity]
viewer: {w: list(double), words: list(string)}
features: {near: "viewer.w[0] * record.likes", known: "record.verb in viewer.words"}
scorer: linear
parameters: {weights: {near: 1, known: 1}}
`), ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	for _, empty := range []any{[]string{}, []float64{}, []string(nil)} {
		for _, m := range []*Model{m, m.Interpreted()} {
			rows := activities(t, ShippedSchemas()["millrace.Activity"].Layout, map[string]any{"verb": "post", "likes": 2})
			got := score(t, m, rows, &millrace.Viewer{Attributes: map[string]any{"w": empty, "words": empty}}, 0)
			none := score(t, m, rows, &millrace.Viewer{Attributes: map[string]any{"w": []float64{}, "words": []string{}}}, 0)
			if math.Float64bits(got[0]) != math.Float64bits(none[0]) {
				t.Errorf("%T: %v, want %v", empty, got, none)
			}
		}
	}
}

func TestScoreDoesNotAllocate(t *testing.T) {
	rows := activities(t, ShippedSchemas()["millrace.Activity"].Layout, slices.Repeat([]map[string]any{{"verb": "a long content type", "likes": 2}}, 100)...)
	for _, m := range []*Model{builtinModel(t, "home"), builtinModel(t, "home").Interpreted()} {
		s, err := m.Bind(rows.Layout(), nil, &millrace.Viewer{}, 0)
		if err != nil {
			t.Fatal(err)
		}
		sel, out := make([]int32, 100), make([]float64, 100)
		if n := testing.AllocsPerRun(10, func() { s.Score(rows, sel, nil, out) }); n != 0 {
			t.Errorf("%s: %v allocations", s.Execution(), n)
		}
	}
}

// A file that is larger than it may be is read no further than that.
func TestFilesAreReadNoFurtherThanTheyMayBe(t *testing.T) {
	src := make([]byte, 100)
	fsys := fstest.MapFS{"f": {Data: src}}
	if got, err := readBounded(fsys, "f", 100); err != nil || len(got) != 100 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if got, err := readBounded(fsys, "f", 99); err == nil || len(got) > 100 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	if _, err := ParseFile(fstest.MapFS{"spec.yaml": {Data: bytes.Repeat([]byte("#\n"), document.MaxBytes)}}, "spec.yaml", ShippedSchemas()); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("a spec without end: %v", err)
	}
}
