package filter

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/expr/celref"
	"github.com/millrace/millrace/internal/race"
)

func mustLayout(t testing.TB, fields []column.Field) *column.Layout {
	t.Helper()
	l, err := column.NewLayout(fields)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// world is rows to filter, in both forms.
type world struct {
	layout   *column.Layout
	env      expr.Env
	slab     *column.Slab
	rows     []map[string]any
	entity   *column.Slab
	entities map[string]any
	viewer   *millrace.Viewer
	before   *millrace.Viewer // of another question
}

func newWorld(t testing.TB, r *rand.Rand, rows int) *world {
	w := &world{layout: mustLayout(t, fieldsOf()), viewer: randomViewer(r), before: randomViewer(r)}
	// A second schema has fields that ours lacks.
	other := mustLayout(t, []column.Field{{Name: "absent", Kind: column.Int}, {Name: "sabsent", Kind: column.String}, {Name: "ssabsent", Kind: column.Strings}, {Name: "tabsent", Kind: column.Time}})
	w.env = expr.Env{Record: []*column.Layout{w.layout, other}, Entity: []*column.Layout{w.layout}}
	w.slab, w.rows = randomSlab(t, r, w.layout, rows)
	if r.IntN(4) > 0 {
		entity, maps := randomSlab(t, r, w.layout, 1)
		w.entity, w.entities = entity, maps[0]
	}
	return w
}

// check holds a filter over w to cel-go's evaluator, row by row and all
// together.
func (w *world) check(t *testing.T, src string) (kept int) {
	f, err := Compile(src, w.env)
	if err != nil {
		t.Fatalf("%s\n%v", src, err)
	}
	ref, err := celref.Compile(src)
	if err != nil {
		t.Fatalf("%s\n%v", src, err)
	}
	bind := func() *Bound {
		b, err := f.Bind(w.layout, w.layout, w.viewer, asOf)
		if err != nil {
			t.Fatalf("%s\n%v", src, err)
		}
		return b
	}
	var want []int32
	var counts Counts
	for i, row := range w.rows {
		o := ref.Eval(&celref.Input{Record: row, Entity: w.entities, Viewer: w.viewer, AsOf: asOf})
		b := bind()
		got := outcome(b.Select(w.slab, i, i+1, w.entity, nil), b.Counts())
		if got != o {
			t.Fatalf("%s\nrow %v\nentity %v\nviewer %+v\ngot %v, cel-go says %v", src, row, w.entities, w.viewer, got, o)
		}
		switch o {
		case celref.True:
			want = append(want, int32(i))
		case celref.False:
			counts.False++
		case celref.Null:
			counts.Null++
		case celref.Error:
			counts.Error++
		case celref.NaN:
			counts.NaN++
		}
	}
	b := bind()
	if got := b.Select(w.slab, 0, w.slab.Len(), w.entity, []int32{-7}); !slices.Equal(got, append([]int32{-7}, want...)) {
		t.Fatalf("%s\nall together keeps %v, one by one %v", src, got, want)
	}
	// A part of them, from the middle of a block.
	if n := len(w.rows); n > 4 {
		lo, hi := n/3, n-n/4
		var part []int32
		for _, row := range want {
			if int(row) >= lo && int(row) < hi {
				part = append(part, row)
			}
		}
		if got := bind().Select(w.slab, lo, hi, w.entity, nil); !slices.Equal(got, part) {
			t.Fatalf("%s\nrows %d to %d: keeps %v, one by one %v", src, lo, hi, got, part)
		}
	}
	if b.Counts() != counts {
		t.Fatalf("%s\nall together counts %+v, one by one %+v", src, b.Counts(), counts)
	}
	// Row by row by one that has seen all of them.
	left := len(want)
	for i := len(w.rows) - 1; i >= 0; i-- {
		kept := left > 0 && int(want[left-1]) == i
		if got := b.Select(w.slab, i, i+1, w.entity, nil); (len(got) == 1) != kept {
			t.Fatalf("%s\nrow %v after others: keeps %v, alone %v", src, w.rows[i], got, kept)
		} else if kept {
			left--
		}
	}
	// Bound again after the question of another viewer at another instant.
	again, err := f.Bind(w.layout, w.layout, w.before, asOf-86_400_001)
	if err != nil {
		t.Fatalf("%s\n%v", src, err)
	}
	again.Select(w.slab, 0, w.slab.Len(), w.entity, nil)
	if err := again.Rebind(w.viewer, asOf); err != nil {
		t.Fatalf("%s\n%v", src, err)
	}
	if got := again.Select(w.slab, 0, w.slab.Len(), w.entity, nil); !slices.Equal(got, want) || again.Counts() != counts {
		t.Fatalf("%s\nafter another question keeps %v and counts %+v; alone %v and %+v", src, got, again.Counts(), want, counts)
	}
	return len(want)
}

func outcome(sel []int32, c Counts) celref.Outcome {
	switch {
	case len(sel) == 1 && c == Counts{}:
		return celref.True
	case c == Counts{False: 1}:
		return celref.False
	case c == Counts{Null: 1}:
		return celref.Null
	case c == Counts{Error: 1}:
		return celref.Error
	case c == Counts{NaN: 1}:
		return celref.NaN
	}
	return 0
}

// TestAgainstCEL compares random filters with cel-go's evaluator.
func TestAgainstCEL(t *testing.T) {
	filters := 3000
	if testing.Short() {
		filters = 500
	}
	kept, tried := 0, 0
	for seed := range filters {
		r := rand.New(rand.NewPCG(uint64(seed), 42))
		rows := 12
		if seed%50 == 0 {
			rows = 130 // more than two blocks
		}
		w := newWorld(t, r, rows)
		src := source{r}.bool(1 + seed%4)
		if len(src) > expr.MaxSourceBytes {
			continue
		}
		kept += w.check(t, src)
		tried += len(w.rows)
	}
	t.Logf("%d of %d rows kept", kept, tried)
	if kept < tried/20 || kept > tried*19/20 {
		t.Errorf("%d of %d rows kept: the filters try too little", kept, tried)
	}
}

// TestEachOperation has what random filters say seldom: values of the viewer that are not what
// an operation takes, and operations on what is an error already.
func TestEachOperation(t *testing.T) {
	none := newWorld(t, rand.New(rand.NewPCG(1, 45)), 3) // with a slab of features that has no row
	none.entity, none.entities = column.New(none.layout, 1, 0).Append().Slab(), nil
	for _, src := range []string{"entity.i == record.i", "entity.s == null", "has(entity.ss)", "record.d in entity.ds", "size(entity.ss) > 0"} {
		none.check(t, src)
	}
	lists := [][]string{nil, {"a"}, {"b"}, {"a", "b"}}
	for seed, num := range []float64{math.Inf(1), math.Inf(-1), math.NaN(), 0, 2, math.MaxInt64, math.MinInt64, 1e300} {
		r := rand.New(rand.NewPCG(uint64(seed), 45))
		w := newWorld(t, r, 16)
		w.viewer = &millrace.Viewer{Features: map[string]float64{"num": num}, Attributes: map[string]any{
			"str": pick(r, someStrings...), "left": "a", "right": "b", "flag": seed%2 == 0, "empty": "", "strs": lists[seed%4], "more": lists[seed/2], "nums": []float64{num, 1}, "any": pick[any](r, "a", num, true, []string{"a"}, []float64{num, 1}),
		}}
		for _, op := range []string{"==", "!=", "<", "<=", ">", ">="} {
			for _, src := range []string{
				"record.d # viewer.num", "viewer.num # record.nd", "record.i # viewer.num", "viewer.num # record.ni", "record.s # viewer.num", "viewer.str # record.d", "record.d # viewer.strs", "viewer.nums # record.d", "record.b # viewer.flag", "viewer.num # viewer.num",
				"-viewer.num # record.d", "-viewer.str # record.d", "(viewer.flag ? \"a\" : \"en\") # record.s", "record.i / 0 # record.d", "record.d # record.i / 0", "size(viewer.str) # 1", "size(viewer.strs) # 1", "size(viewer.nums) # 2", "size(viewer.any) # 1",
				"size(viewer.none) # 1", "size(record.sabsent) # 0", "size(record.ssabsent) # 0", "size(entity.ss) # 1", "size(entity.nds) # 1", "viewer.strs # viewer.more", "viewer.nums # viewer.nums", "viewer.any # viewer.str", "duration(\"1h\") + record.t # as_of", "record.s # record.sabsent",
				"(record.nb ? record.s : null) # record.ns", "(record.nb ? null : record.i) # 3", "-(record.i / 0) # 3", "viewer.strs + viewer.more # viewer.more", "viewer.nums + viewer.nums # viewer.nums", "viewer.str + viewer.str # record.s", "viewer.left + viewer.right # \"ab\"", "viewer.str + viewer.any # viewer.str", "viewer.any + viewer.str # viewer.str",
				"record.t - record.nt # duration(\"1h\")", "record.ni + record.j # 5", "record.d + viewer.str # 1.0", "viewer.strs - record.d # 1.0", "record.d * viewer.flag # 1.0", "viewer.none / record.d # 1.0", "record.d + viewer.any # 1.0", "record.i / 0 # (record.nb ? record.i : record.j)", "(record.nb ? record.i : record.j) # record.i / 0", "(record.i / 0) + (record.nb ? record.i : record.j) # 3", "(record.nb ? record.i : record.j) * (record.i / 0) # 3", "record.t - record.tabsent # duration(\"1h\")", "record.tabsent - record.nt # duration(\"1h\")", "record.i + record.j # record.absent", "record.ni # record.absent", "record.absent # record.d", "record.tabsent + duration(\"1h\") # record.t", "-record.i # record.j", "record.b # (record.i > 3)", "(record.i / 0 > 1) # record.b",
			} {
				if strings.Contains(src, "viewer.str") || op == "==" || op == "<=" || strings.Contains(src, "num") || seed == 0 {
					w.check(t, strings.Replace(src, "#", op, 1))
				}
			}
		}
		for _, src := range []string{
			"viewer.num.matches(\"^a\")", "viewer.any.matches(\"^a\")", "viewer.num.startsWith(record.s)", "record.s.contains(viewer.num)", "record.s.endsWith(viewer.str)", "viewer.str.contains(record.ns)", "record.sabsent.contains(\"a\")", "record.ns.matches(\"a$\")",
			"(record.i / 0) in viewer.any", "(record.i / 0 > 1 ? record.s : record.r).contains((record.nb ? record.s : record.r))", "(record.nb ? record.s : record.r).contains((record.i / 0 > 1 ? record.s : record.r))", "(record.nb ? record.s : record.r) in record.nss", "(record.i / 0 > 1 ? record.s : record.r).matches(\"a\")", "(record.nb ? record.s : record.r).matches(\"a\")", "size((record.i / 0 > 1 ? record.s : record.r)) > 1", "record.i / 0 in [1, 2]", "record.i / 0 in record.ds", "record.ni in record.ds", "record.i in record.nds", "record.b in [true]", "record.nb in [true, null]", "record.ni in [null, 1]", "record.ns in [\"a\", null]", "record.s in record.nss", "record.ns in entity.nss", "record.d in entity.ds", "record.i in viewer.nums", "record.d in [viewer.num, 1, viewer.any]", "record.i in [viewer.num, 1]", "record.i in [3, viewer.empty]", "record.b in [true, viewer.empty]", "record.s in [viewer.num, viewer.empty, viewer.flag]", "record.s in [null]", "viewer.strs in [1, viewer.more, null]", "viewer.nums in [viewer.strs, viewer.nums]", "viewer.any in [viewer.strs, viewer.nums]", "viewer.more in [viewer.none]", "viewer.strs in viewer.strs", "viewer.num in record.ss", "viewer.str in record.ds", "record.s in record.ssabsent", "viewer.any in [1.0, \"a\", true]", "viewer.str in viewer.strs", "record.s in viewer.none",
			"!viewer.num", "viewer.num ? true : false", "viewer.any && record.b", "viewer.any || record.b", "record.b && viewer.num", "record.nb && viewer.none", "record.i / 0 > 1 || viewer.num", "viewer.num || record.i / 0 > 1", "record.nb || record.i / 0 > 1", "record.i / 0 > 1 || record.nb", "record.nb || record.i / 0 > 1 || record.b",
			"record.nb && record.i / 0 > 1 || record.b", "!(record.i / 0 > 1 && record.nb && record.b)", "record.nb ? record.b : record.i / 0 > 1", "(record.i / 0 > 1) ? true : false", "has(record.sabsent) || record.b", "!has(record.nss)", "record.ss == null", "record.nds != null", "duration(\"2562047h47m16.853s\") + duration(\"1ms\") > duration(\"0s\")", "duration(\"2562047h47m16.854s\") + duration(\"1ms\") > duration(\"0s\")", "duration(\"-2562047h47m16.853s\") - duration(\"1ms\") < duration(\"0s\")", "duration(\"-2562047h47m16.854s\") - duration(\"1ms\") < duration(\"0s\")",
			"timestamp(\"9999-12-31T23:59:59.998Z\") + duration(\"1ms\") > as_of", "timestamp(\"9999-12-31T23:59:59.999Z\") + duration(\"1ms\") > as_of", "timestamp(\"0001-01-01T00:00:00.001Z\") - duration(\"1ms\") < as_of", "timestamp(\"0001-01-01T00:00:00Z\") - duration(\"1ms\") < as_of",
			"null == null", "(record.b ? null : null) == null", "record.absent == null",
		} {
			w.check(t, src)
		}
	}
}

// TestInts: arithmetic of ints is exact, or an error.
func TestInts(t *testing.T) {
	for _, a := range someInts {
		for _, b := range someInts {
			x, y := big.NewInt(a), big.NewInt(b)
			for op, exact := range map[expr.Op]func(z *big.Int) *big.Int{
				expr.Add: func(z *big.Int) *big.Int { return z.Add(x, y) }, expr.Sub: func(z *big.Int) *big.Int { return z.Sub(x, y) }, expr.Mul: func(z *big.Int) *big.Int { return z.Mul(x, y) },
				expr.Div: func(z *big.Int) *big.Int { return z.Quo(x, y) }, expr.Mod: func(z *big.Int) *big.Int { return z.Rem(x, y) },
			} {
				got, s := intArithmetic(op)(uint64(a), uint64(b))
				if divides := op == expr.Div || op == expr.Mod; divides && b == 0 {
					if s != failed {
						t.Errorf("%v %d %d: %v", op, a, b, s)
					}
					continue
				}
				want := exact(new(big.Int))
				if ok := want.IsInt64() && !(op == expr.Mod && a == math.MinInt64 && b == -1); (s == present) != ok || ok && int64(got) != want.Int64() { // cel-go has an error where the quotient is one
					t.Errorf("%v %d %d is %d, %v; want %v", op, a, b, int64(got), s, want)
				}
			}
		}
	}
}

// FuzzAgainstCEL lets the fuzzer choose the seeds.
func FuzzAgainstCEL(f *testing.F) {
	f.Add(uint64(1), uint64(2), 2)
	f.Fuzz(func(t *testing.T, a, b uint64, depth int) {
		r := rand.New(rand.NewPCG(a, b))
		w := newWorld(t, r, 8)
		if src := (source{r}).bool(depth & 3); len(src) <= expr.MaxSourceBytes {
			w.check(t, src)
		}
	})
}

// TestSelectDoesNotAllocate covers the loops over one column and every kernel.
func TestSelectDoesNotAllocate(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	w := newWorld(t, r, 200)
	for _, src := range []string{
		`record.i > 2 && record.d < 5.0 && record.s in ["en", "de"] && !record.b`,
		`record.ni > 2 || record.nd < 5.0 || record.ns == "abcdefgh"`,
		`record.ns in ["a", "b", "c", "d", "e", "f", "g", "h", "i", "abcdefgh"]`,
		`record.s.startsWith("a") || record.ns.matches("^a.*h$") || size(record.s) == 3 || record.s < record.r`,
		`record.i * 2 + record.j > 5 || double(record.i) / record.d > 2.0`,
		`as_of - record.t < duration("24h") || record.nt == null`,
		`"a" in record.ss || record.d in record.nds || size(record.ss) > 1`,
		`entity.s == record.s || entity.ni > 2 || viewer.str in record.ss`,
		`(record.b ? record.s : record.ns) == viewer.str`,
	} {
		f, err := Compile(src, w.env)
		if err != nil {
			t.Fatalf("%s\n%v", src, err)
		}
		b, err := f.Bind(w.layout, w.layout, w.viewer, asOf)
		if err != nil {
			t.Fatal(err)
		}
		sel := make([]int32, 0, w.slab.Len())
		run := func() { b.Select(w.slab, 0, w.slab.Len(), w.entity, sel) }
		run()
		if n := testing.AllocsPerRun(20, run); n > 0 && (!race.Enabled || !strings.Contains(src, "matches")) {
			t.Errorf("%s: %v allocations", src, n)
		}
	}
}

// TestChunks filters more rows than one compute.Chunk has, from the middle.
func TestChunks(t *testing.T) {
	l := mustLayout(t, []column.Field{{Name: "i", Kind: column.Int}})
	a := column.New(l, 1, 0).Append()
	for i := range 5 * compute.Chunk {
		row := a.Begin()
		row.SetInt(0, int64(i))
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
	}
	for _, src := range []string{"record.i % 3 == 0", "record.i >= 0 && record.i % 3 == 0"} {
		b := bindFor(t, l, src)
		var want []int32
		lo, hi := 7, 5*compute.Chunk-9
		for i := lo; i < hi; i++ {
			if i%3 == 0 {
				want = append(want, int32(i))
			}
		}
		if got := b.Select(a.Slab(), lo, hi, nil, nil); !slices.Equal(got, want) {
			t.Errorf("%s: %d rows, want %d", src, len(got), len(want))
		}
		if c := b.Counts(); c.False != int64(hi-lo-len(want)) {
			t.Errorf("%s: %+v", src, c)
		}
		if got := b.Select(a.Slab(), 4, 4, nil, nil); len(got) != 0 {
			t.Errorf("%s: an empty range keeps %v", src, got)
		}
	}
}

// TestOtherLayout binds to a layout that lacks a field, has it as another
// kind of number, or as something else.
func TestOtherLayout(t *testing.T) {
	double := mustLayout(t, []column.Field{{Name: "x", Kind: column.Double}})
	ints := mustLayout(t, []column.Field{{Name: "x", Kind: column.Int}})
	none := mustLayout(t, []column.Field{{Name: "y", Kind: column.Int}})
	text := mustLayout(t, []column.Field{{Name: "x", Kind: column.String}})
	f, err := Compile("record.x > 1.5", expr.Env{Record: []*column.Layout{double, ints, none}})
	if err != nil {
		t.Fatal(err)
	}
	one := func(l *column.Layout, set func(*column.Row)) *column.Slab {
		a := column.New(l, 1, 0).Append()
		row := a.Begin()
		set(&row)
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
		return a.Slab()
	}
	for _, c := range []struct {
		slab *column.Slab
		want celref.Outcome
	}{
		{one(double, func(r *column.Row) { r.SetDouble(0, 1.75) }), celref.True},
		{one(ints, func(r *column.Row) { r.SetInt(0, 2) }), celref.True},
		{one(ints, func(r *column.Row) { r.SetInt(0, 1) }), celref.False},
		{one(none, func(r *column.Row) { r.SetInt(0, 2) }), celref.Null},
		{one(text, func(r *column.Row) { r.SetString(0, []byte("2")) }), celref.Null},
	} {
		b, err := f.Bind(c.slab.Layout(), nil, nil, asOf)
		if err != nil {
			t.Fatal(err)
		}
		if got := outcome(b.Select(c.slab, 0, 1, nil, nil), b.Counts()); got != c.want {
			t.Errorf("%v: %v, want %v", c.slab.Layout().Fields(), got, c.want)
		}
	}
	viewer := &millrace.Viewer{Attributes: map[string]any{"x": 7}}
	f, err = Compile("record.x > viewer.x", expr.Env{Record: []*column.Layout{double}})
	if err != nil {
		t.Fatal(err)
	}
	refused := func(err error) bool {
		e := (*millrace.Error)(nil)
		return errors.As(err, &e) && e.Reason == millrace.ReasonInvalid && e.Field == "viewer.x"
	}
	if _, err := f.Bind(double, nil, viewer, asOf); !refused(err) {
		t.Errorf("a viewer value of a Go int: %v", err)
	}
	if _, err := f.BindClauses(double, nil, viewer, asOf); !refused(err) {
		t.Errorf("a viewer value of a Go int, by clauses: %v", err)
	}
	b, err := f.Bind(double, nil, nil, asOf)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Rebind(viewer, asOf); !refused(err) {
		t.Errorf("a viewer value of a Go int, bound again: %v", err)
	}
}

// TestDifferences compares the time between a column and a constant, up to
// where it overflows.
func TestDifferences(t *testing.T) {
	for seed := range 1500 {
		r := rand.New(rand.NewPCG(uint64(seed), 99))
		w, g := newWorld(t, r, 12), source{r}
		a := g.field("t")
		b := pick(r, "as_of", "as_of", `timestamp("1970-01-01T00:00:01Z")`, `timestamp("9999-01-01T00:00:00Z")`, `timestamp("0001-01-01T00:00:00Z")`)
		if r.IntN(2) == 0 {
			a, b = b, a
		}
		x := a + " - " + b
		y := pick(r, g.durationLiteral(), `duration("2562047h47m16.854s")`, `duration("-2562047h47m16.854s")`, `as_of - timestamp("1970-01-01T00:00:01Z")`)
		if r.IntN(2) == 0 {
			x, y = y, x
		}
		src := "(" + x + ")" + g.cmp() + "(" + y + ")"
		if r.IntN(3) == 0 {
			src += pick(r, " || ", " && ") + g.leaf()
		}
		if r.IntN(3) == 0 {
			src = "!(" + src + ")"
		}
		w.check(t, src)
	}
}

// TestSums compares sums of columns, up to where they overflow on the way.
func TestSums(t *testing.T) {
	loops := 0
	for seed := range 1500 {
		r := rand.New(rand.NewPCG(uint64(seed), 77))
		w, g := newWorld(t, r, 12), source{r}
		sum := pick(r, "record.i", "record.j")
		for range 1 + r.IntN(3) {
			sum += pick(r, " + ", " - ") + pick(r, "record.i", "record.j", "record.i", "record.j", "record.ni")
		}
		src := sum + g.cmp() + g.intLiteral()
		if r.IntN(3) == 0 {
			src = g.intLiteral() + g.cmp() + sum
		}
		if r.IntN(3) == 0 {
			src += pick(r, " || ", " && ") + g.leaf()
		}
		if r.IntN(3) == 0 {
			src = "!(" + src + ")"
		}
		w.check(t, src)
		if f, err := Compile(sum+" > 3", w.env); err == nil {
			bd := &binder{layout: w.layout, asOf: someInstant}
			if _, ok := fast(bd.build(f.terms[0])).(*sums); ok {
				loops++
			}
		}
	}
	if loops < 500 {
		t.Errorf("%d sums are loops", loops)
	}
}
