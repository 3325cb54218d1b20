package filter

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// register makes code known for terms that are loops. It does what these say, as code that was
// generated from them would.
func register(terms []Term) {
	g := compute.Filter{}
	at := map[int]int{} // by column of the layout, its index in g.Columns
	for _, l := range Leaves(terms) {
		if _, ok := at[l.Column]; !ok {
			at[l.Column] = len(g.Columns)
			g.Columns = append(g.Columns, compute.FilterColumn{Name: l.Field.Name, Kind: l.Field.Kind, Nullable: l.Field.Nullable})
		}
	}
	for _, t := range terms {
		g.Terms = append(g.Terms, t.Source)
	}
	g.Keep = func(k *compute.FilterArgs) {
		for i := range k.Blocks() {
			r := says{k, at, i, 0}
			for _, t := range terms {
				k.Keep(i, r.of(t.Loop))
			}
		}
	}
	compute.RegisterFilter(g)
}

// says is what loops say of block i of a chunk.
type says struct {
	k      *compute.FilterArgs
	at     map[int]int
	i      int
	ranges int // of the instant, used so far
}

func (r *says) of(l *Loop) (v compute.Verdict) {
	for n, a := range l.Args {
		switch x := r.of(a); {
		case l.Op == Not:
			v = compute.Not(x)
		case n == 0:
			v = x
		case l.Op == And:
			v = compute.And(v, x)
		case l.Op == Or:
			v = compute.Or(v, x)
		}
	}
	if len(l.Args) > 0 {
		return v
	}
	words, nulls := compute.Block(r.k.Column(r.at[l.Column]), r.i), uint64(0)
	if l.Field.Nullable {
		all, bit := r.k.Nulls(r.at[l.Column])
		nulls = compute.Nulls(compute.Block(all, r.i), bit)
	}
	switch l.Op {
	case NotNull:
		if v.Hit = ^nulls; l.Outside {
			v.Hit = nulls
		}
		return v
	case Words, Since:
		v.Hit = r.between(l, words, l.Lo, l.Span)
	case Doubles:
		v = compute.DoublesBetween(words, l.Min, l.Max)
	case InSet:
		if len(l.Texts) > 0 {
			v.Hit = compute.NewTexts(l.Texts...).In(r.k.Rows, words)
		}
		for _, w := range l.Words {
			v.Hit |= compute.Equal(words, w)
		}
	}
	if l.Ordered {
		v = compute.Ordered(v, nulls)
	} else {
		v = compute.Without(v, nulls)
	}
	if l.Outside {
		v = compute.Outside(v)
	}
	if l.Op == Since {
		v = compute.Valid(v, r.between(l, words, l.ValidLo, l.ValidSpan))
	}
	return v
}

func (r *says) between(l *Loop, words []uint64, lo, span uint64) uint64 {
	if l.OfAsOf {
		lo, span = r.k.Ranges[r.ranges].Lo, r.k.Ranges[r.ranges].Span
		r.ranges++
	}
	return compute.Between(words, lo, span)
}

