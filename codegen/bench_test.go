package codegen

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/relevance"
)

// The benchmark's model has fifty features over twelve counters and a time:
// raw values, buckets, thresholds, crosses, log1p and decays; three
// depend on the viewer or the instant. Each is written three ways: as an
// expression of a spec, over maps, and over slices by index.
type benchFeature struct {
	kind   string
	a, b   int // counters
	p      float64
	weight float64
}

const (
	benchCounters = 12
	benchRows     = 4096
	benchNow      = 1_700_000_000_000
)

var benchBounds = []float64{1, 10, 100}

func benchFeatures() []benchFeature {
	r := rand.New(rand.NewPCG(5, 0))
	var out []benchFeature
	for kind, n := range map[string]int{"raw": 13, "cross": 14, "bucket": 8, "above": 6, "log1p": 6, "decay": 1, "viewer": 2} {
		for range n {
			out = append(out, benchFeature{kind: kind})
		}
	}
	slices.SortFunc(out, func(x, y benchFeature) int { return strings.Compare(x.kind, y.kind) })
	for i := range out {
		out[i].a, out[i].b = r.IntN(benchCounters), r.IntN(benchCounters)
		out[i].p, out[i].weight = float64(r.IntN(50)), r.NormFloat64()/100
	}
	return out
}

func (f benchFeature) expression() string {
	a, b := fmt.Sprintf("record.c%d", f.a), fmt.Sprintf("record.c%d", f.b)
	switch f.kind {
	case "cross":
		return a + " * " + b
	case "bucket":
		return "bucketize(" + a + ", [1, 10, 100])"
	case "above":
		return fmt.Sprintf("%s > %v", a, f.p)
	case "log1p":
		return "log1p(" + a + ")"
	case "decay":
		return "decay(record.at, 3600)"
	case "viewer":
		return "viewer.taste * " + a
	}
	return a
}

// benchSpec is the spec of the benchmark, kept as a case of the corpus.
func benchSpec() []byte {
	var b, w strings.Builder
	b.WriteString("# Written by the benchmark: go test ./codegen -rewrite.\nname: fifty\nversion: \"1\"\nschemas: [test.Counters]\nviewer: {taste: double}\nfeatures:\n")
	for i, f := range benchFeatures() {
		fmt.Fprintf(&b, "  f%d: %s\n", i, f.expression())
		fmt.Fprintf(&w, "    f%d: %v\n", i, f.weight)
	}
	return []byte(b.String() + "scorer: linear\nparameters:\n  weights:\n" + w.String())
}

func countersLayout() *column.Layout {
	fields := []column.Field{{Name: "at", Kind: column.Time, Role: "time"}}
	for i := range benchCounters {
		fields = append(fields, column.Field{Name: fmt.Sprintf("c%d", i), Kind: column.Int})
	}
	l, err := column.NewLayout(fields)
	if err != nil {
		panic(err)
	}
	return l
}

// TestBenchSpecIsFresh keeps the corpus's case what the benchmark measures.
func TestBenchSpecIsFresh(t *testing.T) {
	checkFile(t, "testdata/fifty/spec.yaml", benchSpec())
}

// benchWorld is the same records in each of the three forms.
type benchWorld struct {
	slab  *column.Slab
	sel   []int32
	maps  []map[string]any
	index [][]float64 // the counters, then the time
}

func newBenchWorld() benchWorld {
	r := rand.New(rand.NewPCG(6, 0))
	var w benchWorld
	a := column.New(counters, benchRows, 0).Append()
	for i := range benchRows {
		row := a.Begin()
		at := int64(benchNow - r.IntN(86_400_000))
		row.SetInt(0, at)
		m := map[string]any{"at": at}
		x := make([]float64, benchCounters+1)
		x[benchCounters] = float64(at)
		for c := range benchCounters {
			n := int64(r.IntN(200))
			row.SetInt(c+1, n)
			m[fmt.Sprintf("c%d", c)] = n
			x[c] = float64(n)
		}
		if err := a.End(row); err != nil {
			panic(err)
		}
		w.maps, w.index, w.sel = append(w.maps, m), append(w.index, x), append(w.sel, int32(i))
	}
	w.slab = a.Slab()
	return w
}

// mapFeature is a feature of a library that keeps everything in maps: it reads
// the record's fields by name and writes its value by name.
type mapFeature struct {
	name    string
	compute func(record map[string]any, viewer map[string]float64) float64
}

