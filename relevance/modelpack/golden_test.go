package modelpack

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/trees/trained"
	"github.com/millrace/millrace/schemas"
)

// TestGoldenRowsOfLibraries: a pack whose golden rows are what the library
// predicted is sealed, and one with other predictions is not.
func TestGoldenRowsOfLibraries(t *testing.T) {
	models, err := trained.Models()
	if err != nil {
		t.Fatal(err)
	}
	tried := 0
	for _, m := range models {
		switch path.Base(m.Name) {
		case "binary", "softprob", "poisson", "tweedie", "rf", "logistic_ubj", "categories_40":
			tried++
			if _, err := Seal(writePack(t, goldenPack(t, m, 0), 0), relevance.ShippedSchemas()); err != nil {
				t.Errorf("%s: %v", m.Name, err)
			}
			if _, err := Seal(writePack(t, goldenPack(t, m, 1e-6), 0), relevance.ShippedSchemas()); err == nil || !strings.Contains(err.Error(), "golden rows are off") {
				t.Errorf("%s, other scores: %v", m.Name, err)
			}
		}
	}
	if tried < 9 {
		t.Errorf("%d models", tried)
	}
}

// goldenPack is the files of a pack with the library's scores and more.
func goldenPack(t *testing.T, m *trained.Model, more float64) map[string]string {
	t.Helper()
	spec := "name: golden\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures:\n"
	var names []string
	for c := range trained.Columns {
		names = append(names, fmt.Sprintf("x%d", c))
		spec += fmt.Sprintf("  x%d: record.likes * %d.0\n", c, c+1)
	}
	class := len(m.Scores[0]) - 1
	spec += fmt.Sprintf("scorer: trees\ntrees: {model: model, class: %d, inputs: [%s]}\n", class, strings.Join(names, ", "))
	var golden strings.Builder
	for n := 0; n < minGoldenTrained; {
		for i, row := range m.Rows {
			features := map[string]any{}
			for c, x := range row {
				if !math.IsNaN(x) && !math.IsInf(x, 0) {
					features[names[c]] = x
				} else if math.IsInf(x, 0) {
					features = nil
					break
				}
			}
			score := m.Scores[i][class]
			score += more * max(1, math.Abs(score))
			if features == nil || math.IsInf(score, 0) {
				continue
			}
			line, err := json.Marshal(Golden{Features: features, Score: &score})
			if err != nil {
				t.Fatal(err)
			}
			golden.Write(append(line, '\n'))
			n++
		}
	}
	return map[string]string{SpecFile: spec, "model": string(m.File), GoldenFile: golden.String(), CardFile: "x"}
}

const ratioSpec = `name: ratio
version: "1"
schemas: [millrace.Activity]
viewer: {calm: bool}
features:
  likes: log1p(record.likes)
  ratio: record.likes / record.shares
  fresh: decay(record.created_at, 3600)
  calm: viewer.calm
scorer: linear
parameters: {weights: {likes: 1, ratio: 1, fresh: 1, calm: 2}}
`

