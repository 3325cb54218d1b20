package relevance

import (
	"fmt"
	"math"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Features of objects are found by name, whichever layout they come in: whole numbers and
// times become doubles, and a field of any other type is missing.
func TestObjectsOfAnyLayout(t *testing.T) {
	layout := func(kinds ...column.Kind) *column.Layout {
		t.Helper()
		var fields []column.Field
		for i, k := range kinds {
			fields = append(fields, column.Field{Name: fmt.Sprint("f", i), Kind: k, Nullable: true})
		}
		l, err := column.NewLayout(fields)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	row := func(l *column.Layout) *column.Slab {
		t.Helper()
		a := column.New(l, 1, 0).Append()
		r := a.Begin()
		for i, f := range l.Fields() {
			switch f.Kind {
			case column.Bool:
				r.SetBool(i, true)
			case column.Int, column.Time:
				r.SetInt(i, 7)
			case column.Double:
				r.SetDouble(i, 0.5)
			case column.String:
				r.SetString(i, []byte("a text of many letters"))
			case column.Doubles:
				r.SetDoubles(i, []float64{1, 2.5})
			case column.Strings:
				r.SetStrings(i, []string{"a", "b"})
			}
		}
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
		return a.Slab()
	}
	read := layout(column.Double, column.Bool, column.String, column.Doubles, column.Strings)
	objects := NewObjects(read)
	for range 2 {
		for _, l := range []*column.Layout{
			layout(column.Double, column.Bool, column.String, column.Doubles, column.Strings), layout(column.Int, column.Bool), layout(column.Time, column.String, column.Bool, column.Strings, column.Doubles),
			layout(column.String, column.Double, column.Doubles, column.String, column.Int), layout(column.Bool, column.Int, column.Time, column.Double),
		} {
			if err := objects.Add(row(l), 0); err != nil {
				t.Fatal(err)
			}
		}
		objects.AddNone()
		s := objects.Slab()
		var got []string
		for i := range s.Len() {
			var all []string
			for c, f := range read.Fields() {
				switch {
				case s.Null(c, i):
					all = append(all, "-")
				case f.Kind == column.Double:
					all = append(all, fmt.Sprint(math.Float64frombits(s.Word(c, i))))
				case f.Kind == column.Bool:
					all = append(all, fmt.Sprint(s.Word(c, i) != 0))
				case f.Kind == column.String:
					all = append(all, s.StringAt(c, i))
				case f.Kind == column.Doubles:
					all = append(all, fmt.Sprint(s.DoublesAt(nil, c, i)))
				case f.Kind == column.Strings:
					all = append(all, fmt.Sprint(s.StringsAt(nil, c, i)))
				}
			}
			got = append(got, fmt.Sprint(all))
		}
		if want := "[[0.5 true a text of many letters [1 2.5] [a b]] [7 true - - -] [7 - - - -] [- - - - -] [- - - - -] [- - - - -]]"; fmt.Sprint(got) != want {
			t.Errorf("%s, want %s", got, want)
		}
		objects.Reset()
		if n := objects.Slab().Len(); n != 0 {
			t.Errorf("%d rows after a reset", n)
		}
	}
}

// The schemas of a registry stand beside those that every binary has.
func TestSchemasOfARegistry(t *testing.T) {
	s, err := schemas.Parse([]byte(`{"type":"record","name":"Visit","namespace":"shop","fields":[
	 {"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},
	 {"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"}]}`))
	if err != nil {
		t.Fatal(err)
	}
	r, err := registry.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Admit(s); err != nil {
		t.Fatal(err)
	}
	all := SchemasOf(r.Snapshot())
	if len(all) != len(ShippedSchemas())+1 || all["shop.Visit"].Layout == nil || all["shop.Visit"].Family.Name() != "shop.Visit" || all["millrace.Activity"].Layout != ShippedSchemas()["millrace.Activity"].Layout {
		t.Errorf("%v", all.names())
	}
	if _, there := ShippedSchemas()["shop.Visit"]; there {
		t.Error("what ships has one more")
	}
}

// A scorer that let its memory go scores as before once it is bound again, with generated code
// or without, whole and folded; and no record at all is scored too.
func TestScorersLetGo(t *testing.T) {
	l := ShippedSchemas()["millrace.Activity"].Layout
	rows := activities(t, l, map[string]any{"verb": "post", "likes": 3, "language": "en", "created_at": 1000}, map[string]any{"verb": "share", "likes": 9, "created_at": 2000})
	viewer := &millrace.Viewer{ID: "v", Attributes: map[string]any{"languages": []string{"en"}, "types": []string{"post"}, "country": "de"}}
	for _, m := range []*Model{builtinModel(t, "home"), builtinModel(t, "home").Interpreted()} {
		want := score(t, m, rows, viewer, 5000)
		fold, err := m.BindFold(l, nil)
		if err != nil {
			t.Fatal(err)
		}
		own, sel := make([]float64, 2), []int32{0, 1}
		fold.Score(rows, sel, nil, own)
		s, err := m.Bind(l, nil, viewer, 5000)
		if err != nil {
			t.Fatal(err)
		}
		out := make([]float64, 2)
		for range 3 {
			s.ScoreFolded(own, rows, sel, nil, out)
			if out[0] != want[0] || out[1] != want[1] {
				t.Errorf("%s, folded: %v, want %v", s.Execution(), out, want)
			}
			s.Score(rows, nil, nil, nil)
			s.Score(rows, sel, nil, out)
			if out[0] != want[0] || out[1] != want[1] {
				t.Errorf("%s: %v, want %v", s.Execution(), out, want)
			}
			if e := s.Explain(rows, 1, nil); e.Score != want[1] {
				t.Errorf("%s explains %v, want %v", s.Execution(), e.Score, want[1])
			}
			if s.LetGo(); len(s.args.Strings) > 0 && s.args.Strings[0] != "" || s.folded != nil && len(s.folded.args.Strings) > 0 && s.folded.args.Strings[0] != "" || s.explainer != nil {
				t.Errorf("%s keeps texts of the request", s.Execution())
			}
			if err := s.Rebind(viewer, 5000); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Trees are the cost of the model that has them.
func TestSharesOfTrees(t *testing.T) {
	m, err := SpecText{"spec.yaml", []byte("name: f\nversion: 1\nschemas: [millrace.Activity]\nfeatures: {a: record.likes, b: record.shares}\nscorer: trees\ntrees: {model: one}\n"), func(string) ([]byte, error) { return []byte(stumps(1, "regression")), nil }}.Parse(ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	linear := parseSpec(t, "name: l\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {a: record.likes, b: record.shares}\nscorer: linear\nparameters: {weights: {a: 1, b: 1}}\n")
	if m.Cost() != linear.Cost()+1 {
		t.Errorf("a tree of one split costs %d more", m.Cost()-linear.Cost())
	}
	// Both read the same two fields, half each, and add up two features; the trees take a step.
	if got, want := Join(m, linear).Shares(), 5./9; math.Abs(got[0]-want) > 1e-12 || math.Abs(got[0]+got[1]-1) > 1e-12 {
		t.Errorf("the shares are %v, want %v for the trees", got, want)
	}
}