// TestGeneratedCode gives random filters code for some of their terms. They keep what they keep
// without it and what cel-go keeps, at any instant.
func TestGeneratedCode(t *testing.T) {
	instants := []millrace.Time{asOf, asOf + 5, 0, math.MaxInt64, math.MinInt64, maxTime, minTime, asOf + maxDuration, asOf - maxDuration, asOf}
	generated, fell := 0, 0
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 44))
		w, g := newWorld(t, r, 12), source{r}
		if seed%25 == 0 {
			w = newWorld(t, r, 130)
		}
		term := func() string {
			switch r.IntN(6) {
			case 0:
				return "(" + g.leaf() + " || " + g.leaf() + " && " + g.leaf() + ")"
			case 1:
				return "!(" + g.leaf() + pick(r, " || ", " && ") + g.leaf() + ")"
			case 2:
				return pick(r, "as_of - record.t", "record.nt - as_of") + g.cmp() + pick(r, `duration("24h")`, `duration("0s")`)
			case 3:
				return pick(r, "record.t", "record.nt") + g.cmp() + "as_of"
			}
			return g.leaf()
		}
		terms := []string{fmt.Sprintf("record.i != %d", seed)} // so that every filter has one of its own
		for range 1 + r.IntN(6) {
			terms = append(terms, term())
		}
		r.Shuffle(len(terms), func(i, j int) { terms[i], terms[j] = terms[j], terms[i] })
		src := strings.Join(terms, " && ")
		f, err := Compile(src, w.env)
		if err != nil {
			t.Fatalf("%s\n%v", src, err)
		}
		loops := f.Loops(w.layout)
		from := r.IntN(len(loops))
		to := from
		for to < len(loops) && loops[to].Loop != nil {
			to++
		}
		if from == to {
			continue
		}
		register(loops[from:to])
		register(loops[from : from+1])
		w.check(t, src)
		// f was not bound yet: what is known of code is found at the first Bind.
		fast, err := f.Bind(w.layout, w.layout, w.viewer, asOf)
		if err != nil {
			t.Fatal(err)
		}
		slow, err := f.Kernels().Bind(w.layout, w.layout, w.viewer, asOf)
		if err != nil {
			t.Fatal(err)
		}
		if n := fast.Generated(); n < to-from || slow.Generated() != 0 {
			t.Fatalf("%s\nterms %d to %d have code, and %d run by it, of kernels %d", src, from, to, n, slow.Generated())
		}
		run := 0
		for _, term := range fast.terms { // each term is run once, by code or by kernels
			if run++; term.run != nil {
				run += term.run.terms - 1
			}
		}
		if run > f.Clauses() {
			t.Fatalf("%s\nruns %d terms", src, run)
		}
		if counting, err := f.BindCounting(w.layout, w.layout, w.viewer, asOf); err != nil || counting.Generated() != 0 {
			t.Fatalf("%s\na filter that counts by clause runs generated code: %v", src, err)
		}
		columns, entity := fast.Reads([]int{-7})
		want, wantEntity := slow.Reads([]int{-7})
		slices.Sort(columns)
		slices.Sort(want)
		if !slices.Equal(columns, want) || entity != wantEntity {
			t.Fatalf("%s\nreads %v, entity %v; kernels %v, %v", src, columns, entity, want, wantEntity)
		}
		for _, at := range instants {
			for _, b := range []*Bound{fast, slow} {
				if err := b.Rebind(w.viewer, at); err != nil {
					t.Fatal(err)
				}
			}
			got, want := fast.Select(w.slab, 1, w.slab.Len(), w.entity, nil), slow.Select(w.slab, 1, w.slab.Len(), w.entity, nil)
			if !slices.Equal(got, want) || fast.Counts() != slow.Counts() {
				t.Fatalf("%s\nat %d keeps %v and counts %+v; kernels %v and %+v", src, at, got, fast.Counts(), want, slow.Counts())
			}
			if fast.Generated() < to-from {
				fell++
			}
		}
		generated += to - from
	}
	if generated < 80 || fell < 50 {
		t.Errorf("%d terms have code, and in %d cases the instant asks for kernels; the test wants more", generated, fell)
	}
}

