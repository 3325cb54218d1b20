package modelpack

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

// lone is records with a field of every kind, of which only the layout is known.
func lone(t *testing.T) records {
	t.Helper()
	l, err := column.NewLayout([]column.Field{
		{Name: "b", Kind: column.Bool}, {Name: "n", Kind: column.Int, Nullable: true}, {Name: "at", Kind: column.Time}, {Name: "x", Kind: column.Double},
		{Name: "s", Kind: column.String}, {Name: "in.a", Kind: column.Int, Nullable: true}, {Name: "in.b", Kind: column.Int, Nullable: true},
		{Name: "xs", Kind: column.Doubles}, {Name: "ss", Kind: column.Strings},
	})
	if err != nil {
		t.Fatal(err)
	}
	return records{relevance.Records{Layout: l}}
}

// Values that are taken as they are written become columns, or are refused by their field.
func TestValuesAsWritten(t *testing.T) {
	known := lone(t)
	for values, want := range map[string]string{
		`{}`:                       "false 0 0 0 <> 0 0 [] []",
		`{"b":true}`:               "true 0 0 0 <> 0 0 [] []",
		`{"n":-7,"in":{"a":2}}`:    "false -7 0 0 <> 2 0 [] []",
		`{"n":null,"in":null}`:     "false null 0 0 <> null null [] []",
		`{"n":9007199254740992}`:   "false 9007199254740992 0 0 <> 0 0 [] []",
		`{"n":"9007199254740993"}`: "false 9007199254740993 0 0 <> 0 0 [] []",
		`{"at":"1970-01-01T00:00:01Z","x":0.5,"s":"a"}`: "false 0 1000 0.5 <a> 0 0 [] []",
		`{"at":9007199254740991}`:                       "false 0 9007199254740991 0 <> 0 0 [] []",
		`{"xs":[1,0.25],"ss":["a","b"],"in.b":1}`:       "false 0 0 0 <> 0 1 [1 0.25] [a b]",
		`{"xs":[],"ss":[]}`:                             "false 0 0 0 <> 0 0 [] []",
		`{"b":1}`:                                       "record.b: it is a bool, and here is 1",
		`{"b":null}`:                                    "record.b: it is never null",
		`{"n":0.5}`:                                     "record.n: it is a int, and here is 0.5",
		`{"n":9007199254740994}`:                        "record.n: it is a int",
		`{"n":"1.5"}`:                                   "record.n: it is a int, and here is 1.5",
		`{"n":true}`:                                    "record.n: it is a int, and here is true",
		`{"x":"0.5"}`:                                   "record.x: it is a double, and here is 0.5",
		`{"s":1}`:                                       "record.s: it is a string, and here is 1",
		`{"at":0.5}`:                                    "record.at: 0.5 is no time; write RFC 3339",
		`{"at":9007199254740992}`:                       "record.at: 9.007199254740992e+15 is no time",
		`{"at":"yesterday"}`:                            "record.at: yesterday is no time",
		`{"at":true}`:                                   "record.at: true is no time",
		`{"xs":["a"]}`:                                  "record.xs: it is a list(double), and here is [a]",
		`{"ss":[1]}`:                                    "record.ss: it is a list(string), and here is [1]",
		`{"xs":[1,"a"]}`:                                "record.xs: it is a list(double)",
		`{"xs":[null]}`:                                 "record.xs: it is a list(double)",
		`{"ss":"a"}`:                                    "record.ss: it is a list(string), and here is a",
		`{"in":{"c":1}}`:                                "no field in.c in record; did you mean in.a?",
		`{"in":1}`:                                      "no field in in record",
	} {
		var row Golden
		if err := json.Unmarshal([]byte(`{"record":`+values+`}`), &row); err != nil {
			t.Fatal(err)
		}
		rows, err := known.golden("", row.Record, "record", typed)
		got := fmt.Sprint(err)
		if err == nil {
			var all []string
			for i, f := range known.Layout.Fields() {
				w := rows.Word(i, 0)
				text := map[column.Kind]string{
					column.Bool: fmt.Sprint(w != 0), column.Int: fmt.Sprint(int64(w)), column.Time: fmt.Sprint(int64(w)), column.Double: fmt.Sprint(math.Float64frombits(w)),
				}[f.Kind]
				switch {
				case rows.Null(i, 0):
					text = "null"
				case f.Kind == column.String:
					text = "<" + rows.StringAt(i, 0) + ">"
				case f.Kind == column.Doubles:
					text = fmt.Sprint(rows.DoublesAt(nil, i, 0))
				case f.Kind == column.Strings:
					text = fmt.Sprint(rows.StringsAt(nil, i, 0))
				}
				all = append(all, text)
			}
			got = strings.Join(all, " ")
		}
		if !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", values, got, want)
		}
	}
}