func number(record map[string]any, name string) float64 {
	switch v := record[name].(type) {
	case int64:
		return float64(v)
	case float64:
		return v
	}
	return math.NaN()
}

func mapLibrary() (features []mapFeature, weights map[string]float64) {
	weights = map[string]float64{}
	for i, f := range benchFeatures() {
		a, b := fmt.Sprintf("c%d", f.a), fmt.Sprintf("c%d", f.b)
		var c func(r map[string]any, v map[string]float64) float64
		switch f.kind {
		case "raw":
			c = func(r map[string]any, _ map[string]float64) float64 { return number(r, a) }
		case "cross":
			c = func(r map[string]any, _ map[string]float64) float64 { return number(r, a) * number(r, b) }
		case "bucket":
			c = func(r map[string]any, _ map[string]float64) float64 {
				return compute.Bucketize(number(r, a), benchBounds)
			}
		case "above":
			c = func(r map[string]any, _ map[string]float64) float64 { return compute.Bool(number(r, a) > f.p) }
		case "log1p":
			c = func(r map[string]any, _ map[string]float64) float64 { return compute.Log1p(number(r, a)) }
		case "decay":
			c = func(r map[string]any, v map[string]float64) float64 {
				return compute.Decay(compute.Age(number(r, "at"), v["now"]), 3600)
			}
		case "viewer":
			c = func(r map[string]any, v map[string]float64) float64 { return v["taste"] * number(r, a) }
		}
		name := fmt.Sprintf("f%d", i)
		features = append(features, mapFeature{name, c})
		weights[name] = f.weight
	}
	return features, weights
}

func scoreMaps(w *benchWorld, rows int, features []mapFeature, weights map[string]float64, out []float64) {
	viewer := map[string]float64{"taste": 0.5, "now": benchNow}
	for i, record := range w.maps[:rows] {
		values := map[string]float64{}
		for _, f := range features {
			values[f.name] = f.compute(record, viewer)
		}
		sum := 0.0
		for name, v := range values {
			sum += weights[name] * v
		}
		out[i] = sum
	}
}

// scoreIndexed interprets the features one record at a time, everything by
// index.
func scoreIndexed(w *benchWorld, features []benchFeature, kinds []int, values, out []float64) {
	for i, x := range w.index {
		for k := range features {
			f := &features[k]
			switch kinds[k] {
			case 0:
				values[k] = x[f.a]
			case 1:
				values[k] = x[f.a] * x[f.b]
			case 2:
				values[k] = compute.Bucketize(x[f.a], benchBounds)
			case 3:
				values[k] = compute.Bool(x[f.a] > f.p)
			case 4:
				values[k] = compute.Log1p(x[f.a])
			case 5:
				values[k] = compute.Decay(compute.Age(x[benchCounters], benchNow), 3600)
			case 6:
				values[k] = 0.5 * x[f.a]
			}
		}
		sum := 0.0
		for k := range features {
			sum += features[k].weight * values[k]
		}
		out[i] = sum
	}
}