// TestGoldenRowsCatchExpressions: a feature that the expression makes nothing
// of, where the row says a number, is caught when the pack is sealed and when
// it is admitted, and so is one that no row with a record tests.
func TestGoldenRowsCatchExpressions(t *testing.T) {
	const (
		features = `{"features":{"likes":0,"ratio":3,"fresh":0.5,"calm":true},"score":5.5}`
		good     = `{"features":{"likes":0.6931471805599453,"ratio":0.5,"fresh":0.5,"calm":true},"score":3.6931471805599454,"record":{"likes":1,"shares":2,"created_at":"2026-01-02T15:00:00Z"},"viewer":{"id":"m","calm":true},"as_of":"2026-01-02T16:00:00Z"}`
		zero     = `{"features":{"likes":0.6931471805599453,"ratio":0.5,"fresh":0.5,"calm":true},"score":3.6931471805599454,"record":{"likes":1,"created_at":1767366000000},"viewer":{"calm":true},"as_of":1767369600000}`
		zeroNull = `{"features":{"likes":0.6931471805599453,"ratio":null,"fresh":0.5,"calm":true},"score":0,"record":{"likes":1,"created_at":1767366000000},"viewer":{"calm":true},"as_of":1767369600000}`
	)
	for name, c := range map[string]struct{ rows, want string }{
		"features and a record":    {features + "\n" + good, ""},
		"no record at all":         {features, "no row has a record"},
		"divided by zero":          {good + "\n" + zero, "feature ratio is"},
		"another score":            {strings.Replace(good, "3.69", "4.69", 1), "golden rows are off"},
		"another instant":          {strings.Replace(good, "T16", "T17", 1), "feature fresh is 0.25, and the row says 0.5"},
		"a field that is not":      {strings.Replace(good, `"shares"`, `"sharse"`, 1), "no field sharse in record; did you mean shares?"},
		"a field of another type":  {strings.Replace(good, `"shares":2`, `"shares":"two"`, 1), "record.shares"},
		"a viewer of another type": {strings.Replace(good, `"viewer":{"id":"m","calm":true}`, `"viewer":{"calm":1}`, 1), "viewer.calm"},
	} {
		files := map[string]string{SpecFile: ratioSpec, GoldenFile: c.rows, CardFile: "x"}
		dir := t.TempDir()
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Seal(dir, relevance.ShippedSchemas())
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, sealed: %v", name, err)
		}
		if err == nil {
			continue
		}
		// The same, as somebody seals it who checks nothing.
		p, err := sealed(files)
		if err == nil {
			_, err = Validate(p, relevance.ShippedSchemas())
		}
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, admitted: %v", name, err)
		}
	}
	// A feature that never has a value.
	files := map[string]string{SpecFile: strings.Replace(ratioSpec, "record.likes / record.shares", "record.likes / (record.shares - record.shares)", 1), GoldenFile: zeroNull, CardFile: "x"}
	p, err := sealed(files)
	if err == nil {
		_, err = Validate(p, relevance.ShippedSchemas())
	}
	if err == nil || !strings.Contains(err.Error(), "ratio") {
		t.Errorf("a feature that is always divided by zero: %v", err)
	}
}

