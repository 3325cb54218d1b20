package query

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
	"github.com/millrace/millrace/internal/filter"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// A feed that is ranked by vectors scores records as the functions of package compute
// say of the lists that were written: small whole numbers, floats, lists of another
// length and none, with filters that leave gaps, and vectors of entities.
func TestVectors(t *testing.T) {
	r := rand.New(rand.NewPCG(64, 1))
	for _, items := range []string{"int", "float", "double"} {
		s, err := schemas.Parse(fmt.Appendf(nil, `{"type":"record","name":"Vectors_%s","fields":[{"name":"id","type":"string","millrace":"id"},{"name":"author","type":"string","millrace":"entity"},
			{"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"n","type":"int"},{"name":"vec","type":{"type":"array","items":%q}}]}`, items, items))
		if err != nil {
			t.Fatal(err)
		}
		draw := func(n int) []float64 {
			vec := make([]float64, n)
			for i := range vec {
				if vec[i] = float64(r.IntN(256) - 128); items != "int" {
					vec[i] = float64(float32(r.NormFloat64()))
				}
			}
			return vec
		}
		text := func(vec []float64) string {
			b, err := json.Marshal(vec)
			if err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		m, err := relevance.Parse("vectors.yaml", fmt.Appendf(nil, `
name: vectors
version: "1"
schemas: [%s]
entity: millrace.Features
viewer: {vec: list(double), of: list(double)}
features:
  near: coalesce(dot(record.vec, viewer.vec), -1)
  like: coalesce(cosine(record.vec, viewer.vec), -1)
  far: coalesce(l2(record.vec, viewer.vec), -1)
  author: coalesce(cosine(entity.embedding, viewer.of), -1)
scorer: linear
parameters: {weights: {near: 1, like: 1, far: 1, author: 1}}
`, s.Name()), relevance.Schemas{s.Name(): {Layout: s.Layout()}, "millrace.Features": {Layout: schemas.Features().Layout()}})
		if err != nil {
			t.Fatal(err)
		}
		for _, viewers := range [][2][]float64{
			{draw(64), draw(8)}, {draw(100), draw(8)}, {{}, {}}, {append(draw(63), 0.5), draw(9)}, {append(draw(63), 40_000), draw(8)},
		} {
			want := map[millrace.RecordID]float64{}
			q := New(Spec{To: asOf, AsOf: asOf, Limit: 5000, Model: m,
				Filter: compiled(t, s, `record.n != 3 && record.n < 8`),
				Viewer: &millrace.Viewer{Attributes: map[string]any{"vec": viewers[0], "of": viewers[1]}}})
			or := func(x float64) float64 { return compute.Coalesce(x, -1) }
			for i := range 40 {
				key := millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"}
				var entity column.Packed
				author := -1.0
				if i%4 > 0 {
					embedding := draw(8)
					entity = timelineOf(t, schemas.Features(), fmt.Sprintf(`{"entity":%q,"updated_at":1,"embedding":%s}`, key.Entity, text(embedding))).First()
					author = or(compute.Cosine(embedding, viewers[1]))
				}
				var lines []string
				for j := range 1 + r.IntN(80) {
					vec, n := draw([]int{0, 63, 64, 64, 64, 64, 100}[r.IntN(7)]), r.IntN(10)
					id := fmt.Sprintf("%d/%d", i, j)
					lines = append(lines, fmt.Sprintf(`{"id":%q,"author":%q,"kind":"post","at":%d,"n":%d,"vec":%s}`, id, key.Entity, asOf-1000+j, n, text(vec)))
					if n != 3 && n < 8 {
						want[millrace.RecordID(id)] = (or(compute.Dot(vec, viewers[0])) + or(compute.Cosine(vec, viewers[0]))) + (or(compute.L2(vec, viewers[0])) + author)
					}
				}
				q.Add(key, timelineOf(t, s, lines...), entity)
			}
			if err := q.Scan(t.Context()); err != nil {
				t.Fatal(err)
			}
			found := q.Answer().Items
			if len(found) != len(want) {
				t.Fatalf("%d items, want %d", len(found), len(want))
			}
			for _, it := range found {
				if x := want[it.ID]; it.Score != x {
					t.Fatalf("%s: %s has %v, want %v", items, it.ID, it.Score, x)
				}
			}
			q.Release()
		}
	}
}

func compiled(t *testing.T, s *schemas.Schema, source string) *filter.Filter {
	t.Helper()
	f, err := filter.Compile(source, expr.Env{Record: []*column.Layout{s.Layout()}})
	if err != nil {
		t.Fatal(err)
	}
	return f
}