// BenchmarkScore gives the figures of scoring: generated code against maps,
// against slices by index, against the interpreter, and folded.
func BenchmarkScore(b *testing.B) {
	m, err := relevance.ParseFile(os.DirFS("testdata/fifty"), "spec.yaml", known())
	if err != nil {
		b.Fatal(err)
	}
	w, out := newBenchWorld(), make([]float64, benchRows)
	viewer := &millrace.Viewer{Features: map[string]float64{"taste": 0.5}}
	bind := func(m *relevance.Model) *relevance.Scorer {
		s, err := m.Bind(counters, nil, viewer, benchNow)
		if err != nil {
			b.Fatal(err)
		}
		return s
	}
	fast, slow := bind(m), bind(m.Interpreted())
	if fast.Execution() != "generated" {
		b.Fatal("the benchmark's model is not generated")
	}
	fold, err := m.BindFold(counters, nil)
	if err != nil {
		b.Fatal(err)
	}
	own := make([]float64, benchRows)
	fold.Score(w.slab, w.sel, nil, own)
	features := benchFeatures()
	kinds := make([]int, len(features))
	for i, f := range features {
		kinds[i] = slices.Index([]string{"raw", "cross", "bucket", "above", "log1p", "decay", "viewer"}, f.kind)
	}
	library, weights := mapLibrary()
	values := make([]float64, len(features))
	const mapRows = benchRows / 16
	ways := []struct {
		rows int
		run  func(out []float64)
	}{
		{benchRows, func(out []float64) { fast.Score(w.slab, w.sel, nil, out) }},
		{benchRows, func(out []float64) { slow.Score(w.slab, w.sel, nil, out) }},
		{benchRows, func(out []float64) { fast.ScoreFolded(own, w.slab, w.sel, nil, out) }},
		{benchRows, func(out []float64) { scoreIndexed(&w, features, kinds, values, out) }},
		{mapRows, func(out []float64) { scoreMaps(&w, mapRows, library, weights, out) }},
	}
	want := make([]float64, benchRows)
	ways[0].run(want)
	ns := make([][]float64, len(ways))
	for range 21 {
		for k, way := range ways {
			began := cpuTime()
			for range 4 {
				way.run(out)
			}
			ns[k] = append(ns[k], float64(cpuTime()-began)/float64(4*way.rows))
			for i := range way.rows {
				if math.Abs(out[i]-want[i]) > 1e-6*math.Abs(want[i])+1e-9 {
					b.Fatalf("way %d: row %d scores %v, want %v", k, i, out[i], want[i])
				}
			}
		}
	}
	for _, s := range []*relevance.Scorer{fast, slow} {
		if n := testing.AllocsPerRun(3, func() { s.Score(w.slab, w.sel, nil, out); s.ScoreFolded(own, w.slab, w.sel, nil, out) }); n != 0 {
			b.Fatalf("%s: %v allocations", s.Execution(), n)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		fast.Score(w.slab, w.sel, nil, out)
	}
	generated, interpreted, folded, indexed, maps := median(ns[0]), median(ns[1]), median(ns[2]), median(ns[3]), median(ns[4])
	b.ReportMetric(generated, "ns/record")
	b.ReportMetric(interpreted, "ns/record-interpreted")
	b.ReportMetric(folded, "ns/record-folded")
	b.ReportMetric(indexed, "ns/record-indexed")
	b.ReportMetric(maps, "ns/record-maps")
	figure.Print("score_generated_vs_maps", maps/generated, "x")
	figure.Print("score_generated_vs_indexed", indexed/generated, "x")
	figure.Print("score_interpreted_vs_generated", interpreted/generated, "x")
	figure.Print("score_folded_vs_generated", folded/generated, "x")
}

// BenchmarkJoint gives the figure of scoring by two models at once, against
// each alone: the model of fifty features as control and as treatment, whose
// coefficients differ.
func BenchmarkJoint(b *testing.B) {
	m := models()["fifty"]
	w, viewer := newBenchWorld(), &millrace.Viewer{Features: map[string]float64{"taste": 0.5}}
	alone, err := m.Bind(counters, nil, viewer, benchNow)
	if err != nil {
		b.Fatal(err)
	}
	joint, err := relevance.Join(m, m).Bind(counters, nil, viewer, benchNow)
	if err != nil {
		b.Fatal(err)
	}
	if joint.Execution() != "generated" {
		b.Fatal("the feed of the benchmark is not generated")
	}
	out := [][]float64{make([]float64, benchRows), make([]float64, benchRows)}
	ways := []func(){
		func() { joint.Score(w.slab, w.sel, nil, out) },
		func() { alone.Score(w.slab, w.sel, nil, out[0]); alone.Score(w.slab, w.sel, nil, out[1]) },
	}
	ns := make([][]float64, len(ways))
	for range 9 {
		for k, way := range ways {
			began := cpuTime()
			for range 8 {
				way()
			}
			ns[k] = append(ns[k], float64(cpuTime()-began)/(8*benchRows))
		}
	}
	if n := testing.AllocsPerRun(3, ways[0]); n != 0 {
		b.Fatalf("%v allocations", n)
	}
	b.ReportAllocs()
	for b.Loop() {
		ways[0]()
	}
	b.ReportMetric(median(ns[0]), "ns/record")
	b.ReportMetric(median(ns[1]), "ns/record-alone")
	figure.Print("score_joint_vs_alone", median(ns[0])/median(ns[1]), "x")
}

func median(x []float64) float64 {
	x = slices.Sorted(slices.Values(x))
	return x[len(x)/2]
}

// cpuTime is the process's, since a busy machine stretches any other.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
