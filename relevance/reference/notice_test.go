package reference

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/plan"
)

// TestWrongCodeIsNoticed registers code that scores wrongly for a model as a whole, for one of
// its parts, or for several models together: each comparison says so.
func TestWrongCodeIsNoticed(t *testing.T) {
	rows := Schemas["test.Every"].Layout
	parse := func(name string, n int) *relevance.Model {
		t.Helper()
		m, err := relevance.Parse("wrong.yaml", fmt.Appendf(nil, "name: wrong\nversion: \"1\"\nschemas: [test.Every]\nviewer: {age: double}\nfeatures: {own: 'record.n + %d.0', rest: 'coalesce(viewer.age, 1.0) * coalesce(record.x, %d.0)'}\nscorer: linear\nparameters: {weights: {own: 1, rest: 1}}\n", n, n), Schemas)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	for i, c := range []struct {
		what string
		plan func(*plan.Plan) *plan.Plan
		want string
	}{
		{"the whole", func(p *plan.Plan) *plan.Plan { return p }, "generated 12345 (folded"},
		{"the fold", func(p *plan.Plan) *plan.Plan { p, _ = p.Split(); return p }, "reference"},
		{"the rest", func(p *plan.Plan) *plan.Plan { _, p = p.Split(); return p }, "(folded 12345)"},
	} {
		m := parse("one", 100+i)
		p, err := plan.Build(m.Spec().Source(), rows, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := Compare(rand.New(rand.NewPCG(1, 1)), parse("one", 100+i), rows, nil); err != nil {
			t.Fatalf("%s, without code: %v", c.what, err)
		}
		register(c.plan(p).Shape(), 1)
		if err := Compare(rand.New(rand.NewPCG(1, 1)), m, rows, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.what, err)
		}
	}
	both := []*relevance.Model{parse("two", 200), parse("two", 201)}
	p, err := relevance.Join(both...).Plan(rows, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := CompareJoint(rand.New(rand.NewPCG(1, 1)), both, rows, nil); err != nil {
		t.Fatalf("two, without code: %v", err)
	}
	register(p.Shape(), 2)
	if err := CompareJoint(rand.New(rand.NewPCG(1, 1)), both, rows, nil); err == nil || !strings.Contains(err.Error(), "generated with 1 others, gives 12345") {
		t.Errorf("two: %v", err)
	}
	// What cannot be bound is told, and not taken for equal.
	bad := parse("bad", 300)
	other, err := relevance.Parse("bad.yaml", []byte("name: bad\nversion: \"1\"\nschemas: [test.Every]\nviewer: {lang: double}\nfeatures: {a: viewer.lang * record.n}\nscorer: linear\nparameters: {weights: {a: 1}}\n"), Schemas)
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	for seed := range uint64(20) { // some viewers have a language
		if err := Compare(rand.New(rand.NewPCG(seed, 1)), other, rows, nil); err != nil {
			told++
		}
		if err := CompareJoint(rand.New(rand.NewPCG(seed, 1)), []*relevance.Model{bad, other}, rows, nil); err != nil {
			told++
		}
	}
	if told < 20 {
		t.Errorf("%d of 40 say that the viewer is of another type", told)
	}
}

// register registers code that gives each record 12345, by so many models.
func register(shape string, models int) {
	compute.RegisterModel(compute.Model{Name: "wrong", Shape: shape, Score: func(k *compute.ModelArgs) {
		for i := range k.Sel {
			k.Out[i] = 12345
			for m := range models - 1 {
				k.More[m].Out[i] = 12345
			}
		}
	}})
}