// TestLoops has what generated code is told of terms.
func TestLoops(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)), 1)
	i := func(x int64) string { return fmt.Sprintf("%#x", uint64(x)) }
	for src, want := range map[string]string{
		"record.b":                      "words b 0x1+0x0 ordered",
		"!record.nb":                    "not(words nb 0x1+0x0 ordered)",
		"record.i > 3":                  "words i 0x4+" + i(math.MaxInt64-4) + " ordered",
		"3 > record.i":                  "words i " + i(math.MinInt64) + "+" + "0x8000000000000002" + " ordered",
		"record.i >= 3.5":               "words i 0x4+" + i(math.MaxInt64-4) + " ordered",
		"record.ni == 3.5":              "nil", // no int is, and a null is no error
		"record.i == 3.5":               "words i 0x0+0xffffffffffffffff outside",
		"record.i != 3.5":               "words i 0x0+0xffffffffffffffff",
		"record.i < -1e300":             "words i 0x0+0xffffffffffffffff ordered outside",
		"record.ni != 7":                "words ni 0x7+0x0 outside",
		"record.d > 1.5":                fmt.Sprintf("doubles d %v to +Inf ordered", math.Nextafter(1.5, 2)),
		"record.d >= 1.5":               "doubles d 1.5 to +Inf ordered",
		"record.d < 2":                  fmt.Sprintf("doubles d -Inf to %v ordered", math.Nextafter(2, 1)),
		"2.0 >= record.d":               "doubles d -Inf to 2 ordered",
		"record.d != 2":                 "doubles d 2 to 2 outside",
		"record.s == \"en\"":            "words s 0x6e6502+0x0",
		"record.s != \"longer than 7\"": "set s [] [longer than 7] outside",
		"record.s in [\"en\", \"longer than 7\", \"\"]":                                                    "set s [7234818 0] [longer than 7]",
		`record.s in ["text no. 4", "text no. 2", "text no. 6", "text no. 1", "text no. 5", "text no. 3"]`: "set s [] [text no. 1 text no. 2 text no. 3 text no. 4 text no. 5 text no. 6]",
		"record.i in [1, 2]":                    "set i [1 2] []",
		"record.i in [1]":                       "words i 0x1+0x0",
		"record.ns == null":                     "notnull ns outside",
		"record.ns != null":                     "notnull ns",
		"has(record.s)":                         "notnull s",
		"record.t > as_of":                      "words t 0x15d3ef79801+" + i(math.MaxInt64-1_500_000_000_001) + " ordered of as_of",
		"as_of - record.t < duration(\"24h\")":  "since",
		"duration(\"24h\") > as_of - record.nt": "since",
		"record.t - timestamp(\"2026-01-01T00:00:00Z\") < duration(\"24h\")": "since",
		"record.i > 3 || record.b && record.d == 0.5":                        "or(words i 0x4+" + i(math.MaxInt64-4) + " ordered, and(words b 0x1+0x0 ordered, doubles d 0.5 to 0.5))",
		"record.b || viewer.flag":                                            "nil",
		"record.i > viewer.num":                                              "nil",
		"record.i > entity.i":                                                "nil",
		"record.i > record.j":                                                "nil",
		"record.i + record.j > 3":                                            "nil",
		"record.absent > 3":                                                  "nil",
		"record.ni == record.absent":                                         "nil",
		"record.nd == null":                                                  "nil", // counts NaN
		"record.d in [1.5]":                                                  "nil",
		"record.i in [1.5]":                                                  "nil",
		"record.i in [1, null]":                                              "nil",
		"record.s < \"en\"":                                                  "nil",
		"record.s.contains(\"en\")":                                          "nil",
		"as_of > timestamp(\"2026-01-01T00:00:00Z\")":                        "nil",
		"as_of - record.t > duration(\"2562047h47m16.854s\")":                "nil",
		"true": "nil",
	} {
		f, err := Compile(src, w.env)
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		terms := f.Loops(w.layout)
		if got := told(terms[0].Loop); got != want && !(want == "since" && strings.HasPrefix(got, want)) {
			t.Errorf("%s is\n%s, want\n%s", src, got, want)
		}
		if terms[0].CEL != f.Sources()[0] || terms[0].Source != f.terms[0].String() {
			t.Errorf("%s is shown as %s, and found as %s", src, terms[0].CEL, terms[0].Source)
		}
	}
}

// A field that the layout has with another type is null in it, but not in others: code for that
// would fit layouts that it must not.
func TestLoopsOfAnotherType(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)), 1)
	other := mustLayout(t, []column.Field{{Name: "s", Kind: column.Int}})
	f, err := Compile("record.ni == record.s", expr.Env{Record: []*column.Layout{other, w.layout}})
	if err != nil {
		t.Fatal(err)
	}
	if got := told(f.Loops(w.layout)[0].Loop); got != "nil" {
		t.Errorf("it is %s", got)
	}
}

// told returns a loop as a text.
func told(l *Loop) string {
	if l == nil {
		return "nil"
	}
	if len(l.Args) > 0 {
		var args []string
		for _, a := range l.Args {
			args = append(args, told(a))
		}
		return map[LoopOp]string{And: "and", Or: "or", Not: "not"}[l.Op] + "(" + strings.Join(args, ", ") + ")"
	}
	text := map[LoopOp]string{Words: "words ", Since: "since ", Doubles: "doubles ", InSet: "set ", NotNull: "notnull "}[l.Op] + l.Field.Name
	switch l.Op {
	case Words, Since:
		text += fmt.Sprintf(" %#x+%#x", l.Lo, l.Span)
	case Doubles:
		text += fmt.Sprintf(" %v to %v", l.Min, l.Max)
	case InSet:
		text += fmt.Sprintf(" %v %v", l.Words, l.Texts)
	}
	for _, is := range []struct {
		so   bool
		text string
	}{{l.Ordered, " ordered"}, {l.Outside, " outside"}, {l.OfAsOf, " of as_of"}} {
		if is.so {
			text += is.text
		}
	}
	return text
}

