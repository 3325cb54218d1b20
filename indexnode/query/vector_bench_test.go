package query

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// A feed that is ranked by embeddings: records with a vector of 64 numbers, 20 a
// timeline, and questions of 200 timelines by the product with the viewer's vector.
const (
	vectorItems     = 64
	vectorRows      = 20
	vectorTimelines = 200
	vectorQuestions = 10
)

// vectorWorld is timelines of records with vectors.
type vectorWorld struct {
	schema *schemas.Schema
	keys   []millrace.Timeline
	held   []*cache.Timeline
	record float64 // bytes that a cached one takes
	body   float64
}

// newVectorWorld makes records of which the vectors are ints or floats of Avro; small
// ones are whole numbers from -128 to 127.
func newVectorWorld(b *testing.B, items string, small bool) *vectorWorld {
	s, err := schemas.Parse(fmt.Appendf(nil, `{"type":"record","name":"Vector_%s_%v","fields":[{"name":"id","type":"string","millrace":"id"},{"name":"author","type":"string","millrace":"entity"},
		{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"vec","type":{"type":"array","items":%q}}]}`, items, small, items))
	if err != nil {
		b.Fatal(err)
	}
	d, err := schemas.NewDecoder(s, s)
	if err != nil {
		b.Fatal(err)
	}
	w, r, before := &vectorWorld{schema: s}, rand.New(rand.NewPCG(64, 64)), 0
	if held.Cache != nil {
		before = held.Stats().Bytes
	}
	timelines := 20_000
	if testing.Short() {
		timelines = 1000
	}
	slabs := make([]*column.Slab, 500)
	for i := range slabs {
		a := column.New(s.Layout(), vectorRows, 0).Append()
		for j := range vectorRows {
			vec := make([]string, vectorItems)
			for k := range vec {
				if vec[k] = fmt.Sprint(float32(r.NormFloat64())); small {
					vec[k] = fmt.Sprint(r.IntN(256) - 128)
				}
			}
			body, err := s.EncodeJSON(fmt.Appendf(nil, `{"id":"post:%d/%d","author":"member:%d","kind":"post","at":%d,"vec":[%s]}`, i, j, i, asOf-100_000+j, strings.Join(vec, ",")))
			if err == nil {
				err = d.Append(a, body)
			}
			if err != nil {
				b.Fatal(err)
			}
			w.body += float64(len(body)) / float64(len(slabs)*vectorRows)
		}
		slabs[i] = a.Slab()
	}
	for i := range timelines {
		w.keys = append(w.keys, millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"})
		w.held = append(w.held, hold(b, slabs[i*7919%len(slabs)]))
	}
	w.record = float64(held.Stats().Bytes-before) / float64(timelines*vectorRows)
	return w
}

func (w *vectorWorld) model(b *testing.B, feature string) *relevance.Model {
	m, err := relevance.Parse("near.yaml", fmt.Appendf(nil, "name: near\nversion: \"1\"\nschemas: [%[1]s]\nviewer: {vec: list(double)}\nfeatures: {near: %[2]q}\nscorer: linear\nparameters: {weights: {near: 1}}\n", w.schema.Name(), feature),
		relevance.Schemas{w.schema.Name(): relevance.Records{Layout: w.schema.Layout()}})
	if err != nil {
		b.Fatal(err)
	}
	return m
}

// touching registers code that finds the vectors as similarities do, and reads every nth
// item and the last of each: all of its cache lines.
func touching(b *testing.B, m *relevance.Model, w *vectorWorld, n int) {
	p, err := relevance.Join(m).Plan(w.schema.Layout(), nil)
	if err != nil {
		b.Fatal(err)
	}
	lists := make([]column.List, batchRows)
	compute.RegisterModel(compute.Model{Name: "touch", Shape: p.Shape(), Score: func(k *compute.ModelArgs) {
		for from := 0; from < len(k.Sel); from += compute.MatrixRows {
			sel := k.Sel[from:min(from+compute.MatrixRows, len(k.Sel))]
			k.Rows.ListsAt(lists, k.Columns[0], sel)
			for i := range sel {
				x := lists[i].At(vectorItems - 1)
				for at := 0; at < vectorItems-1; at += n {
					x += lists[i].At(at)
				}
				k.Out[from+i] = x
			}
		}
	}})
}

// copying registers code as it was generated before there were similarities: it copies
// each list.
func copying(b *testing.B, m *relevance.Model, w *vectorWorld, of func(a, b []float64) float64) {
	p, err := relevance.Join(m).Plan(w.schema.Layout(), nil)
	if err != nil {
		b.Fatal(err)
	}
	compute.RegisterModel(compute.Model{Name: "near", Shape: p.Former(), Score: func(k *compute.ModelArgs) {
		sel := k.Sel
		rows, out := k.Rows, k.Out[:len(sel)]
		list := k.Lists[0]
		for i, r := range sel {
			k.Arena.Reset()
			vec := k.Arena.Numbers(rows, k.Columns[0], int(r))
			out[i] = compute.Score(k.Weights[0] + float64(k.Weights[1]*of(vec, list)))
		}
	}})
}

// BenchmarkVectors gives the figures of vectors: ns a candidate of the product, of the
// cosine and of l2, above a question that finds the vectors too and reads an item of each cache
// line of them, which is the touch floor; against code that copies each vector; and what a cached record takes.
func BenchmarkVectors(b *testing.B) {
	for _, c := range []struct {
		name, items string
		small       bool // what records have, as whole numbers from -128 to 127
		whole       bool // what the viewer has, as int16s
		width       int
	}{
		{"int8", "int", true, true, 1},
		{"int8_by_fractions", "int", true, false, 1},
		{"float32", "float", false, false, 4},
		{"float64", "double", false, false, 8},
	} {
		b.Run(c.name, func(b *testing.B) {
			w := newVectorWorld(b, c.items, c.small)
			r := rand.New(rand.NewPCG(5, 5))
			vec := make([]float64, vectorItems)
			for i := range vec {
				if vec[i] = r.NormFloat64(); c.whole {
					vec[i] = math.Round(100 * vec[i])
				}
			}
			viewer := &millrace.Viewer{ID: "member:1", Attributes: map[string]any{"vec": vec}}
			ask := func(m *relevance.Model, queries [][]asked) time.Duration {
				return timed(func() {
					for _, timelines := range queries {
						q := New(Spec{To: asOf, AsOf: asOf, Limit: 20, Model: m, Viewer: viewer})
						for i := range timelines {
							q.Add(timelines[i].timeline, timelines[i].held, column.Packed{})
						}
						if err := q.Scan(context.Background()); err != nil {
							b.Fatal(err)
						}
						q.Release()
					}
				})
			}
			draws := func() (queries [][]asked) {
				for range vectorQuestions {
					var q []asked
					for range vectorTimelines {
						at := r.IntN(len(w.keys))
						q = append(q, asked{timeline: w.keys[at], held: w.held[at]})
					}
					queries = append(queries, q)
				}
				return queries
			}
			touch, dot, cosine := w.model(b, "record.vec[0] * viewer.vec[0]"), w.model(b, "dot(record.vec, viewer.vec)"), w.model(b, "cosine(record.vec, viewer.vec)")
			touching(b, touch, w, 64/c.width)
			copying(b, dot, w, compute.Dot)
			copying(b, cosine, w, compute.Cosine)
			l2 := w.model(b, "l2(record.vec, viewer.vec)")
			models := []*relevance.Model{touch, dot.Interpreted(), cosine.Interpreted(), dot, cosine, l2}
			took := make([][]time.Duration, len(models))
			for range 41 {
				for i, m := range models {
					took[i] = append(took[i], ask(m, draws()))
				}
			}
			queries := draws()
			for b.Loop() {
				ask(models[1], queries)
			}
			const candidates = vectorQuestions * vectorTimelines * vectorRows
			above := func(i int) float64 { return (float64(median(took[i])) - float64(median(took[0]))) / candidates }
			b.ReportMetric(float64(median(took[0]))/candidates, "ns/candidate-touch")
			b.ReportMetric(w.record, "B/record")
			b.ReportMetric(w.body, "B/record-body")
			figure.Print("vectors_"+c.name+"_dot_above_touch_floor_ns", above(1), "ns")
			figure.Print("vectors_"+c.name+"_cosine_above_touch_floor_ns", above(2), "ns")
			figure.Print("vectors_"+c.name+"_l2_above_touch_floor_ns", above(5), "ns")
			figure.Print("vectors_"+c.name+"_dot_copied_above_touch_floor_ns", above(3), "ns")
			figure.Print("vectors_"+c.name+"_cosine_copied_above_touch_floor_ns", above(4), "ns")
			figure.Print("vectors_"+c.name+"_bytes_a_record", w.record, "B")
			runtime.KeepAlive(w)
		})
	}
}
