package filter

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// A bound filter names the columns that it reads, each once, and whether it reads the
// entity.
func TestReads(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)), 1)
	for src, want := range map[string]struct {
		columns []string
		entity  bool
	}{
		`record.i > 3 && record.s.contains("x") && record.i < 9`: {[]string{"i", "s"}, false},
		`record.d > 0.5 || record.nd > entity.d`:                 {[]string{"d", "nd"}, true},
		`record.deep.i in [1, 2]`:                                {[]string{"deep.i"}, false},
		`true`:                                                   {nil, false},
	} {
		f, err := Compile(src, w.env)
		if err != nil {
			t.Fatal(err)
		}
		b, err := f.Bind(w.layout, w.layout, nil, asOf)
		if err != nil {
			t.Fatal(err)
		}
		columns, entity := b.Reads(nil)
		var names []string
		for _, c := range columns {
			names = append(names, w.layout.Fields()[c].Name)
		}
		if slices.Sort(names); !slices.Equal(names, want.columns) || entity != want.entity {
			t.Errorf("%s reads %q, entity: %v", src, names, entity)
		}
	}
}

// A filter over long texts ends soon after its question, keeps none of the rows that it did
// not look at, and says why.
func TestTextEndsWithItsQuestion(t *testing.T) {
	l := mustLayout(t, []column.Field{{Name: "s", Kind: column.String}})
	a := column.New(l, 64, 0).Append()
	for range 64 {
		row := a.Begin()
		row.SetString(0, []byte(strings.Repeat("y", 100_000)+"x"))
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
	}
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)), 1)
	w.env.Record = []*column.Layout{l}
	for _, src := range []string{`record.s.contains("x")`, `record.s.matches("y+x")`, `!record.s.contains("z")`} {
		f, err := Compile(src, w.env)
		if err != nil {
			t.Fatal(err)
		}
		for _, ended := range []bool{false, true} {
			b, err := f.Bind(l, w.layout, nil, asOf)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			b.Watch(ctx)
			if ended {
				cancel()
			}
			kept := b.Select(a.Slab(), 0, 64, nil, nil)
			cancel()
			if !ended && (len(kept) != 64 || b.Over() != nil) || ended && (len(kept) > 3 || !errors.Is(b.Over(), context.Canceled)) {
				t.Errorf("%s, ended %v: keeps %d of 64: %v", src, ended, len(kept), b.Over())
			}
		}
	}
}

// A question's context is looked at every so many bytes of text. Nothing is searched once it has
// ended.
func TestWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	w := &watch{ctx: ctx}
	cancel()
	if w.over(watchBytes-1) || !w.over(1) || !w.over(0) || !errors.Is(w.err, context.Canceled) {
		t.Errorf("over is said at another time: %+v", w)
	}
	if (&watch{}).over(2*watchBytes) || (*watch)(nil).over(2*watchBytes) {
		t.Error("what nobody waits for is over")
	}
	searches := 0
	long := &constant{out: out{typ: expr.String}, text: strings.Repeat("x", 4*watchBytes*searched)}
	k := &text{out{typ: expr.Bool}, long, long, func(string, string) bool { searches++; return true }, w}
	for i, s := range k.eval(&batch{sel: make([]int32, 5)}).states {
		if s != failed || searches > 0 {
			t.Errorf("row %d is %v after %d searches", i, s, searches)
		}
	}
	for _, s := range (&matches{out{typ: expr.Bool}, long, nil, w}).eval(&batch{sel: make([]int32, 5)}).states { // without a pattern to search
		if s != failed {
			t.Errorf("a row that was not searched is %v", s)
		}
	}
	// A filter that is watched again looks again.
	b := bindFor(t, mustLayout(t, []column.Field{{Name: "s", Kind: column.String}}), `record.s == "x"`)
	b.watch = *w
	if b.Watch(t.Context()); b.Over() != nil {
		t.Error(b.Over())
	}
}
