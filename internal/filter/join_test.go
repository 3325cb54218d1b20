package filter

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/internal/expr/celref"
)

// checkJoined holds two filters joined to what cel-go says of each by itself:
// they keep what both keep, and count each row that they drop once. It reports
// whether both are filters.
func (w *world) checkJoined(t *testing.T, request, feed string) bool {
	a, errA := Compile(request, w.env)
	b, errB := Compile(feed, w.env)
	refA, errC := celref.Compile(request)
	refB, errD := celref.Compile(feed)
	if errA != nil || errB != nil || errC != nil || errD != nil {
		return false
	}
	bound, err := Join(a, b).Bind(w.layout, w.layout, w.viewer, asOf)
	if err != nil {
		return false
	}
	var want []int32
	for i, row := range w.rows {
		in := &celref.Input{Record: row, Entity: w.entities, Viewer: w.viewer, AsOf: asOf}
		if refA.Eval(in) == celref.True && refB.Eval(in) == celref.True {
			want = append(want, int32(i))
		}
	}
	got := bound.Select(w.slab, 0, w.slab.Len(), w.entity, nil)
	if c := bound.Counts(); !slices.Equal(got, want) || len(got)+int(c.False+c.Null+c.Error+c.NaN) != len(w.rows) {
		t.Fatalf("%q and %q keep %v and count %+v; cel-go, of each: %v", request, feed, got, c, want)
	}
	return true
}

func FuzzJoin(f *testing.F) {
	for _, s := range [][2]string{
		{"// \r ( \n true) || (true // \r )\n", "false"}, {"true) || (true", "false"}, {"record.i > 1 // (", "record.d < 2.0 || record.ni == 1"},
		{"record.s == \")\"", "record.s != r\"\\\""}, {"record.i / record.j > 0", "record.nd > 0.0"}, {"true || true", "record.b"}, {"record.d < 0.0", "record.i % 0 == 1"},
	} {
		f.Add(s[0], s[1], uint64(1))
	}
	f.Fuzz(func(t *testing.T, request, feed string, seed uint64) {
		newWorld(t, rand.New(rand.NewPCG(seed, 0)), 20).checkJoined(t, request, feed)
	})
}

func TestJoin(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		w := newWorld(t, r, 20)
		if a, b := (source{r}).bool(2), (source{r}).bool(2); !w.checkJoined(t, a, b) {
			t.Fatalf("seed %d: %q or %q is no filter", seed, a, b)
		}
	}
	if f := (&Filter{}); Join(nil, f) != f || Join(f, nil) != f || Join(nil, nil) != nil {
		t.Error("a filter that is not there changes the other")
	}
}
