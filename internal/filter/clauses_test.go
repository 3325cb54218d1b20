package filter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/expr/celref"
)

// The clause that drops a row is the one that cel-go's evaluator finds, clause
// by clause, in the sources that the filter gives of itself; and clauses count
// what the filter counts.
func TestClauses(t *testing.T) {
	filters := 2000
	if testing.Short() {
		filters = 300
	}
	met := map[string]int{}
	for seed := range filters {
		r := rand.New(rand.NewPCG(uint64(seed), 43))
		w := newWorld(t, r, 12)
		var terms []string
		for range 1 + seed%3 {
			terms = append(terms, source{r}.bool(seed%4))
		}
		src := "(" + strings.Join(terms, ") && (") + ")"
		if len(src) > expr.MaxSourceBytes/2 {
			continue
		}
		f, err := Compile(src, w.env)
		if err != nil {
			t.Fatalf("%s\n%v", src, err)
		}
		sources := f.Sources()
		refs := w.sameTree(t, f, sources)
		c, err := f.BindClauses(w.layout, w.layout, w.viewer, asOf)
		if err != nil {
			t.Fatal(err)
		}
		b, err := f.Bind(w.layout, w.layout, w.viewer, asOf)
		if err != nil {
			t.Fatal(err)
		}
		b.Select(w.slab, 0, w.slab.Len(), w.entity, nil)
		counting, err := f.BindCounting(w.layout, w.layout, w.viewer, asOf)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // bound, and bound again
			if err := counting.Rebind(w.viewer, asOf); err != nil {
				t.Fatal(err)
			}
			counting.Select(w.slab, 0, w.slab.Len(), w.entity, nil)
		}
		byClause := make([]Counts, f.Clauses())
		var all []int32
		for i := range w.rows {
			all = append(all, int32(i))
		}
		var counts Counts
		for i, got := range c.Judge(w.slab, all, w.entity) {
			counts.Add(got.Outcome)
			byClause[got.Clause].Add(got.Outcome)
			met[got.Outcome.String()]++
			if want := w.dropped(refs, i); got != want {
				t.Fatalf("%s\nrow %v\nentity %v\nviewer %+v\ngot %v, cel-go says %v", strings.Join(sources, "\n"), w.rows[i], w.entities, w.viewer, got, want)
			}
		}
		if counts != b.Counts() {
			t.Fatalf("%s\nclauses count %+v, the filter %+v", src, counts, b.Counts())
		}
		for i, want := range byClause {
			if got := counting.ClauseCounts(i); got != want {
				t.Fatalf("%s\nclause %d counts %+v, want %+v", src, i, got, want)
			}
		}
	}
	for o := range NaN + 1 {
		if met[o.String()] < filters/50 {
			t.Errorf("%s: %d rows; the filters try too little: %v", o, met[o.String()], met)
		}
	}
}

// sameTree compiles the sources by cel-go. It fails unless they mean what the
// filter does.
func (w *world) sameTree(t *testing.T, f *Filter, sources []string) (refs []*celref.Program) {
	t.Helper()
	for i, src := range sources {
		again, err := Compile(src, w.env)
		if err != nil {
			t.Fatalf("%s\nwritten as %s\n%v", f.terms[i], src, err)
		}
		if len(again.terms) != 1 || again.terms[0].String() != f.terms[i].String() {
			t.Fatalf("%s\nwritten as %s\nmeans %v", f.terms[i], src, again.terms)
		}
		ref, err := celref.Compile(src)
		if err != nil {
			t.Fatalf("%s\n%v", src, err)
		}
		refs = append(refs, ref)
	}
	return refs
}

// dropped judges a row by cel-go, clause by clause.
func (w *world) dropped(refs []*celref.Program, row int) (d Dropped) {
	for n, ref := range refs {
		o := Outcome(ref.Eval(&celref.Input{Record: w.rows[row], Entity: w.entities, Viewer: w.viewer, AsOf: asOf}) - celref.True)
		if o == False || o == NaN {
			return Dropped{n, o}
		}
		if d.Outcome == Kept && o != Kept {
			d = Dropped{n, o}
		}
	}
	return d
}

func TestOperands(t *testing.T) {
	l := mustLayout(t, []column.Field{{Name: "likes", Kind: column.Int}, {Name: "text", Kind: column.String, Nullable: true}, {Name: "tags", Kind: column.Strings}})
	entity := mustLayout(t, []column.Field{{Name: "followers", Kind: column.Double}})
	slabOf := func(l *column.Layout, set func(*column.Row)) *column.Slab {
		a := column.New(l, 1, 0).Append()
		row := a.Begin()
		set(&row)
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
		return a.Slab()
	}
	rows := slabOf(l, func(r *column.Row) { r.SetInt(0, 3); r.SetNull(1); r.SetStrings(2, []string{"a", "b"}) })
	features := slabOf(entity, func(r *column.Row) { r.SetDouble(0, 1.5) })
	other := mustLayout(t, []column.Field{{Name: "absent", Kind: column.Int}})
	f, err := Compile(`record.likes > 5 && (record.text == "x" || "c" in record.tags || record.likes == 9) && entity.followers > viewer.least && record.absent > 1 && as_of > timestamp("2026-01-01T00:00:00Z")`,
		expr.Env{Record: []*column.Layout{l, other}, Entity: []*column.Layout{entity}})
	if err != nil {
		t.Fatal(err)
	}
	viewer := &millrace.Viewer{Features: map[string]float64{"least": 2}}
	var got []string
	for n, src := range f.Sources() {
		got = append(got, fmt.Sprintf("%s: %v", src, f.Operands(n, rows, 0, features, viewer, 7)))
	}
	want := []string{
		`record.likes > 5: [{record.likes 3}]`,
		`(record.text == "x") || ("c" in record.tags) || (record.likes == 9): [{record.text <nil>} {record.tags [a b]} {record.likes 3}]`,
		`entity.followers > viewer.least: [{entity.followers 1.5} {viewer.least 2}]`,
		`record.absent > 1: [{record.absent <nil>}]`,
		`as_of > timestamp("2026-01-01T00:00:00Z"): [{as_of 1970-01-01T00:00:00.007Z}]`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// An operand has the value that the row has, of every kind.
func TestOperandsOfEveryKind(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(3, 3)), 20)
	entity, entities := randomSlab(t, rand.New(rand.NewPCG(4, 4)), w.layout, 2)
	for _, field := range fieldsOf() {
		f, err := Compile("has(record."+field.Name+") || has(entity."+field.Name+")", w.env)
		if err != nil {
			t.Fatal(err)
		}
		for i, row := range w.rows {
			want := []Operand{{"record." + field.Name, row[field.Name]}, {"entity." + field.Name, entities[0][field.Name]}}
			if got := f.Operands(0, w.slab, i, entity, nil, asOf); fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
				t.Fatalf("%#v, want %#v", got, want)
			}
			want[1].Value = nil
			for _, entity := range []*column.Slab{nil, column.New(w.layout, 1, 0).Append().Slab()} {
				if got := f.Operands(0, w.slab, i, entity, nil, asOf); fmt.Sprintf("%#v", got) != fmt.Sprintf("%#v", want) {
					t.Fatalf("without an entity: %#v, want %#v", got, want)
				}
			}
		}
	}
}
