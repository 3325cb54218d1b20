package codegen

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/expr/celref"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/schemas"
)

// The filters of the corpus are over activities, over records with fields of
// each kind, with and without nulls, and over those of the filters' benchmark.
var (
	filterLayouts = []*column.Layout{schemas.Activity().Layout(), fieldsLayout(), benchLayout()}
	filterEnv     = expr.Env{Record: filterLayouts}
	filterSources = map[string]string{} // by case
)

func benchLayout() *column.Layout {
	l, err := column.NewLayout([]column.Field{
		{Name: "created_at", Kind: column.Time}, {Name: "language", Kind: column.String}, {Name: "sensitive", Kind: column.Bool},
		{Name: "likes", Kind: column.Int}, {Name: "visibility", Kind: column.String},
	})
	if err != nil {
		panic(err)
	}
	return l
}

func fieldsLayout() *column.Layout {
	var fields []column.Field
	for _, k := range []struct {
		name string
		kind column.Kind
	}{{"i", column.Int}, {"d", column.Double}, {"s", column.String}, {"b", column.Bool}, {"t", column.Time}} {
		fields = append(fields, column.Field{Name: k.name, Kind: k.kind}, column.Field{Name: "n" + k.name, Kind: k.kind, Nullable: true})
	}
	l, err := column.NewLayout(fields)
	if err != nil {
		panic(err)
	}
	return l
}

// filterSource writes random filters.
type filterSource struct{ *rand.Rand }