// TestGoldenRecordsAreAsLoaded: a record of a golden row is written as for
// millrace load, and what it leaves out has the default of its schema.
func TestGoldenRecordsAreAsLoaded(t *testing.T) {
	shop, err := schemas.Parse([]byte(`{"type":"record","name":"Visit","namespace":"shop","fields":[
	 {"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},
	 {"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},
	 {"name":"stars","type":"int","default":3},{"name":"notes","type":{"type":"map","values":"string"},"default":{}},
	 {"name":"place","type":{"type":"record","name":"Place","fields":[
	  {"name":"country","type":"string","default":"IN"},{"name":"size","type":"long"},
	  {"name":"owner","type":["null",{"type":"record","name":"Owner","fields":[{"name":"age","type":"long"}]}],"default":null}]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	known := familyOf(t, shop)
	m, err := relevance.Parse(SpecFile, []byte(`name: visits
version: "1"
schemas: [shop.Visit]
features: {stars: record.stars, country: record.place.country, size: record.place.size, age: record.place.owner.age, kind: record.kind}
scorer: linear
parameters: {weights: {stars: 1, country: {IN: 10, PE: 20}, size: 100, age: 1000, kind: {a: 0}}}
`), known)
	if err != nil {
		t.Fatal(err)
	}
	for record, want := range map[string]string{
		`{}`:                                            "3 IN 0 <nil>",
		`{"stars":5,"notes":{"a":"b"}}`:                 "5 IN 0 <nil>",
		`{"place":{"size":2}}`:                          "3 IN 2 <nil>",
		`{"place":{"country":"PE","size":"2"}}`:         "3 PE 2 <nil>",
		`{"place.country":"PE","place.size":2}`:         "3 PE 2 <nil>",
		`{"place":{"size":2,"owner":{"age":40}}}`:       "3 IN 2 40",
		`{"place":{"size":2,"owner":null}}`:             "3 IN 2 <nil>",
		`{"stras":1,"place":{"sise":2}}`:                "no field place.sise in record; did you mean place.size?\nno field stras in record; did you mean stars?",
		`{"place":{"size":{"x":1}}}`:                    "record.place.size: want long, got an object",
		`{"at":-5,"place.size":2.0,"stars":3000000000}`: "record.at: the time is before 1970 or after the year 9999; it counts milliseconds\nrecord.place.size: want long, got 2.0\nrecord.stars: want int, got 3000000000",
		`{"notes":{"a":1}}`:                             "record.notes.a: want string, got 1",
	} {
		rows, err := ReadGolden("golden", []byte(`{"record":`+record+`}`))
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if err = rows[0].Complete(m, known); err != nil && !strings.Contains(err.Error(), "score") {
			got = err.Error()
		} else {
			f := rows[0].Features
			got = fmt.Sprint(f["stars"], " ", f["country"], " ", f["size"], " ", f["age"])
		}
		if got != want {
			t.Errorf("%s: %s, want %s", record, got, want)
		}
	}
}

// familyOf is the schemas that ship and one more, each a family of its own.
func familyOf(t *testing.T, all ...*schemas.Schema) relevance.Schemas {
	t.Helper()
	known := relevance.ShippedSchemas()
	for _, s := range all {
		f, err := schemas.FamilyOf(s)
		if err != nil {
			t.Fatal(err)
		}
		known[s.Name()] = relevance.Records{Layout: f.Layout(), Family: f}
	}
	return known
}

const mealAVSC = `{"type":"record","name":"Meal","namespace":"shop","fields":[
 {"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},
 {"name":"kind","type":{"type":"enum","name":"Kind","symbols":["lunch","dinner"]},"millrace":"type"},
 {"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},
 {"name":"protein","type":"float"},{"name":"fat","type":["null","float"],"default":null},
 {"name":"parts","type":{"type":"array","items":"float"},"default":[]},{"name":"stars","type":"int","default":1}]}`

const mealSpec = `name: meal
version: "1"
schemas: [shop.Meal]
entity: millrace.Features
features:
  eq: record.protein == 73.98
  protein: record.protein
  fat: record.fat
  part: record.parts[1]
  taste: entity.embedding[0]
  stars: record.stars
  kind: record.kind
scorer: linear
parameters: {weights: {eq: 100, protein: 1, fat: 1, part: 1, taste: 1, stars: 1, kind: {lunch: 1}}}
`

const mealRow = `"record":{"protein":73.98,"fat":0.1,"parts":[1,0.3],"stars":2,"kind":"lunch"},"entity":{"embedding":[0.1,0.2]}`

// TestGoldenRowsAreOfTheSchemasTypes: what a row makes of a record is what the
// record's Avro body makes, to the bit, floats in columns, lists and the
// entity's features too; and what the schema cannot hold is refused by field.
func TestGoldenRowsAreOfTheSchemasTypes(t *testing.T) {
	shop, err := schemas.Parse([]byte(mealAVSC))
	if err != nil {
		t.Fatal(err)
	}
	known := familyOf(t, shop)
	m, err := relevance.Parse(SpecFile, []byte(mealSpec), known)
	if err != nil {
		t.Fatal(err)
	}
	rows, err := ReadGolden("golden", []byte(`{`+mealRow+`}`))
	if err != nil {
		t.Fatal(err)
	}
	got, err := rows[0].Vector(m, known)
	if err != nil {
		t.Fatal(err)
	}
	decoded := func(s *schemas.Schema, line string) *column.Slab {
		d, err := schemas.NewDecoder(s, s)
		if err != nil {
			t.Fatal(err)
		}
		body, err := s.EncodeJSON([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		a := column.New(d.Layout(), 1, 0).Append()
		if err := d.Append(a, body); err != nil {
			t.Fatal(err)
		}
		return a.Slab()
	}
	record := decoded(shop, `{"id":"m","who":"cook:1","at":1600000000000,"protein":73.98,"fat":0.1,"parts":[1,0.3],"stars":2,"kind":"lunch"}`)
	entity := decoded(schemas.Features(), `{"entity":"cook:1","updated_at":1,"embedding":[0.1,0.2]}`)
	s, err := m.Bind(record.Layout(), entity.Layout(), &millrace.Viewer{}, 1600000000000)
	if err != nil {
		t.Fatal(err)
	}
	served, _ := s.Features(record, 0, entity)
	for i, f := range inOrder(m, served).Features {
		if f.Value != got[i] {
			t.Errorf("%s: the row makes %v, and the body %v", f.Name, got[i], f.Value)
		}
	}
	if got[0] != 0. || got[1] != float64(float32(73.98)) {
		t.Errorf("eq and protein are %v and %v", got[0], got[1])
	}
	for change, want := range map[[2]string]string{
		{`"stars":2`, `"stars":99999999999`}:      "record.stars: want int, got 99999999999",
		{`"lunch"`, `"supper"`}:                   `record.kind: want enum shop.Kind, got "supper"`,
		{`[1,0.3]`, `[1,"x"]`}:                    `record.parts[1]: want float, got "x"`,
		{`"protein":73.98`, `"protein":1e39`}:     "record.protein: want float, got 1e39",
		{`"embedding":[0.1`, `"embedding":[null`}: "entity.embedding[0]: want float, got null",
	} {
		rows, err := ReadGolden("golden", []byte(`{`+strings.Replace(mealRow, change[0], change[1], 1)+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := rows[0].Vector(m, known); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", change[1], err, want)
		}
	}
}

// TestAdmissionTakesWhatItTook: of a pack that was sealed when golden rows were
// read as they are written, a node takes the rows, and so does it take rows as
// what serves reads them. Nobody seals the former any more.
func TestAdmissionTakesWhatItTook(t *testing.T) {
	shop, err := schemas.Parse([]byte(mealAVSC))
	if err != nil {
		t.Fatal(err)
	}
	known := familyOf(t, shop)
	single := func(x float32) float64 { return float64(x) }
	row := func(record string, eq, protein, fat, part, taste, stars float64, kind string) string {
		score := 100*eq + protein + fat + part + taste + stars
		if kind == "lunch" {
			score++
		}
		return fmt.Sprintf(`{%s,"features":{"eq":%v,"protein":%v,"fat":%v,"part":%v,"taste":%v,"stars":%v,"kind":%q},"score":%v}`, record, eq, protein, fat, part, taste, stars, kind, score)
	}
	before := row(mealRow, 1, 73.98, 0.1, 0.3, 0.1, 2, "lunch")
	odd := row(strings.NewReplacer(`"stars":2`, `"stars":99999999999`, `"lunch"`, `"supper"`).Replace(mealRow), 1, 73.98, 0.1, 0.3, 0.1, 99999999999, "supper")
	now := row(mealRow, 0, single(73.98), single(0.1), single(0.3), single(0.1), 2, "lunch")
	wrong := row(mealRow, 0, 73.98, 0.1, 0.3, 0.1, 2, "lunch")
	for name, c := range map[string]struct {
		rows           string
		admit, sealing bool
	}{
		"as before":               {before, true, false},
		"what no schema holds":    {odd, true, false},
		"as it serves":            {now, true, true},
		"some of each":            {now + "\n" + before + "\n" + odd, true, false},
		"neither":                 {wrong, false, false},
		"neither, behind a right": {now + "\n" + wrong, false, false},
	} {
		files := map[string]string{SpecFile: mealSpec, GoldenFile: c.rows, CardFile: "x"}
		p, err := sealedBy(files, known)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Validate(p, known); (err == nil) != c.admit {
			t.Errorf("%s, admitted: %v", name, err)
		}
		dir := t.TempDir()
		for file, text := range files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := Seal(dir, known); (err == nil) != c.sealing {
			t.Errorf("%s, sealed: %v", name, err)
		}
	}
}

// TestGoldenFaultsSayWhatToDo: a row without as_of, and one that is of another
// schema than the first of the spec.
func TestGoldenFaultsSayWhatToDo(t *testing.T) {
	const two = `name: two
version: "1"
schemas: [millrace.Activity, millrace.Note]
features: {age_h: "age(record.created_at) / 3600", likes: record.likes, kind: record.kind}
scorer: linear
parameters: {weights: {age_h: 1, likes: 1, kind: {a: 1}}}
`
	m, err := relevance.Parse(SpecFile, []byte(two), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		`{"record":{"kind":"a"}}`: `the row names no schema, so that its record is of millrace.Activity, the first that the spec names: a record of another says so, as "schema": "millrace.Note"`,
		`{"record":{"created_at":1600000000000},"features":{"age_h":2710,"likes":0},"score":2710}`: "feature age_h is 0, and the row says 2710: its expression is age(record.created_at) / 3600; the row has no as_of, so that it is as of the record's own time",
	} {
		rows, err := ReadGolden("golden", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		err = newExplainer(m).goldenRecord(&rows[0], relevance.ShippedSchemas(), typed, map[string]bool{})
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}

// A score that is none is told with the features that are none.
func TestAScoreThatIsNoneNamesItsFeatures(t *testing.T) {
	m, err := relevance.Parse(SpecFile, []byte(`name: none
version: "1"
schemas: [millrace.Activity]
features: {likes: record.likes, ratio: record.likes / record.shares}
scorer: linear
parameters: {weights: {likes: 1, ratio: 1}}
`), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	row := Golden{Record: map[string]any{}, Features: map[string]any{"likes": 1.0}}
	if err := row.Complete(m, relevance.ShippedSchemas()); err == nil || err.Error() != "the score is NaN: feature ratio is missing" {
		t.Errorf("%v", err)
	}
}

// A schema of objects that a spec names and reads nothing of is as one of the entity is:
// rows may have values of it.
func TestObjectsThatNothingReads(t *testing.T) {
	m, err := relevance.Parse(SpecFile, []byte(`name: unread
version: "1"
schemas: [millrace.Activity]
entity: millrace.Features
object: millrace.Features
features: {likes: record.likes}
scorer: linear
parameters: {weights: {likes: 1}}
`), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	for object, want := range map[string]string{`{"embedding":[1]}`: "", `{"embeding":[1]}`: "did you mean embedding?"} {
		rows, err := ReadGolden("golden", []byte(`{"record":{"likes":2},"entity":{"embedding":[1]},"object":`+object+`}`))
		if err != nil {
			t.Fatal(err)
		}
		if err := rows[0].Complete(m, relevance.ShippedSchemas()); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", object, err)
		}
	}
}

// A row that was written by a former schema and does not say so is told which one it was
// read by.
func TestRowsOfAFormerSchemaAreToldWhichWasTaken(t *testing.T) {
	avsc := func(of string) *schemas.Schema {
		s, err := schemas.Parse([]byte(`{"type":"record","name":"Item","namespace":"shop","fields":[
	 {"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},
	 {"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"},{"name":"fl","type":"` + of + `"}]}`))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	old, now := avsc("float"), avsc("double")
	f, err := schemas.FamilyOf(old, now)
	if err != nil {
		t.Fatal(err)
	}
	known := relevance.ShippedSchemas()
	known["shop.Item"] = relevance.Records{Layout: f.Layout(), Family: f}
	m, err := relevance.Parse(SpecFile, []byte(`name: item
version: "1"
schemas: [shop.Item]
features: {fl: record.fl}
scorer: linear
parameters: {weights: {fl: 1}}
`), known)
	if err != nil {
		t.Fatal(err)
	}
	row := Golden{Record: map[string]any{"fl": 73.98}, Features: map[string]any{"fl": 73.9800033569336}}
	check := func() error { return newExplainer(m).goldenRecord(&row, known, typed, map[string]bool{}) }
	want := fmt.Sprintf("it was read by shop.Item@%s, the newest that has its fields: a record of another says so, as \"schema\": \"shop.Item@%s\"", now.Fingerprint(), old.Fingerprint())
	if err := check(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	row.Schema = fmt.Sprintf("shop.Item@%s", old.Fingerprint())
	if err := check(); err != nil {
		t.Errorf("as the message says: %v", err)
	}
}

// sealed makes a pack of files without a look at them.
func sealed(files map[string]string) (*Pack, error) {
	return sealedBy(files, relevance.ShippedSchemas())
}

func sealedBy(files map[string]string, known relevance.Schemas) (*Pack, error) {
	m, err := relevance.Parse(SpecFile, []byte(files[SpecFile]), known)
	if err != nil {
		return nil, err
	}
	manifest := Manifest{Format: packFormat, Name: m.Name(), Version: m.Version(), Features: m.FeatureTypes(), Files: map[string]string{}}
	raw := map[string][]byte{}
	for name, text := range files {
		raw[name], manifest.Files[name] = []byte(text), checksum([]byte(text))
	}
	if raw[ManifestFile], err = json.Marshal(manifest); err != nil {
		return nil, err
	}
	return newPack(raw)
}

// Rows that could be understood in two ways are refused where people write them; a
// pack that was sealed with such rows goes on serving.
func TestRowsAreReadStrictly(t *testing.T) {
	for line, want := range map[string]string{
		`{"features":{"likes":1,"likes":2},"score":1}`:                                `golden:1: "likes" stands twice in one object`,
		"{\"features\":{\"verb\":\"\xff\"},\"score\":1}":                              "golden:1: the text is not UTF-8",
		"\xef\xbb\xbf" + `{"score":1}`:                                                "golden:1: the text begins with a byte order mark, which JSON has none of; save it as UTF-8 without one",
		`{"viewer":{"id":"member:1","attributes":{"country":"de"}},"score":1}`:        `golden:1: viewer.attributes is an object, and no attribute is; write attributes beside id: {"id": "member:1", "country": "de"}`,
		`{"viewer":{"id":"member:1","country":"de","langs":["de"]},"score":1}` + "\n": "<nil>",
	} {
		_, err := ReadGolden("golden", []byte(line))
		if fmt.Sprint(err) != want {
			t.Errorf("%s: %v", line, err)
		}
		if strings.HasPrefix(line, "\xef") {
			continue
		}
		if _, err := (&Pack{files: map[string][]byte{GoldenFile: []byte(line)}}).GoldenRows(); err != nil {
			t.Errorf("%s, sealed: %v", line, err)
		}
	}
	if err := (&packFiles{files: map[string][]byte{}}).add(GoldenFile, 46_008_165, strings.NewReader("")); err == nil || err.Error() != "golden.ndjson has 46008165 bytes, more than 4194304; keep fewer rows, of all kinds of records: 10000 at most" {
		t.Error(err)
	}
}

// TestOldPacksSayTheWayOut: a pack whose golden rows test no expression is
// refused with what to do.
func TestOldPacksSayTheWayOut(t *testing.T) {
	_, err := newPack(map[string][]byte{ManifestFile: []byte(`{"format":1,"name":"x","version":"1","features":[],"files":{}}`)})
	if err == nil || !strings.Contains(err.Error(), "model golden") {
		t.Error(err)
	}
}
