package answers

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
)

const familySpec = `name: liked
version: "1"
schemas: [shop.Review]
features:
  gone: coalesce(record.gone, -1)
  kept: coalesce(record.kept, -1)
  fresh: coalesce(record.fresh, -1)
  old_name: coalesce(record.stars, -1)
  new_name: coalesce(record.rating, -1)
  wide: coalesce(record.wide, -1)
  several: coalesce(record.several, -1)
  city: lookup(cities, record.place.city, 0)
  floor: coalesce(record.place.floor, -1)
scorer: linear
parameters:
  weights: {gone: 1, kept: 10, fresh: 100, old_name: 1000, new_name: 10000, wide: 100000, several: 1000000, city: 10000000, floor: 100000000}
  tables:
    cities: {Pune: 2, Lima: 3}
`

// TestGoldenRowsAreReadAsServed: a model over two schemas of a name, of which
// the second drops, adds, renames, widens and retypes fields, is sealed by the
// family of both, and every golden row has the score that the node gives the
// same record. What comes later changes no row, nor does a schema's retirement.
func TestGoldenRowsAreReadAsServed(t *testing.T) {
	place := func(fields string) string {
		return `{"name":"place","type":["null",{"type":"record","name":"Place","fields":[{"name":"city","type":"string","default":"Pune"}` + fields + `]}],"default":null}`
	}
	first := nodetest.Review(t, "Review", `{"name":"gone","type":"long"}`, `{"name":"kept","type":"int","default":1}`, `{"name":"stars","type":"int","default":2}`, `{"name":"wide","type":"int","default":3}`, `{"name":"several","type":"long","default":4}`, place(""))
	second := nodetest.Review(t, "Review", `{"name":"kept","type":"int","default":5}`, `{"name":"fresh","type":"int","default":6}`, `{"name":"rating","type":"int","default":7,"aliases":["stars"]}`, `{"name":"wide","type":"double","default":0.5}`, `{"name":"several","type":["string","long"],"default":"x"}`,
		place(`,{"name":"floor","type":"int","default":8}`))
	n, h := openNode(t, cache.Config{})
	for _, s := range []*schemas.Schema{first, second} {
		if _, err := n.schemas.Admit(s); err != nil {
			t.Fatal(err)
		}
	}
	known := relevance.SchemasOf(n.schemas.Snapshot())
	dir := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(modelpack.SpecFile, familySpec)
	write(modelpack.CardFile, "x")
	m, err := relevance.ParseFile(os.DirFS(dir), modelpack.SpecFile, known)
	if err != nil {
		t.Fatal(err)
	}
	golden, want := "", map[string]float64{}
	for i, c := range []struct {
		by     *schemas.Schema
		fields string
	}{
		{first, `"gone":11,"kept":12,"stars":13,"wide":14,"several":15,"place":{"city":"Lima"}`},
		{first, `"gone":16`},
		{second, `"kept":17,"fresh":18,"rating":19,"wide":20.5,"several":21,"place":{"city":"Lima","floor":9}`},
		{second, `"several":"many","place":null`},
		{second, `"kept":22`},
	} {
		id := fmt.Sprint("r", i)
		line := fmt.Sprintf(`{"id":%q,"who":"member:1","kind":"post","at":%d,%s}`, id, 1600000000000+i, c.fields)
		nodetest.BringOf(t, h, c.by, line, millrace.Offset(i+1))
		rows, err := modelpack.ReadGolden("golden", fmt.Appendf(nil, `{"record":%s,"schema":"shop.Review@%s"}`, line, c.by.Fingerprint()))
		if err != nil {
			t.Fatal(err)
		}
		if err := rows[0].Complete(m, known); err != nil {
			t.Fatal(err)
		}
		want[id] = *rows[0].Score
		text, err := json.Marshal(rows[0])
		if err != nil {
			t.Fatal(err)
		}
		golden += string(text) + "\n"
	}
	write(modelpack.GoldenFile, golden)
	p, err := modelpack.Seal(dir, known)
	if err != nil {
		t.Fatal(err)
	}
	id, err := p.Admit(n.models, "a", known)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := n.query(t.Context(), nodetest.All(func(r *nodev1.QueryRequest) { r.Model, r.ModelVersion, r.ModelSum = id.Name, id.Version, id.Sum }))
	if err != nil {
		t.Fatal(err)
	}
	if len(resp.Items) != len(want) {
		t.Errorf("%d items, want %d", len(resp.Items), len(want))
	}
	for _, it := range resp.Items {
		if it.Score != want[it.Id] {
			t.Errorf("%s is served with the score %v, and its golden row says %v", it.Id, it.Score, want[it.Id])
		}
	}

	third := nodetest.Review(t, "Review", `{"name":"fresh","type":"int","default":60}`, `{"name":"stars","type":"int","default":70}`, `{"name":"other","type":"int","default":70}`)
	if _, err := n.schemas.Admit(third); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := modelpack.Validate(p, relevance.SchemasOf(n.schemas.Snapshot())); err != nil {
			t.Errorf("the same rows later: %v", err)
		}
		if err := n.schemas.Retire(third.Fingerprint()); err != nil {
			t.Fatal(err)
		}
	}
}