// TestFast: comparisons of columns with constants are loops without branches, and so are sums
// and differences. What is a kernel instead takes several times as long.
func TestFast(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)), 1)
	for src, want := range map[string]string{
		"record.i + record.j > 3": "*filter.sums", "3 < record.i - record.j + record.i": "*filter.sums", "record.i + record.j != 3": "*filter.sums",
		"record.i + record.ni > 3": "<nil>", "record.ni + record.i > 3": "<nil>", "record.i * record.j > 3": "<nil>", "record.i + 1 > 3": "<nil>", "record.i + (record.j + record.i) > 3": "<nil>",
		"record.i + record.j > 3.5": "<nil>", "record.d + record.e > 3.5": "<nil>", "record.i + record.j > record.i": "<nil>", "record.i + record.j > 9223372036854775807": "<nil>",
		"as_of - record.t < duration(\"1h\")": "*filter.since", "duration(\"1h\") < record.nt - as_of": "*filter.since", "record.t - record.nt < duration(\"1h\")": "<nil>",
		"record.t - duration(\"1h\") < as_of": "<nil>", "as_of - record.t > duration(\"2562047h47m16.854s\")": "*filter.since",
		"!(record.i > 3 && record.b)": "filter.notOf", "record.i > 3 || record.b && record.nb": "*filter.combined", "record.b || viewer.flag": "*filter.combined", "!(record.b || viewer.none == null)": "filter.notOf", "record.b || record.s.contains(\"x\")": "<nil>", "!record.s.contains(\"x\")": "<nil>",
		"viewer.flag": "filter.allSame", "record.b || viewer.str": "<nil>", "record.i > viewer.str": "<nil>", "record.absent == 3": "filter.allSame",
		"record.s in [\"a\", \"b\", \"c\", \"d\"]": "*filter.wordSet", "record.i > viewer.num": "*filter.wordRange", "record.d > viewer.num": "*filter.doubleRange", "record.i == null": "*filter.isNull",
		"record.s in [\"a\", viewer.num]": "*filter.wordRange", "record.i in [viewer.num]": "<nil>", "record.i in [null]": "<nil>",
		"record.s in viewer.strs": "*filter.wordSet", "record.s == viewer.str": "*filter.wordSet",
	} {
		w.viewer = &millrace.Viewer{Attributes: map[string]any{"flag": true, "str": "longer than 7", "strs": []string{"a", "b"}}, Features: map[string]float64{"num": 1.5}}
		f, err := Compile(src, w.env)
		if err != nil {
			t.Errorf("%s: %v", src, err)
			continue
		}
		bd := &binder{layout: w.layout, entity: w.layout, viewer: w.viewer, asOf: asOf}
		if got := fmt.Sprintf("%T", fast(boolean(bd.build(f.terms[0])))); got != want {
			t.Errorf("%s is tested by %s, want %s", src, got, want)
		}
	}
	for n, table := range map[int]bool{2: false, fewWords: false, fewWords + 1: true} {
		k := wordsIn(&field{}, []uint64{1, 2, 3, 4, 5}[:n], nil, false).(*wordSet)
		if (k.table != nil) != table || (k.few == nil) != table {
			t.Errorf("%d words are looked up in a table: %v", n, k.table != nil)
		}
	}
}

// TestOfFilters has what is asked of filters beside rows.
func TestOfFilters(t *testing.T) {
	l := mustLayout(t, []column.Field{{Name: "i", Kind: column.Int}, {Name: "s", Kind: column.String}})
	env := expr.Env{Record: []*column.Layout{l}, Entity: []*column.Layout{l}}
	f, err := Compile(`record.i > 3 && (record.s.matches("^a") || entity.i in [1]) && record.i < viewer.x`, env)
	if err != nil {
		t.Fatal(err)
	}
	env.Mode = expr.Model // it is a filter all the same
	if _, err := Compile(`record.i in [1, viewer.x]`, env); err != nil {
		t.Error(err)
	}
	if names := f.Fields(); f.Clauses() != 3 || !slices.Equal(names, []string{"record.i", "record.s", "entity.i"}) {
		t.Errorf("%d clauses read %q", f.Clauses(), names)
	}
	if _, err := Compile(`record.s.matches("(")`, env); err == nil {
		t.Error("a pattern that is none is accepted")
	}
	other, err := Compile(`record.s.matches("b$")`, env)
	if err != nil {
		t.Fatal(err)
	}
	both := Join(f, other)
	if got, want := both.Sources(), append(f.Sources(), other.Sources()...); !slices.Equal(got, want) || len(both.patterns) != 2 || len(f.patterns) != 1 {
		t.Errorf("joined %q, want %q", got, want)
	}
	known, err := registry.New(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []*schemas.Schema{schemas.Note(), schemas.Features(), schemas.Activity()} {
		if _, err := known.Admit(s); err != nil {
			t.Fatal(err)
		}
	}
	of := EnvOf(known.Snapshot())
	if !slices.Equal(of.Record, []*column.Layout{schemas.Note().Layout(), schemas.Activity().Layout()}) || !slices.Equal(of.Entity, []*column.Layout{schemas.Features().Layout()}) || of.Mode != expr.Filter {
		t.Errorf("%+v is what filters may refer to", of)
	}
	c := Counts{1, 2, 3, 4}
	c.AddAll(Counts{10, 20, 30, 40})
	if c != (Counts{11, 22, 33, 44}) {
		t.Errorf("counts add to %+v", c)
	}
}
