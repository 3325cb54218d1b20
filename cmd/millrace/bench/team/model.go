package team

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/modelpack"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// This file has the workload as a team would bring it to Millrace: a schema, a feed and two
// models. The models are packs that are pushed to the cluster. No code is generated for
// them, so nodes interpret them.

// avsc returns the Avro schema of the records.
func (w *world) avsc() []byte {
	var b strings.Builder
	b.WriteString(`{"type": "record", "name": "Item", "namespace": "team", "fields": [
{"name": "id", "type": "string", "millrace": "id"},
{"name": "author", "type": "string", "millrace": "entity"},
{"name": "kind", "type": "string", "millrace": "type"},
{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "millrace": "time"},
{"name": "object", "type": "string", "default": "", "millrace": "object"},
{"name": "language", "type": "string"}, {"name": "country", "type": "string"}, {"name": "visibility", "type": "string"}, {"name": "text", "type": "string"},
{"name": "likes", "type": "long"}, {"name": "comments", "type": "long"}, {"name": "shares", "type": "long"}, {"name": "impressions", "type": "long"},
`)
	if !w.flat {
		b.WriteString(`{"name": "vector", "type": {"type": "array", "items": "float"}}`)
	} else {
		for i := range dims {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, `{"name": "v%d", "type": "float"}`, i)
		}
	}
	b.WriteString("]}\n")
	return []byte(b.String())
}

// line returns a record as JSON, as millrace load takes it.
func (w *world) line(x *record) ([]byte, error) {
	all := map[string]any{
		"id": x.id, "author": x.author, "kind": kinds[x.kind], "at": x.at, "object": x.object,
		"language": x.language, "country": x.country, "visibility": x.visibility, "text": x.text,
		"likes": x.likes, "comments": x.comments, "shares": x.shares, "impressions": x.imp,
	}
	if !w.flat {
		all["vector"] = x.vector
	} else {
		for i, v := range x.vector {
			all[fmt.Sprintf("v%d", i)] = v
		}
	}
	return json.Marshal(all)
}

// The feed that all questions ask for, and the filter in its definition.
const (
	feedName = "team"
	filter   = "record.likes >= 3 && record.impressions < 20000 && record.language in viewer.languages"
)

// feed returns the definition of the feed that all questions ask for.
func (w *world) feed() []byte {
	return fmt.Appendf(nil, `name: %s
types: [%s]
model: %s
window: %s
filter: %s
distinct_objects: true
limit: %d
`, feedName, strings.Join(kinds, ", "), models[0].name, window, filter, limit)
}

// model is a linear model of thirty terms: one for each number of the vector, and six more.
type model struct {
	name    string
	vector  [dims]float64 // the weights of the vector
	own     [5]float64    // the weights of five further terms, in the order of [model.spec]; that of the sixth, the language, is 1
	viewers bool          // the half-life of freshness is the viewer's; otherwise a day
}

// models are the models that questions ask for by turns. Their weights mean nothing.
var models = []model{
	{name: "control", vector: weights(1), own: [5]float64{0.31, 0.42, 1.1, 1.4, 0.4}},
	{name: "treatment", vector: weights(2), own: [5]float64{0.28, 0.47, 0.9, 2.6, 0.3}, viewers: true},
}

// weights returns weights between -0.2 and 0.2, drawn by a seed.
func weights(seed uint64) (all [dims]float64) {
	r := rand.New(rand.NewPCG(seed, 24))
	for i := range all {
		all[i] = float64(r.IntN(2001)-1000) / 5000
	}
	return all
}

// spec returns the spec of the model, as Millrace reads it. flat says that the vector is
// dims fields instead of a list.
func (m *model) spec(flat bool) string {
	var features, weights strings.Builder
	field := "record.vector[%d]"
	if flat {
		field = "record.v%d"
	}
	for i, x := range m.vector {
		fmt.Fprintf(&features, "  v%d: "+field+"\n", i, i)
		fmt.Fprintf(&weights, "    v%d: %v\n", i, x)
	}
	halfLife := "86400"
	if m.viewers {
		halfLife = "viewer.freshness_hours * 3600"
	}
	return fmt.Sprintf(`name: %s
version: "1"
schemas: [team.Item]
viewer: {country: string, freshness_hours: double}
features:
%s  log_likes: log1p(record.likes)
  log_comments: log1p(record.comments)
  rate: record.likes / max(record.impressions, 1)
  fresh: decay(record.at, %s)
  same_country: record.country == viewer.country
  language: lookup(languages, record.language, 0)
scorer: linear
parameters:
  weights:
%s    log_likes: %v
    log_comments: %v
    rate: %v
    fresh: %v
    same_country: %v
    language: 1
  tables:
    languages: {en: 0.2, es: 0.15, pt: 0.12, hi: 0.1, de: 0.08, fr: 0.07, ja: 0.05}
`, m.name, features.String(), halfLife, weights.String(), m.own[0], m.own[1], m.own[2], m.own[3], m.own[4])
}

// pack returns a sealed pack of the model, whose golden row has the first record of the
// world.
func (w *world) pack(m *model, known relevance.Schemas) (_ *modelpack.Pack, err error) {
	dir, err := os.MkdirTemp("", "millrace-pack-")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	parsed, err := relevance.Parse(modelpack.SpecFile, []byte(m.spec(w.flat)), known)
	if err != nil {
		return nil, err
	}
	golden, err := w.golden(parsed, known)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string][]byte{
		modelpack.SpecFile: []byte(m.spec(w.flat)), modelpack.GoldenFile: golden,
		modelpack.CardFile: []byte("# " + m.name + "\n\nOf a benchmark; its weights mean nothing.\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o644); err != nil {
			return nil, err
		}
	}
	return modelpack.Seal(dir, known)
}

// golden returns the text of golden.ndjson for m: one row.
func (w *world) golden(m *relevance.Model, known relevance.Schemas) ([]byte, error) {
	var records []record
	for e := 0; len(records) == 0; e++ {
		records = w.records(e)
	}
	line, err := w.line(&records[0])
	if err != nil {
		return nil, err
	}
	row := modelpack.Golden{
		Viewer: map[string]any{"country": records[0].country, "freshness_hours": 6.0},
		AsOf:   float64(asOf),
	}
	if err := json.Unmarshal(line, &row.Record); err != nil {
		return nil, err
	}
	if err := row.Complete(m, known); err != nil {
		return nil, err
	}
	text, err := json.Marshal(row)
	return append(text, '\n'), err
}

// schema returns the parsed schema, and all schemas that specs may name.
func (w *world) schema() (*schemas.Schema, relevance.Schemas, error) {
	s, err := schemas.Parse(w.avsc())
	if err != nil {
		return nil, nil, err
	}
	known, err := registry.New(nil, nil)
	if err != nil {
		return nil, nil, err
	}
	if _, err := known.Admit(s); err != nil {
		return nil, nil, err
	}
	return s, relevance.SchemasOf(known.Snapshot()), nil
}