func one[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

func (g filterSource) filter() string {
	terms := make([]string, 1+g.IntN(6))
	for i := range terms {
		terms[i] = g.term(g.IntN(3))
	}
	return strings.Join(terms, " && ")
}

func (g filterSource) term(depth int) string {
	if depth > 0 {
		switch g.IntN(4) {
		case 0:
			return "(" + g.term(depth-1) + " || " + g.term(depth-1) + ")"
		case 1:
			return "!(" + g.term(depth-1) + ")"
		case 2:
			return "(" + g.term(depth-1) + " || " + g.term(depth-1) + " && " + g.term(depth-1) + ")"
		}
	}
	cmp := one(g.Rand, " == ", " != ", " < ", " <= ", " > ", " >= ")
	field := func(name string) string { return "record." + one(g.Rand, name, "n"+name) }
	switch g.IntN(14) {
	case 0:
		return field("b")
	case 1:
		return "has(" + field(one(g.Rand, "i", "d", "s", "b", "t")) + ")"
	case 2:
		return field(one(g.Rand, "i", "s")) + one(g.Rand, " == ", " != ") + "null"
	case 3, 4:
		return field("i") + cmp + one(g.Rand, "0", "1", "3", "-1", "2.5", "9.3e18", "9223372036854775807")
	case 5:
		return field("d") + cmp + one(g.Rand, "0", "0.5", "-1.0", "3", "1e300")
	case 6:
		return field("s") + one(g.Rand, " == ", " != ") + one(g.Rand, `"en"`, `"a long string"`, `""`)
	case 7:
		return field("s") + ` in ["en", "de"` + one(g.Rand, "", `, "fr"`, `, "a", "b", "c", ""`, `, "a long string", "another long one"`) + "]"
	case 8:
		return field("i") + " in [" + one(g.Rand, "1", "1, 3", "0, 1, 2, 3, 4, 5, -1") + "]"
	case 9:
		return field("t") + cmp + "as_of - duration(" + one(g.Rand, `"1h"`, `"720h"`, `"-1s"`) + ")"
	case 10:
		return "as_of - " + field("t") + cmp + "duration(" + one(g.Rand, `"1h"`, `"0s"`, `"24h"`) + ")"
	case 11:
		return field("t") + cmp + `timestamp("2023-11-14T22:13:20Z")`
	case 12:
		return one(g.Rand, "viewer.x == "+field("s"), field("i")+" % 3 == 1", field("s")+`.startsWith("e")`) // what has no loop
	}
	return one(g.Rand, "1", "0.5") + cmp + field("i")
}

// randomFilters is how many cases of the corpus are random filters.
const randomFilters = 40

// TestRandomFiltersAreFresh keeps the random cases what this file writes.
func TestRandomFiltersAreFresh(t *testing.T) {
	for i := range uint64(randomFilters) {
		text := fmt.Sprintf("# Written by a test: go test ./codegen -rewrite.\nname: random-%d\nfilter: '%s'\n", i, filterSource{rand.New(rand.NewPCG(i, 9))}.filter())
		checkFile(t, filepath.Join("testdata", fmt.Sprintf("filter_random_%02d", i), "feed.yaml"), []byte(text))
	}
}

// filterRecords are random rows, as columns and as maps.
func filterRecords(t testing.TB, r *rand.Rand, l *column.Layout, asOf millrace.Time, n int) (*column.Slab, []map[string]any) {
	a := column.New(l, n, 0).Append()
	var maps []map[string]any
	for range n {
		row, m := a.Begin(), map[string]any{}
		for i, f := range l.Fields() {
			if f.Nullable && r.IntN(4) == 0 {
				row.SetNull(i)
				m[f.Name] = nil
				continue
			}
			switch f.Kind {
			case column.Bool:
				v := r.IntN(2) == 0
				row.SetBool(i, v)
				m[f.Name] = v
			case column.Int:
				v := one[int64](r, 0, 1, 2, 3, 4, -1, 100, math.MaxInt64, math.MinInt64)
				row.SetInt(i, v)
				m[f.Name] = v
			case column.Time:
				v := one(r, int64(asOf), int64(asOf)+1, int64(asOf)-3_600_000, int64(asOf)-r.Int64N(800*3_600_000), 0, math.MaxInt64, math.MinInt64, 1_700_000_000_000)
				row.SetInt(i, v)
				m[f.Name] = millrace.Time(v)
			case column.Double:
				v := one(r, 0, 0.5, -1, 3, math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 1e300)
				row.SetDouble(i, v)
				m[f.Name] = v
			case column.String:
				v := one(r, "", "en", "de", "fr", "a", "a long string", "another long one", "a long strinG")
				row.SetString(i, []byte(v))
				m[f.Name] = v
			case column.Strings:
				m[f.Name] = []string{}
			case column.Doubles:
				m[f.Name] = []float64{}
			}
		}
		if err := a.End(row); err != nil {
			t.Fatal(err)
		}
		maps = append(maps, m)
	}
	return a.Slab(), maps
}

// TestFilters runs the compiled code of each filter of the corpus against the
// kernels and against cel-go, alone and behind the filter of a request.
func TestFilters(t *testing.T) {
	generated, kept, dropped := 0, 0, filter.Counts{}
	for _, name := range cases(t) {
		if f, ok := readFeed(t, name); !ok || f.Filter == nil {
			continue
		}
		for seed := range uint64(10) {
			r := rand.New(rand.NewPCG(seed, 11))
			src := filterSources[name]
			if seed%2 == 1 {
				src = "(" + filterSource{r}.filter() + "\n) && (" + src + "\n)"
			}
			for _, l := range filterLayouts {
				g, k, c := checkFilter(t, r, src, l)
				generated, kept = generated+g, kept+k
				dropped.False, dropped.Null, dropped.Error, dropped.NaN = dropped.False+c.False, dropped.Null+c.Null, dropped.Error+c.Error, dropped.NaN+c.NaN
			}
		}
	}
	t.Logf("%d terms by generated code; %d rows kept, dropped %+v", generated, kept, dropped)
	if generated < 1000 || kept < 1000 || dropped.False < 1000 || dropped.Null < 1000 || dropped.Error < 40 || dropped.NaN < 20 {
		t.Error("the filters try too little")
	}
}

func checkFilter(t *testing.T, r *rand.Rand, src string, l *column.Layout) (generated, kept int, dropped filter.Counts) {
	f, err := filter.Compile(src, filterEnv)
	if err != nil {
		t.Fatalf("%s: %v", src, err)
	}
	ref, err := celref.Compile(src)
	if err != nil {
		t.Fatal(err)
	}
	asOf := millrace.Time(1_700_000_000_000)
	viewer := &millrace.Viewer{Attributes: map[string]any{"x": "en"}}
	slab, maps := filterRecords(t, r, l, asOf, 1+r.IntN(300))
	bytes, err := column.Pack(nil, slab)
	if err != nil {
		t.Fatal(err)
	}
	packed := column.PackedAt(bytes)
	run := func(f *filter.Filter, lo, hi int) ([]int32, filter.Counts, int) {
		// Questions at other instants came before.
		b, err := f.Bind(l, nil, nil, asOf-86_400_001)
		if err != nil {
			t.Fatalf("%s: %v", src, err)
		}
		instants := []millrace.Time{asOf}
		if r.IntN(8) == 0 {
			instants = []millrace.Time{millrace.MaxTime, asOf}
		}
		for _, at := range instants {
			if err := b.Rebind(viewer, at); err != nil {
				t.Fatalf("%s: %v", src, err)
			}
		}
		columns, _ := b.Reads(nil)
		slices.Sort(columns)
		var batch column.Batch // which has what the filter says it reads
		batch.Reset(l, slices.Compact(columns), hi)
		batch.Add(packed, 0, hi)
		return b.Select(batch.Slab(), lo, hi, nil, nil), b.Counts(), b.Generated()
	}
	lo := r.IntN(slab.Len())
	hi := lo + 1 + r.IntN(slab.Len()-lo)
	sel, counts, generated := run(f, lo, hi)
	wantSel, wantCounts, none := run(f.Kernels(), lo, hi)
	if !slices.Equal(sel, wantSel) || counts != wantCounts || none != 0 {
		t.Fatalf("%s\nrows %d to %d: generated keeps %v, drops %+v; kernels keep %v, drop %+v", src, lo, hi, sel, counts, wantSel, wantCounts)
	}
	var cel filter.Counts
	for i, m := range maps[lo:hi] {
		o := ref.Eval(&celref.Input{Record: m, Viewer: viewer, AsOf: asOf})
		if keeps := slices.Contains(sel, int32(lo+i)); keeps != (o == celref.True) {
			t.Fatalf("%s\nrow %v: kept is %t, cel-go says %v", src, m, keeps, o)
		}
		switch o {
		case celref.False:
			cel.False++
		case celref.Null:
			cel.Null++
		case celref.Error:
			cel.Error++
		case celref.NaN:
			cel.NaN++
		}
	}
	if counts != cel {
		t.Fatalf("%s\ndropped %+v, cel-go says %+v", src, counts, cel)
	}
	return generated, len(sel), counts
}
