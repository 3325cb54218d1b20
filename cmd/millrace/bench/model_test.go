package bench

import (
	"bytes"
	"encoding/json"
	"flag"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/relevance/plan"
)

var rewrite = flag.Bool("rewrite", false, "write the golden rows and the manifests of the models")

// The packs' golden rows and manifests are those of their specs.
func TestModelsAreFresh(t *testing.T) {
	for name, features := range map[string]int{"fifty": 50} {
		t.Run(name, func(t *testing.T) { testModel(t, name, features) })
	}
}

func testModel(t *testing.T, name string, features int) {
	m, err := relevance.ParseFile(os.DirFS(name), modelpack.SpecFile, relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	if n := len(m.Spec().Features); n != features {
		t.Errorf("%d features, want %d", n, features)
	}
	fresh(t, name+"/"+modelpack.GoldenFile, golden(m))
	if *rewrite {
		if _, err := modelpack.Seal(name, relevance.ShippedSchemas()); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := readPack(name); err != nil && !*rewrite {
		t.Errorf("the pack is not fit to serve; run go test ./cmd/millrace/bench -rewrite: %v", err)
	}
}

// golden is rows of features with the score that the weights make of them,
// added up here, and one of a record.
func golden(m *relevance.Model) []byte {
	r := rand.New(rand.NewPCG(50, 0))
	var out bytes.Buffer
	for range 20 {
		score, row := m.Parameters().Bias, map[string]any{}
		for _, f := range m.FeatureTypes() {
			w := m.Parameters().Weights[f.Name]
			if f.Type == plan.String.String() {
				row[f.Name] = "post"
				score += w.Table.Strings["post"]
				continue
			}
			x := float64(r.IntN(64)) / 8
			row[f.Name] = x
			score += w.Scalar * x
		}
		line, err := json.Marshal(modelpack.Golden{Features: row, Score: &score})
		if err != nil {
			panic(err)
		}
		out.Write(append(line, '\n'))
	}
	row := modelpack.Golden{
		Record: map[string]any{
			"id": "post:1", "actor": "member:1", "verb": "post", "created_at": 1_700_000_000_000.0, "object": "post:1", "language": "en", "country": "Peru", "visibility": "public",
			"text": "A photo.", "likes": 12.0, "comments": 3.0, "shares": 2.0, "impressions": 400.0, "features": []any{0.5, 0.25}, "about": []any{"member:2"}, "version": 1.0,
		},
		Viewer: map[string]any{"id": "member:2", "country": "Peru", "freshness_hours": 6.0, "chatty": 0.5, "visual": 0.5, "languages": []any{"en"}}, AsOf: 1_700_010_000_000.0,
	}
	if err := row.Complete(m, relevance.ShippedSchemas()); err != nil {
		panic(err)
	}
	line, err := json.Marshal(row)
	if err != nil {
		panic(err)
	}
	out.Write(append(line, '\n'))
	return out.Bytes()
}

func fresh(t *testing.T, path string, want []byte) {
	t.Helper()
	if *rewrite {
		if err := os.WriteFile(path, want, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is stale; run go test ./cmd/millrace/bench -rewrite (%v)", path, err)
	}
}
