package answers

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

const (
	reviewSpec = `name: liked
version: "1"
schemas: [shop.Review]
features: {likes: record.likes, text: size(record.text)}
scorer: linear
parameters: {weights: {likes: 1, text: 100}}
`
	reviewRow = `{"features":{"likes":3,"text":2},"score":203,"record":{"id":"r","who":"a","kind":"k","at":1,"likes":3,"text":"ab"},"schema":"shop.Review"}`
)

// Whatever schema of a name, or of another name, is admitted behind it, what a
// filter and a model read of a record stays, and the oracle says the same.
func TestASchemaTakesNothingAway(t *testing.T) {
	likes, text := `{"name":"likes","type":"long"}`, `{"name":"text","type":"string"}`
	first := nodetest.Review(t, "Review", likes, text)
	for name, c := range map[string]struct {
		next  *schemas.Schema
		extra string // of a record of it
		score string // of that record
	}{
		"drops":              {nodetest.Review(t, "Review", text), `,"text":"xy"`, "NaN"},
		"drops text":         {nodetest.Review(t, "Review", likes), `,"likes":5`, "5"},
		"renames":            {nodetest.Review(t, "Review", `{"name":"hearts","type":"long","aliases":["likes"]}`, text), `,"hearts":5,"text":"xy"`, "205"},
		"makes it a double":  {nodetest.Review(t, "Review", `{"name":"likes","type":"double"}`, text), `,"likes":4.5,"text":"xy"`, "204.5"},
		"makes it a union":   {nodetest.Review(t, "Review", `{"name":"likes","type":["string","long"]}`, text), `,"likes":"many","text":"xy"`, "NaN"},
		"makes text bytes":   {nodetest.Review(t, "Review", likes, `{"name":"text","type":"bytes"}`), `,"likes":5,"text":"AAAA"`, "5"},
		"another's string":   {nodetest.Review(t, "Other", `{"name":"likes","type":"string"}`, `{"name":"text","type":"boolean"}`), `,"likes":"many","text":true`, "NaN"},
		"another's double":   {nodetest.Review(t, "Other", `{"name":"likes","type":"double"}`, `{"name":"text","type":"string"}`), `,"likes":4.5,"text":"xy"`, "204.5"},
		"another's datetime": {nodetest.Review(t, "Other", `{"name":"likes","type":{"type":"long","logicalType":"timestamp-millis"}}`), `,"likes":5`, "5"},
	} {
		t.Run(name, func(t *testing.T) {
			n, h := openNode(t, cache.Config{})
			feed, eval := oracle.New(), must(oracle.NewEval(schemas.Activity(), schemas.Features(), first, c.next))(t)
			load := func(s *schemas.Schema, line string, next millrace.Offset) {
				nodetest.BringOf(t, h, s, line, next)
				if err := feed.Load(s, []byte(line)); err != nil {
					t.Fatal(err)
				}
			}
			ask := func(filter string, model relevance.ID) *nodev1.QueryResponse {
				resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) {
					r.Filter, r.Model, r.ModelVersion, r.ModelSum = filter, model.Name, model.Version, model.Sum
				}))
				if err != nil {
					t.Fatalf("%s: %v", filter, err)
				}
				return resp
			}
			if _, err := n.schemas.Admit(first); err != nil {
				t.Fatal(err)
			}
			load(first, `{"id":"r1","who":"member:1","kind":"post","at":1600000000000,"likes":3,"text":"ab"}`, 1)
			load(first, `{"id":"r2","who":"member:1","kind":"post","at":1600000000001,"likes":7,"text":"a text of some length"}`, 2)
			known := relevance.SchemasOf(n.schemas.Snapshot())
			model, err := nodetest.PackOf(t, reviewSpec, reviewRow, known).Admit(n.models, "a", known)
			if err != nil {
				t.Fatal(err)
			}
			ask("", model) // into the cache

			if _, err := n.schemas.Admit(c.next); err != nil {
				t.Fatal(err)
			}
			n.cache.Purge() // as when the log brings a schema
			load(c.next, `{"id":"r3","who":"member:1","kind":"post","at":1600000000002`+c.extra+`}`, 3)
			load(first, `{"id":"r4","who":"member:1","kind":"post","at":1600000000003,"likes":1,"text":"abc"}`, 4)

			scores := map[string]string{}
			for _, it := range ask("", model).Items {
				scores[it.Id] = fmt.Sprint(it.Score)
			}
			want := map[string]string{"r1": "203", "r2": "2107", "r3": c.score, "r4": "301"}
			for id, score := range want {
				if scores[id] != score {
					t.Errorf("%s scores %s, want %s", id, scores[id], score)
				}
			}
			for src, kept := range map[string][]string{
				"record.likes > 2":                                           {"r1", "r2"},
				"record.likes % 2 == 1":                                      {"r1", "r2", "r4"},
				"record.likes / 2 == 1":                                      {"r1"},
				"record.likes * 2 < 7 && record.text != \"\"":                {"r1", "r4"},
				"record.likes == null || record.likes + 1 > 3":               {"r1", "r2"},
				"has(record.likes) && has(record.text)":                      {"r1", "r2", "r4"},
				"record.text.contains(\"a\") && size(record.text) < 20":      {"r1", "r4"},
				"record.likes in [3, 7]":                                     {"r1", "r2"},
				"(record.likes > 2 ? record.likes : 0) > 2":                  {"r1", "r2"},
				"record.text == null || record.text == \"ab\"":               {"r1"},
				"record.likes != 3":                                          {"r2", "r4"},
				"!has(record.likes)":                                         nil,
				"record.likes >= 0 || record.likes < 0 || record.at < as_of": {"r1", "r2", "r4"},
			} {
				keep, err := eval.Filter(src)
				if err != nil {
					t.Fatal(err)
				}
				var ids, wanted []string
				for _, it := range ask(src, relevance.ID{Name: "recency"}).Items {
					ids = append(ids, it.Id)
				}
				answer := feed.Query(oracle.Query{Entities: []millrace.Entity{"member:1"}, To: millrace.MaxTime, AsOf: 1_700_000_000_000, Limit: 10, Filter: keep, Score: eval.Score(must(relevance.Builtin().Get("recency"))(t))})
				for _, it := range answer.Items {
					wanted = append(wanted, string(it.ID))
				}
				if !slices.Equal(ids, wanted) {
					t.Errorf("%s keeps %v, and the oracle %v", src, ids, wanted)
				}
				for _, id := range kept {
					if !slices.Contains(ids, id) {
						t.Errorf("%s drops %s", src, id)
					}
				}
				if slices.Contains(ids, "r1") != slices.Contains(kept, "r1") {
					t.Errorf("%s keeps %v; of r1 it must say %v", src, ids, kept)
				}
			}
		})
	}
}

func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}
