package plan

import (
	"testing"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
)

// dotPlan is the product of a record's list and the viewer's.
func dotPlan() *Plan {
	p := &Plan{
		Values: []Value{
			{Op: Field, Kind: Numbers, Deps: Record},
			{Op: Input, Kind: Numbers, Deps: Request},
			{Op: Call, Name: "dot", Kind: Number, Args: []int{0, 1}, Deps: Record | Request},
		},
		Record: []Load{{Name: "vec", Kind: column.Doubles}},
		Viewer: []Var{{"vec", Numbers}},
		Output: Output{Scorer: Linear, Own: -1, Score: 2},
	}
	return p.ready()
}

func dotRows(t *testing.T, n int) (rows *column.Slab, sel []int32) {
	l, err := column.NewLayout([]column.Field{{Name: "vec", Kind: column.Doubles}})
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(l, 1, 0).Append()
	for i := range n {
		r := a.Begin()
		r.SetDoubles(0, []float64{float64(i), 1})
		if err := a.End(r); err != nil {
			t.Fatal(err)
		}
		sel = append(sel, int32(i))
	}
	return a.Slab(), sel
}

// Rows stand in memory that is nobody's any more once they are scored: a machine points
// at none of it then.
func TestNothingPointsAtRowsThatAreScored(t *testing.T) {
	p := dotPlan()
	rows, sel := dotRows(t, Batch+5)
	in := Inputs{Viewer: []any{[]float64{2, 0.5}}}
	check := func(how string, got []float64, lists []column.List) {
		t.Helper()
		for i, x := range got {
			if want := 2*float64(i) + 0.5; x != want {
				t.Fatalf("%s: row %d has %v, want %v", how, i, x, want)
			}
		}
		if len(lists) == 0 {
			t.Errorf("%s: the lists are not read where they stand", how)
		}
		for i, l := range lists {
			if l != (column.List{}) {
				t.Fatalf("%s: list %d is still known", how, i)
			}
		}
	}
	m, out := p.Machine(false), make([]float64, len(sel))
	m.Bind(in)
	m.Score(rows, sel, out)
	check("interpreted", out, m.views[0])

	a := compute.ModelArgs{Rows: rows, Sel: sel}
	m = p.Preparer()
	m.Args(&a, in)
	m.Similar(&a)
	check("for generated code", a.Vector(0), m.standing)
}

// What is compared is compared in memory that is there already.
func TestSimilaritiesAllocateNothing(t *testing.T) {
	p := dotPlan()
	rows, sel := dotRows(t, 3*Batch)
	packed, err := column.Pack(nil, rows)
	if err != nil {
		t.Fatal(err)
	}
	var b column.Batch
	b.Reset(rows.Layout(), []int{0}, len(sel))
	b.Add(column.PackedAt(packed), 0, len(sel))
	in := Inputs{Viewer: []any{[]float64{2, 0.5}}}
	m, out := p.Machine(false), make([]float64, len(sel))
	a := compute.ModelArgs{Rows: b.Slab(), Sel: sel}
	prepared := p.Preparer()
	if n := testing.AllocsPerRun(100, func() {
		m.Bind(in)
		m.Score(b.Slab(), sel, out)
		prepared.Args(&a, in)
		prepared.Similar(&a)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A long list of one request is not kept for those after it.
func TestLongProbesAreLetGo(t *testing.T) {
	m := dotPlan().Machine(false)
	for _, items := range []int{64, 1 << 17} {
		m.Bind(Inputs{Viewer: []any{make([]float64, items)}})
		m.LetGo()
		if kept := m.probes[0] != nil; kept != (items == 64) {
			t.Errorf("a probe of %d items is kept: %v", items, kept)
		}
	}
}