const bothSpec = `name: both
version: "1"
schemas: [millrace.Activity]
entity: millrace.Features
object: millrace.Features
viewer: {langs: list(string), taste: list(double), age: double}
features:
  likes: record.likes
  near: dot(entity.embedding, viewer.taste)
  clicks: object.embedding[0]
  knows: record.language in viewer.langs
  old: viewer.age > 30.0
  id: viewer.id
  hours: age(record.created_at) / 3600
scorer: linear
parameters: {weights: {likes: 1, near: 10, clicks: 100, knows: 1000, old: 10000, id: {m: 0.5}, hours: 100000}}
`

func parsed(t *testing.T, spec string) *relevance.Model {
	t.Helper()
	m, err := relevance.Parse(SpecFile, []byte(spec), relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A row is scored with all that it has: record, entity, object, viewer and instant. What
// cannot be so is refused.
func TestRowsAreScoredWithAllThatTheyHave(t *testing.T) {
	both, plain := parsed(t, bothSpec), parsed(t, ratioSpec)
	noSchemas := parsed(t, "name: n\nversion: \"1\"\nfeatures: {time: record.time}\nscorer: linear\nparameters: {weights: {time: 1}}\n")
	explainers := map[*relevance.Model]*explainer{}
	const record = `"record":{"likes":2,"language":"en","created_at":3600000}`
	for _, c := range []struct {
		m          *relevance.Model
		line, want string
	}{
		{both, `{` + record + `,"entity":{"embedding":[1,2]},"object":{"embedding":[3]},"viewer":{"id":"m","langs":["de","en"],"taste":[4,0.5],"age":31},"as_of":10800000}`, "2 5 3 1 1 m 2 = 211352.5"},
		{both, `{` + record + `,"viewer":{"langs":[],"taste":[1]},"entity":{"embedding":[1]},"object":{"embedding":[1]},"as_of":"1970-01-01T01:00:00Z"}`, "2 1 1 0 0  0 = 112"},
		{both, `{` + record + `,"entity":{"embedding":[1,2]},"viewer":{"taste":[4,0.5]}}`, "2 5 <nil> 0 0  0"},
		{both, `{"features":{}}`, "the row has no record"},
		{both, `{` + record + `,"as_of":"soon"}`, "as_of: soon is no time"},
		{both, `{` + record + `,"viewer":{"langs":[1,"a"]}}`, "viewer.langs: a list is of numbers or of texts"},
		{both, `{` + record + `,"viewer":{"id":7}}`, "viewer.id: it is a text"},
		{both, `{` + record + `,"viewer":{"age":"old"}}`, "viewer.age"},
		{both, `{` + record + `,"entity":{"embeding":[1]}}`, "no field embeding in entity"},
		{both, `{` + record + `,"object":{"embedding":["x"]}}`, "object.embedding[0]: want float"},
		{both, `{` + record + `,"schema":"millrace.Activiti"}`, "no schema millrace.Activiti; did you mean millrace.Activity?"},
		{both, `{` + record + `,"schema":"millrace.Activity@00"}`, "schema: no schema millrace.Activity@00; millrace.Activity has "},
		{plain, `{` + record + `,"entity":{"embedding":[1]}}`, "entity: the spec names no schema of the entity's features"},
		{plain, `{` + record + `,"object":{"embedding":[1]}}`, "object: the spec names no schema of the features of what records are about"},
		{noSchemas, `{"record":{"time":7}}`, "7 = 7"},
		{noSchemas, `{"record":{"likes":7}}`, "no field likes in record"},
	} {
		rows, err := ReadGolden("golden", []byte(c.line))
		if err != nil {
			t.Fatal(err)
		}
		// The same before and after others, as an explainer keeps its scorers.
		x := explainers[c.m]
		if x == nil {
			x = newExplainer(c.m)
			explainers[c.m] = x
		}
		for range 2 {
			e, err := x.explain(&rows[0], relevance.ShippedSchemas(), typed)
			got := fmt.Sprint(err)
			if err == nil {
				var all []string
				for _, f := range e.Features {
					if y, number := f.Value.(float64); number && math.IsNaN(y) {
						f.Value = nil
					}
					all = append(all, fmt.Sprint(f.Value))
				}
				got = strings.Join(all, " ") + " = " + fmt.Sprint(e.Score)
			}
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("%s: %s, want %s", c.line, got, c.want)
			}
		}
	}
	row := Golden{Record: Values{"likes": 2.0}, Entity: Values{"embedding": []any{1.0}}, Object: Values{"embedding": []any{1.0}}}
	if names := row.Unread(both); names != nil || row.Entity == nil || row.Object == nil {
		t.Errorf("%q are taken off a row whose model reads them", names)
	}
	if names := row.Unread(plain); !slices.Equal(names, []string{"entity", "object"}) || row.Entity != nil || row.Object != nil || row.Record == nil {
		t.Errorf("%q are taken off a row whose model reads neither: %+v", names, row)
	}
	if names := row.Unread(plain); names != nil {
		t.Errorf("%q are taken off twice", names)
	}
}

// Rows are read within bounds, which they may reach. An empty line is none, and counts.
func TestRowsHaveBounds(t *testing.T) {
	line := func(bytes int) string { return `{"score":1` + strings.Repeat(" ", bytes-12) + "}\n" }
	full := strings.Repeat(line(maxGoldenLine), 4)
	for what, c := range map[string]struct {
		text string
		rows int
		want string
	}{
		"full":           {full, 4, ""},
		"a byte more":    {full + "\n", 0, "golden: 4194305 bytes, more than 4194304; keep fewer rows"},
		"a long line":    {"\n" + line(maxGoldenLine+1), 0, "golden:2: a line of over 1048576 bytes, or more than 10000 rows"},
		"most rows":      {strings.Repeat("{}\n", maxGoldenRows) + "\n \n", maxGoldenRows, ""},
		"a row more":     {strings.Repeat("{}\n", maxGoldenRows+1), 0, "golden:10001: a line of over"},
		"no row":         {"\n\t\n", 0, ""},
		"no line end":    {"{}\n{}", 2, ""},
		"another field":  {"{}\n\n{\"scores\":1}", 0, `golden:3: json: unknown field "scores"`},
		"another type":   {`{"score":"x"}`, 0, "golden:1: json: cannot unmarshal"},
		"no object":      {"[]", 0, "golden:1: json: cannot unmarshal"},
		"a record of []": {`{"record":[]}`, 0, "golden:1: "},
	} {
		rows, err := ReadGolden("golden", []byte(c.text))
		if len(rows) != c.rows || (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %d rows, %v", what, len(rows), err)
		}
	}
}

// What golden rows say is held against the model: scores within the tolerance, and none that
// is no number.
func TestScoresOfGoldenRows(t *testing.T) {
	m := parsed(t, "name: n\nversion: \"1\"\nschemas: [millrace.Activity]\nviewer: {a: double, b: double}\nfeatures: {a: viewer.a, b: viewer.b, verb: record.verb}\nscorer: linear\nparameters: {weights: {a: 1, b: 1, verb: {post: 1}}}\n")
	number := func(x float64) *float64 { return &x }
	for what, c := range map[string]struct {
		rows []Golden
		want string
	}{
		"no score":           {[]Golden{{Score: number(0), Features: map[string]any{"a": 0.0, "b": 0.0}}, {}}, "golden.ndjson:2: no score: write the number"},
		"missing":            {[]Golden{{Score: number(0)}}, "golden.ndjson:1: the score is NaN"},
		"infinite":           {[]Golden{{Score: number(0), Features: map[string]any{"a": math.MaxFloat64, "b": math.MaxFloat64}}}, "golden.ndjson:1: the score is +Inf"},
		"another feature":    {[]Golden{{Score: number(0), Features: map[string]any{"c": 0.0}}}, "golden.ndjson:1: the spec has no feature c; "},
		"near":               {[]Golden{{Score: number(1 + 0.9e-9), Features: map[string]any{"a": 1.0, "b": false}}}, ""},
		"near, of a large":   {[]Golden{{Score: number(1e6 + 0.9e-3), Features: map[string]any{"a": 1e6, "b": 0.0}}}, ""},
		"off":                {[]Golden{{Score: number(1), Features: map[string]any{"a": 1.0, "b": 0.0}}, {Score: number(2), Features: map[string]any{"a": 2 + 1e-6, "b": 0.0}}, {Score: number(3), Features: map[string]any{"a": 3 + 2e-3, "b": 0.0}}}, "2 of 3 golden rows are off; the worst, golden.ndjson:3, by 0.000667, and 1e-09 is allowed"},
		"a bool is a number": {[]Golden{{Score: number(2), Features: map[string]any{"a": true, "b": false, "verb": "post"}}}, ""},
		"a text is none":     {[]Golden{{Score: number(2), Features: map[string]any{"a": "x"}}}, "feature a is a number, and here is x"},
		"a number no text":   {[]Golden{{Score: number(2), Features: map[string]any{"verb": 1.0}}}, "feature verb is a string, and here is 1"},
		"a list is nothing":  {[]Golden{{Score: number(2), Features: map[string]any{"verb": []any{}}}}, "feature verb is a string, and here is []"},
	} {
		err := goldenScores(m, c.rows)
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for _, c := range []struct {
		got, want any
		same      bool
	}{
		{1.0, 1.0, true}, {1.0, 1 + 1e-10, true}, {1.0, 1 + 1e-8, false}, {1e9, 1e9 + 0.5, true}, {math.NaN(), math.NaN(), true}, {math.NaN(), 1.0, false}, {1.0, math.NaN(), false},
		{math.Inf(1), math.Inf(1), true}, {math.Inf(1), math.Inf(-1), false}, {"a", "a", true}, {"a", "b", false}, {"a", 1.0, false}, {1.0, "a", false}, {0.0, "", false}, {"", 0.0, false},
	} {
		if got := sameFeature(c.got, c.want); got != c.same {
			t.Errorf("%v and %v are the same: %v", c.got, c.want, got)
		}
	}
	if got := off(3, 5); got != 0.4 {
		t.Errorf("3 is off 5 by %v", got)
	}
	if got := off(0.5, 0.25); got != 0.25 {
		t.Errorf("0.5 is off 0.25 by %v", got)
	}
}

// Every feature needs a row with a record that gives it a value; the first ten that have none
// are named.
func TestUntestedFeaturesAreNamed(t *testing.T) {
	var features, weights []string
	for i := range 12 {
		features, weights = append(features, fmt.Sprintf("f%02d: record.likes / record.shares", i)), append(weights, fmt.Sprintf("f%02d: 1", i))
	}
	m := parsed(t, "name: n\nversion: \"1\"\nschemas: [millrace.Activity]\nfeatures: {likes: record.likes, verb: record.verb, "+strings.Join(features, ", ")+"}\nscorer: linear\nparameters: {weights: {likes: 1, verb: {a: 1}, "+strings.Join(weights, ", ")+"}}\n")
	row := Golden{Record: Values{"likes": 0.0}}
	err := row.Complete(m, relevance.ShippedSchemas())
	if err == nil || !strings.HasSuffix(err.Error(), "f00 is missing, f01 is missing, f02 is missing, f03 is missing, f04 is missing, f05 is missing, f06 is missing, f07 is missing, f08 is missing, f09 is missing, and 2 more") {
		t.Errorf("a score of nothing: %v", err)
	}
	row = Golden{Record: Values{"likes": 0.0}, Features: map[string]any{"likes": 0.0, "verb": ""}}
	err = goldenRecords(m, []Golden{row}, relevance.ShippedSchemas(), []reading{typed})
	if err == nil || !strings.HasSuffix(err.Error(), "no row with a record gives a value to verb, f00, f01, f02, f03, f04, f05, f06, f07, f08; mend the expression, or add a row where it has one") {
		t.Errorf("untested: %v", err)
	}
	row = Golden{Record: Values{"likes": 1.0}}
	if err := row.Complete(m, relevance.ShippedSchemas()); err == nil || err.Error() != "feature f00 is +Inf: its expression is record.likes / record.shares" {
		t.Errorf("infinite: %v", err)
	}
	if _, err := row.Vector(m, relevance.ShippedSchemas()); err == nil || err.Error() != "feature f00 is +Inf: its expression is record.likes / record.shares" {
		t.Errorf("a vector that is infinite: %v", err)
	}
	score := 7.0
	given := Golden{Features: map[string]any{"likes": 5.0}, Score: &score}
	if err := given.Complete(m, nil); err != nil || len(given.Features) != 1 || *given.Score != 7 {
		t.Errorf("what is complete stays: %+v, %v", given, err)
	}
	given = Golden{Record: Values{"likes": 2.0, "shares": 4.0, "verb": "a"}, Score: &score}
	if err := given.Complete(m, relevance.ShippedSchemas()); err != nil || given.Features["likes"] != 2.0 || given.Features["f00"] != 0.5 || given.Features["verb"] != "a" || *given.Score != 7 {
		t.Errorf("the features alone are filled in: %+v, %v", given, err)
	}
	given = Golden{Record: Values{"likes": 2.0, "shares": 4.0, "verb": "a"}, Features: map[string]any{"likes": 5.0}}
	if err := given.Complete(m, relevance.ShippedSchemas()); err != nil || len(given.Features) != 1 || *given.Score != 2+1+12*0.5 {
		t.Errorf("the score alone is filled in: %+v, %v", given, err)
	}
	want := []any{2.0, "a", 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5}
	if got, err := given.Vector(m, relevance.ShippedSchemas()); err != nil || !slices.Equal(got, want) {
		t.Errorf("the vector is %v: %v", got, err)
	}
}

// The viewers of rows are kept, the first three that differ.
func TestViewersOfRows(t *testing.T) {
	viewer := func(id string) Golden { return Golden{Viewer: map[string]any{"id": id}} }
	got := viewersOf([]Golden{{}, viewer("a"), viewer("a"), viewer("b"), {}, viewer("a"), viewer("c"), viewer("d")})
	if fmt.Sprint(got) != "[map[id:a] map[id:b] map[id:c]]" {
		t.Errorf("the viewers are %v", got)
	}
}

// What a schema refuses is told a line for each field, whatever the error is made of.
func TestFaultsAreToldByField(t *testing.T) {
	plain := errors.New("the disk is full")
	if got := inWords(errors.Join(plain, plain), "record"); got == nil || got.Error() != "the disk is full\nthe disk is full" {
		t.Errorf("%v", got)
	}
	if got := inWords(nil, "record"); got != nil {
		t.Errorf("%v", got)
	}
}

// A workload has enough records to measure, of each row its share, and says how it is scored.
func TestWorkloadsHaveEnoughRecords(t *testing.T) {
	m := parsed(t, strings.NewReplacer("dot(entity.embedding, viewer.taste)", "coalesce(dot(entity.embedding, viewer.taste), 0.25)", "object.embedding[0]", "coalesce(object.embedding[0], 0.5)").Replace(bothSpec))
	rows, err := ReadGolden("golden", []byte(`{"record":{"likes":1},"as_of":0}
{"features":{}}
{"record":{"likes":2},"object":{"embedding":[3]},"as_of":0}
{"record":{"likes":3},"viewer":{"age":40},"as_of":0}
{"record":{"likes":4},"entity":{"embedding":[3]},"viewer":{"age":40,"taste":[7]},"as_of":0}
`))
	if err != nil {
		t.Fatal(err)
	}
	for wanted, parts := range map[int][]int{0: {64, 64, 64}, 3 * 64: {64, 64, 64}, 3 * 100: {100, 100, 100}} {
		w, err := NewWorkload(m, rows, relevance.ShippedSchemas(), wanted)
		if err != nil {
			t.Fatal(err)
		}
		var got []int
		sum := 0
		for _, p := range w.parts {
			got, sum = append(got, len(p.out)), sum+len(p.out)
		}
		if !slices.Equal(got, parts) || w.Records != sum || w.Execution() != "interpreted" {
			t.Errorf("%d wanted: parts of %v, %d together, %s", wanted, got, w.Records, w.Execution())
		}
		w.Score()
		for i, of := range [][]int{{0, 2}, {3}, {4}} {
			for k, x := range w.parts[i].out {
				e, err := newExplainer(m).explain(&rows[of[k%len(of)]], relevance.ShippedSchemas(), typed)
				if err != nil || e.Score != x {
					t.Fatalf("part %d, record %d: %v, want %v: %v", i, k, x, e.Score, err)
				}
			}
		}
	}
	if _, err := NewWorkload(m, []Golden{{Record: Values{"lieks": 1.0}}}, relevance.ShippedSchemas(), 1); err == nil || !strings.Contains(err.Error(), "no field lieks") {
		t.Errorf("a record of another schema: %v", err)
	}
	if _, err := NewWorkload(m, []Golden{{Record: Values{}, Viewer: map[string]any{"age": "old"}}}, relevance.ShippedSchemas(), 1); err == nil || !strings.Contains(err.Error(), "viewer.age") {
		t.Errorf("a viewer of another type: %v", err)
	}
	if _, err := NewWorkload(m, []Golden{{Record: Values{}, Object: Values{"x": 1.0}}}, relevance.ShippedSchemas(), 1); err == nil || !strings.Contains(err.Error(), "no field x in object") {
		t.Errorf("an object of another schema: %v", err)
	}
	home, err := relevance.Builtin().Get("home")
	if err != nil {
		t.Fatal(err)
	}
	made, known := MadeUp(home, relevance.ShippedSchemas())
	w, err := NewWorkload(home, made, known, 1)
	if err != nil || w.Execution() != "generated" || w.Records != madeUpRows {
		t.Errorf("the home feed: %+v, %v", w, err)
	}
}

// Made-up rows have all that a model reads, so that none of its features is missing.
func TestMadeUpRowsHaveEverything(t *testing.T) {
	for name, spec := range map[string]string{
		"both": bothSpec,
		"none": "name: n\nversion: \"1\"\nviewer: {vip: bool, word: string}\nfeatures: {time: record.time, id: record.id, vip: viewer.vip, word: viewer.word, version: record.version}\nscorer: linear\nparameters: {weights: {time: 1, id: {a: 1}, vip: 1, word: {a: 1}, version: 1}}\n",
		"two":  "name: n\nversion: \"1\"\nschemas: [millrace.Activity, millrace.Note]\nfeatures: {time: record.time, deleted: \"record.deleted ? 1.0 : 2.0\"}\nscorer: linear\nparameters: {weights: {time: 1, deleted: 1}}\n",
	} {
		m := parsed(t, spec)
		rows, known := MadeUp(m, relevance.ShippedSchemas())
		if want := madeUpRows * max(1, len(m.Spec().Schemas)); len(rows) != want {
			t.Errorf("%s: %d rows, want %d", name, len(rows), want)
		}
		distinct := map[string]bool{}
		for i := range rows {
			values, err := rows[i].Vector(m, known)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			for at, v := range values {
				if x, number := v.(float64); number && math.IsNaN(x) || v == "" {
					t.Fatalf("%s: row %d has no %s", name, i, m.FeatureTypes()[at].Name)
				}
			}
			distinct[fmt.Sprint(values)] = true
		}
		if len(distinct) < madeUpRows/2 {
			t.Errorf("%s: the rows make %d vectors", name, len(distinct))
		}
	}
}

// Of a family of two schemas a row is read by the newest that has its fields, in either way,
// and those that were not there when a pack was sealed do not count.
func TestRowsOfFamilies(t *testing.T) {
	avsc := func(more string) *schemas.Schema {
		s, err := schemas.Parse([]byte(`{"type":"record","name":"Item","namespace":"shop","fields":[
	 {"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},{"name":"kind","type":"string","millrace":"type"},
	 {"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"}` + more + `]}`))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	old, now := avsc(`,{"name":"a","type":"double","default":1}`), avsc(`,{"name":"b","type":"double","default":2}`)
	f, err := schemas.FamilyOf(old, now)
	if err != nil {
		t.Fatal(err)
	}
	known := relevance.ShippedSchemas()
	known["shop.Item"] = relevance.Records{Layout: f.Layout(), Family: f}
	m, err := relevance.Parse(SpecFile, []byte("name: item\nversion: \"1\"\nschemas: [shop.Item]\nfeatures: {a: record.a, b: record.b}\nscorer: linear\nparameters: {weights: {a: 1, b: 10}}\n"), known)
	if err != nil {
		t.Fatal(err)
	}
	prints := (records{known["shop.Item"]}).prints()
	if prints != old.Fingerprint().String()+" "+now.Fingerprint().String() {
		t.Errorf("the fingerprints are %q", prints)
	}
	for _, c := range []struct {
		record Values
		schema string
		want   string
	}{
		{Values{"a": 5.0}, "", "5 2"}, {Values{"b": 5.0}, "", "1 5"}, {Values{}, "", "1 2"},
		{Values{"a": 5.0}, "shop.Item@" + old.Fingerprint().String(), "5 2"},
		{Values{"a": 5.0}, "shop.Item@" + now.Fingerprint().String(), "no field a in record"},
		{Values{"c": 5.0}, "", "no field c in record"},
	} {
		for _, as := range []reading{typed, asWritten} {
			row := Golden{Record: c.record, Schema: c.schema}
			e, err := newExplainer(m).explain(&row, known, as)
			got := fmt.Sprint(err)
			if err == nil {
				got = fmt.Sprint(e.Features[0].Value, " ", e.Features[1].Value)
			}
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("%v of %q, as written %v: %s, want %s", c.record, c.schema, as, got, c.want)
			}
		}
	}
	for sealed, want := range map[string]int{old.Fingerprint().String(): 1, prints: 2, "0011223344556677": 2, "0011223344556677 " + now.Fingerprint().String(): 1} {
		then, err := atSeal(known, map[string]string{"shop.Item": sealed, "nobody.Knows": "00"})
		if err != nil || len(then["shop.Item"].Family.Schemas()) != want || len(known["shop.Item"].Family.Schemas()) != 2 || len(then) != len(known) {
			t.Errorf("sealed with %s there are %d schemas: %v", sealed, len(then["shop.Item"].Family.Schemas()), err)
		}
	}
	if (records{relevance.Records{Layout: f.Layout()}}).prints() != "" {
		t.Error("of a layout alone there are fingerprints")
	}
}
