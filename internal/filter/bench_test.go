package filter

import (
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	_ "github.com/millrace/millrace/codegen/testdata/filter_five"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/expr/celref"
	"github.com/millrace/millrace/internal/figure"
)

// fiveClauses is a usual filter: an age, a list, a flag, a floor, a name.
const fiveClauses = `record.created_at > as_of - duration("720h") && record.language in ["en", "de", "fr"] && !record.sensitive && record.likes >= 3 && record.visibility == "public"`

// timelineRows is how many records a timeline of the benchmark has.
const timelineRows = 20

func benchWorld(t testing.TB, timelines int) (l *column.Layout, slabs []*column.Slab, maps []map[string]any) {
	r := rand.New(rand.NewPCG(7, 7))
	l = mustLayout(t, []column.Field{
		{Name: "created_at", Kind: column.Time}, {Name: "language", Kind: column.String}, {Name: "sensitive", Kind: column.Bool},
		{Name: "likes", Kind: column.Int}, {Name: "visibility", Kind: column.String},
	})
	for range timelines {
		a := column.New(l, timelineRows, 0).Append()
		for range timelineRows {
			row := a.Begin()
			at := int64(asOf) - r.Int64N(800*3600_000)
			language := pick(r, "en", "en", "de", "fr", "fr", "pt")
			sensitive, likes, visibility := r.IntN(20) == 0, r.Int64N(60), pick(r, "public", "public", "public", "public", "public", "public", "friends")
			row.SetInt(0, at)
			row.SetString(1, []byte(language))
			row.SetBool(2, sensitive)
			row.SetInt(3, likes)
			row.SetString(4, []byte(visibility))
			if err := a.End(row); err != nil {
				t.Fatal(err)
			}
			maps = append(maps, map[string]any{"created_at": millrace.Time(at).Std(), "language": language, "sensitive": sensitive, "likes": likes, "visibility": visibility})
		}
		slabs = append(slabs, a.Slab())
	}
	return l, slabs, maps
}

func bindFor(t testing.TB, l *column.Layout, src string) *Bound {
	t.Helper()
	return bind(t, l, src, func(f *Filter) *Filter { return f })
}

func bindKernels(t testing.TB, l *column.Layout, src string) *Bound {
	t.Helper()
	return bind(t, l, src, (*Filter).Kernels)
}

func bind(t testing.TB, l *column.Layout, src string, as func(*Filter) *Filter) *Bound {
	t.Helper()
	f, err := Compile(src, expr.Env{Record: []*column.Layout{l}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := as(f).Bind(l, nil, nil, asOf)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func selectAll(b *Bound, slabs []*column.Slab, sel []int32) (kept int) {
	for _, s := range slabs {
		kept += len(b.Select(s, 0, s.Len(), nil, sel[:0]))
	}
	return kept
}

// BenchmarkFilter gives the figures filter_vs_cel, how many times longer
// cel-go's own evaluator takes than the kernels, and filter_generated_vs_kernels,
// what share of their time generated code takes, over the same records in the
// same run.
func BenchmarkFilter(b *testing.B) {
	l, slabs, maps := benchWorld(b, 1000)
	generated, sel := bindFor(b, l, fiveClauses), make([]int32, 0, timelineRows)
	if generated.Generated() != 5 {
		b.Fatalf("%d terms are generated", generated.Generated())
	}
	bound := bindKernels(b, l, fiveClauses)
	keep, err := celref.Baseline(fiveClauses)
	if err != nil {
		b.Fatal(err)
	}
	evaluated := func() (kept int) {
		for _, m := range maps {
			if keep(m, asOf) {
				kept++
			}
		}
		return kept
	}
	if got, want := selectAll(bound, slabs, sel), evaluated(); got != want {
		b.Fatalf("keeps %d, cel-go keeps %d", got, want)
	}
	const passes = 50 // of ours, to take about as long as one of cel-go's
	if got, want := selectAll(generated, slabs, sel), selectAll(bound, slabs, sel); got != want {
		b.Fatalf("generated code keeps %d, the kernels %d", got, want)
	}
	var cel, ours, code []time.Duration
	for range 9 {
		code = append(code, timed(func() {
			for range passes {
				selectAll(generated, slabs, sel)
			}
		})/passes)
		ours = append(ours, timed(func() {
			for range passes {
				selectAll(bound, slabs, sel)
			}
		})/passes)
		cel = append(cel, timed(func() { evaluated() }))
	}
	b.ReportAllocs()
	for b.Loop() {
		selectAll(bound, slabs, sel)
	}
	b.ReportMetric(float64(median(ours))/float64(len(maps)), "ns/record")
	b.ReportMetric(float64(median(cel))/float64(len(maps)), "ns/record-cel")
	b.ReportMetric(float64(median(code))/float64(len(maps)), "ns/record-generated")
	figure.Print("filter_generated_vs_kernels", float64(median(code))/float64(median(ours)), "x")
	figure.Print("filter_vs_cel", float64(median(cel))/float64(median(ours)), "x")
}

// median is the middle of at least one duration.
func median(d []time.Duration) time.Duration {
	d = slices.Sorted(slices.Values(d))
	return d[len(d)/2]
}

// timed returns the CPU time of f, since a busy machine stretches any other.
func timed(f func()) time.Duration {
	began := cpuTime()
	f()
	return cpuTime() - began
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkKernels is the same through the general kernels, and what a filter
// costs a query before its first row.
func BenchmarkKernels(b *testing.B) {
	l, slabs, _ := benchWorld(b, 1000)
	bound, sel := bindKernels(b, l, fiveClauses), make([]int32, 0, timelineRows)
	for i := range bound.terms {
		bound.terms[i].fast = nil
	}
	began := cpuTime()
	for b.Loop() {
		selectAll(bound, slabs, sel)
	}
	b.ReportMetric(float64(cpuTime()-began)/float64(b.N*len(slabs)*timelineRows), "ns/record")
}

func BenchmarkCompile(b *testing.B) {
	l, _, _ := benchWorld(b, 1)
	for b.Loop() {
		if _, err := Compile(fiveClauses, expr.Env{Record: []*column.Layout{l}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBind(b *testing.B) {
	l, _, _ := benchWorld(b, 1)
	f, err := Compile(fiveClauses, expr.Env{Record: []*column.Layout{l}})
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := f.Bind(l, nil, nil, asOf); err != nil {
			b.Fatal(err)
		}
	}
}
