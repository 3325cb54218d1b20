package schemas

import (
	"encoding/json"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

const activityLine = `{"id":"a1","actor":"member:42","verb":"post","created_at":"2026-01-02T03:04:05.678Z",
 "object":"article:7","about":["member:7","group:9"],"version":3,"language":"en","country":"Switzerland","text":"a text that is longer than a word",
 "likes":12,"comments":300,"features":[0.5,1.25,-3]}`

// TestShipped pins what records in logs refer to.
func TestShipped(t *testing.T) {
	for _, c := range []struct {
		s    *Schema
		want string
	}{
		{Exposure(), "millrace.Exposure 0e9be7c96d82b76a"}, {EarlierExposure(), "millrace.Exposure cf58a0d60f26c20a"}, {Tombstone(), "millrace.Tombstone 6d58eafbe2e378ea"},
		{Activity(), "millrace.Activity 3d549da030304fed"}, {Note(), "millrace.Note 99d9e2e6968f5945"}, {Features(), "millrace.Features 9598956dce9d4748"},
	} {
		if got := c.s.Name() + " " + c.s.Fingerprint().String(); got != c.want {
			t.Errorf("the fingerprint is %s, was %s; a shipped schema evolves under a new version, and this test with it", got, c.want)
		}
	}
	if Activity().Features() || !Features().Features() {
		t.Error("which of the shipped schemas is of features?")
	}
	if was, is := EarlierExposure().Fields(), Exposure().Fields(); len(was) == 0 || !slices.Equal(was, is[:len(was)]) {
		t.Errorf("exposures began with %q, and begin with %q", was, is)
	}
}

// columns returns a layout as a text.
func columns(l *column.Layout) string {
	var all []string
	for _, f := range l.Fields() {
		text := f.Name + " " + f.Kind.String()
		if f.Nullable {
			text += "?"
		}
		if f.Role != "" {
			text += " =" + f.Role
		}
		if f.Widened {
			text += " widened"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func TestLayout(t *testing.T) {
	s := mustSchema(t, withFields(
		`{"name":"b","type":"boolean"}`, `{"name":"d","type":["null","double"]}`, `{"name":"e","type":{"type":"enum","name":"E","symbols":["A"]}}`,
		`{"name":"r","type":{"type":"record","name":"R","fields":[{"name":"x","type":"int"},{"name":"deep","type":["null",{"type":"record","name":"Q","fields":[{"name":"y","type":{"type":"array","items":"long"}},{"name":"raw","type":["null",{"type":"fixed","name":"F","size":1}]}]}]}]}}`,
		`{"name":"none","type":["null","int","string"]}`, `{"name":"raw","type":"bytes"}`, `{"name":"m","type":{"type":"map","values":"int"}}`,
		`{"name":"tags","type":{"type":"array","items":"E"}}`, `{"name":"odd","type":{"type":"int","logicalType":"timestamp-millis"}}`, `{"name":"wrapped","type":{"type":["int","null"]}}`, `{"name":"day","type":{"type":"int","logicalType":"date"}}`, `{"name":"v","type":"int","millrace":"version"}`))
	want := "id string =id, who string =entity, kind string =type, at timestamp =time, b bool, d double?, e string, r.x int, r.deep.y list(double)?, tags list(string), odd int, wrapped int?, day int, v int =version, $body string, $schema int"
	if text := columns(s.Layout()); text != want {
		t.Errorf("columns\n%s\nwant\n%s", text, want)
	}
	r := s.Roles()
	if r.Time != (RoleField{Name: "at", Column: 3}) || r.Version.Column != 13 || r.Deleted != (RoleField{Column: -1}) {
		t.Errorf("roles %+v", r)
	}
	if got, want := fmt.Sprint(s.Layout().Carried()), "map[m:map of int none:union of null, int, string r.deep.raw:fixed F raw:bytes]"; got != want {
		t.Errorf("carries %s, want %s", got, want)
	}
}

// A layout knows the defaults of its fields; what has none is 0, false or empty.
func TestBlank(t *testing.T) {
	s := mustSchema(t, withFields(`{"name":"n","type":"int","default":7}`, `{"name":"zero","type":"int"}`, `{"name":"none","type":["null","long"],"default":null}`, `{"name":"blank","type":["null","long"]}`,
		`{"name":"s","type":["string","null"],"default":"a default of some length"}`, `{"name":"list","type":{"type":"array","items":"float"},"default":[0.1]}`, `{"name":"raw","type":"bytes","default":"x"}`,
		`{"name":"r","type":{"type":"record","name":"R","fields":[{"name":"x","type":"boolean","default":true},{"name":"y","type":"string"}]}}`,
		`{"name":"q","type":"R","default":{"y":"z"}}`))
	want := "blank=0 list=[0.10000000149011612] n=7 none=null q.x=1 q.y=z r.x=1 r.y= s=a default of some length zero=0"
	if got := ownOf(s.Layout().Blank()); got != want {
		t.Errorf("blank %s, want %s", got, want)
	}
}

// TestTypes: a schema says its content types where they are an enum.
func TestTypes(t *testing.T) {
	s := mustSchema(t, strings.Replace(withFields(`{"name":"e","type":{"type":"enum","name":"E","symbols":["A"]}}`), `"kind","type":"string"`, `"kind","type":{"type":"enum","name":"K","symbols":["post","like"]}`, 1))
	if got := s.Types(); !slices.Equal(got, []string{"post", "like"}) {
		t.Errorf("types %q", got)
	}
	for _, s := range []*Schema{Note(), Features()} {
		if got := s.Types(); got != nil {
			t.Errorf("%s has the types %q", s.Name(), got)
		}
	}
}

// TestSteps has what a generator of decoders is told of a schema with every type.
func TestSteps(t *testing.T) {
	steps, err := mustParse(everyAVSC).Steps()
	if err != nil {
		t.Fatal(err)
	}
	var told func(steps []Step) string
	told = func(steps []Step) string {
		var all []string
		for _, s := range steps {
			text := fmt.Sprintf("%s %s %d", s.Op, s.Field, s.Column)
			if s.Size > 0 {
				text += fmt.Sprintf(" of %d", s.Size)
			}
			if s.Symbols != nil {
				text += fmt.Sprint(" ", s.Symbols)
			}
			for _, sub := range s.Subs {
				text += " (" + told(sub) + ")"
			}
			all = append(all, text)
		}
		return strings.Join(all, ", ")
	}
	want := "string id 0, string who 1, enum kind 2 of 2 [POST SHARE], time at 3," +
		" union object -1 (null object 4) (string object 4), int version 5, boolean deleted 6, enum colour 7 of 3 [RED ULTRAMARINE BURNT_SIENNA], float ratio 8, double exact 9, union seen -1 (double seen 10) (null seen 10), bytes blob -1, fixed hash -1 of 5," +
		" array ints 11 (int ints[] 0), array longs 12 (long longs[] 0), array floats 13 (float floats[] 0), union doubles -1 (null doubles 14) (array doubles 14 (double doubles[] 0)), array strings 15 (string strings[] 0), array colours 16 (enum colours[] 0 of 3 [RED ULTRAMARINE BURNT_SIENNA])," +
		" map labels -1 (long labels{} -1), union any -1 () (boolean any -1) (long any -1) (string any -1), string shop.country 17, union shop.owner -1 (null shop.owner.name 18, null shop.owner.age 19) (string shop.owner.name 18, union shop.owner.age -1 (null shop.owner.age 19) (int shop.owner.age 19))"
	if got := told(steps); got != want {
		t.Errorf("steps\n%s\nwant\n%s", got, want)
	}
}

// AppendJSON adds to what is there, and after a fault leaves it as it was.
func TestAppendJSON(t *testing.T) {
	good := []byte(`{"id":"n","author":"m:1","kind":"post","at":5,"text":"\u0078"}`)
	body, err := Note().EncodeJSON(good)
	if err != nil {
		t.Fatal(err)
	}
	before := []byte("before")
	for line, want := range map[string]string{string(good): "before" + string(body), string(good[:20]): "before", `{"id":"n","author":7}`: "before"} {
		if got, err := Note().AppendJSON(before, []byte(line)); string(got) != want || (err == nil) != (len(want) > len(before)) {
			t.Errorf("%s: %q, %v; want %q", line, got, err, want)
		}
	}
	for text, want := range map[string]string{`{"a":[1,"x"]}`: "", `{"a":1,"a":1}`: `"a" stands twice in one object`, `{"a":`: "the text ends within a JSON value"} {
		if err := CheckJSON([]byte(text)); want == "" && err != nil || want != "" && (err == nil || err.Error() != want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func TestActivity(t *testing.T) {
	s := Activity()
	body, err := s.EncodeJSON([]byte(activityLine))
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Envelope(body)
	want := Envelope{
		Record: millrace.Record{ID: "a1", Time: 1767323045678, Version: 3, Object: "article:7", Schema: s.Fingerprint(), Body: body},
		Entity: "member:42", About: []millrace.Entity{"member:7", "group:9"}, Type: "post",
	}
	if err != nil || !reflect.DeepEqual(e, want) {
		t.Fatalf("envelope %+v, %v\nwant %+v", e, err, want)
	}
	d, err := NewDecoder(s, s)
	if err != nil {
		t.Fatal(err)
	}
	a := column.New(s.Layout(), 1, 0).Append()
	for range 3 {
		if err := d.Append(a, body); err != nil {
			t.Fatal(err)
		}
	}
	value, err := s.JSONValue(body)
	if err != nil {
		t.Fatal(err)
	}
	for row := range 3 {
		checkRow(t, a.Slab(), row, mustNormal(t, "activity", s.root, value).(object))
	}
}

func TestEnvelope(t *testing.T) {
	nullable := withFields(`{"name":"o","type":["null","string"],"default":null,"millrace":"object"}`, `{"name":"to","type":{"type":"array","items":"string"},"default":[],"millrace":"about"}`, `{"name":"gone","type":"boolean","default":false,"millrace":"deleted"}`)
	nullable = strings.Replace(nullable, `"type":"string","millrace":"type"`, `"type":{"type":"enum","name":"K","symbols":["post","like"]},"millrace":"type"`, 1)
	features := `{"type":"record","name":"F","millrace":"features","fields":[{"name":"e","type":"string","millrace":"entity"},{"name":"v","type":"int","millrace":"version"}]}`
	for _, c := range []struct{ avsc, line, want string }{
		{nullable, `{"id":"i","who":"m:1","kind":"like","at":5}`, "m:1 like i 5 v0 object i"},
		{nullable, `{"id":"i","who":"m:1","kind":"post","at":5,"o":"x","gone":true}`, "m:1 post i 5 v0 object x deleted"},
		{nullable, `{"id":"i","who":"m:1","kind":"post","at":5,"o":""}`, "m:1 post i 5 v0 object i"},
		{nullable, `{"id":"i","who":"m:1","kind":"post","at":5,"to":["m:2","m:1","m:2","m:3"]}`, "m:1 post i 5 v0 object i about [m:2 m:3]"},
		{Features().JSON(), `{"entity":"m:1","updated_at":7}`, "m:1  m:1 7 v7 object m:1 subject m:1"},
		{Features().JSON(), `{"entity":"m:1","updated_at":7,"subject":"article:1"}`, "m:1  article:1 7 v7 object article:1 subject article:1"},
		{features, `{"e":"m:1","v":9}`, "m:1  m:1 0 v9 object m:1 subject m:1"},
	} {
		s := mustSchema(t, c.avsc)
		body, err := s.EncodeJSON([]byte(c.line))
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		e, err := s.Envelope(body)
		r := e.Record
		got := fmt.Sprintf("%s %s %s %d v%d object %s", e.Entity, e.Type, r.ID, int64(r.Time), r.Version, r.Object)
		if r.Deleted {
			got += " deleted"
		}
		if e.About != nil {
			got += fmt.Sprintf(" about %v", e.About)
		}
		if e.Subject != "" {
			got += " subject " + e.Subject
		}
		if err != nil || got != c.want {
			t.Errorf("%s: got %s, %v; want %s", c.line, got, err, c.want)
		}
	}
}

func TestJSONValue(t *testing.T) {
	for _, c := range []struct{ typ, in, want string }{
		{`"long"`, `9007199254740992`, `9007199254740992`},
		{`"long"`, `9007199254740993`, `"9007199254740993"`},
		{`"long"`, `-9223372036854775808`, `"-9223372036854775808"`},
		{`"float"`, `0.1`, `0.1`},
		{`{"type":"long","logicalType":"timestamp-millis"}`, `"2026-01-02T04:04:05.678+01:00"`, `"2026-01-02T03:04:05.678Z"`},
		{`{"type":"long","logicalType":"timestamp-millis"}`, `-1`, `"1969-12-31T23:59:59.999Z"`},
		{`{"type":"long","logicalType":"timestamp-millis"}`, `253402300800000`, `253402300800000`},
		{`{"type":"long","logicalType":"timestamp-micros"}`, `"2026-01-02T03:04:05.678901Z"`, `"2026-01-02T03:04:05.678901Z"`},
		{`"bytes"`, `"AP8="`, `"AP8="`},
		{`{"type":"fixed","name":"X","size":2}`, `"AP8="`, `"AP8="`},
		{`{"type":"enum","name":"X","symbols":["A","B"]}`, `"B"`, `"B"`},
		{`["null","long","string"]`, `null`, `null`},
		{`["null","long","string"]`, `7`, `7`},
		{`["null","long","string"]`, `"x"`, `"x"`},
		{`{"type":"map","values":{"type":"array","items":"int"}}`, `{"b":[1,2],"a":[]}`, `{"a":[],"b":[1,2]}`},
		{`{"type":"record","name":"X","fields":[{"name":"y","type":"null"}]}`, `{"y":null}`, `{"y":null}`},
	} {
		s := mustSchema(t, withFields(`{"name":"f","type":`+c.typ+`}`))
		body, err := s.EncodeJSON([]byte(`{"id":"i","who":"m:1","kind":"post","at":5,"f":` + c.in + `}`))
		if err != nil {
			t.Errorf("%s of %s: %v", c.in, c.typ, err)
			continue
		}
		checkStruct(t, s, body)
		v, err := s.JSONValue(body)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(v["f"])
		if err != nil || string(got) != c.want {
			t.Errorf("%s of %s: got %s, %v; want %s", c.in, c.typ, got, err, c.want)
		}
	}
}

// TestDesignExample keeps the schema that DESIGN.md teaches with working.
func TestDesignExample(t *testing.T) {
	text, err := os.ReadFile("DESIGN.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "```json\n")
	avsc, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("DESIGN.md has no schema")
	}
	s := mustSchema(t, avsc)
	body, err := s.EncodeJSON([]byte(`{"review_id":"r1","author":"member:1","kind":"review","posted":"2026-01-02T03:04:05Z","product":"lamp","stars":4,"shop":{"country":"ch"}}`))
	if err != nil {
		t.Fatal(err)
	}
	e, err := s.Envelope(body)
	if err != nil || e.Type != "review" || e.Record.Object != "lamp" || s.Layout().Index("shop.country") < 0 {
		t.Errorf("%+v, %v, columns %v", e, err, s.Layout().Fields())
	}
}

// Defaults are those that Avro takes: of a union's any branch, as since 1.12,
// and of a record within what its own fields leave out.
func TestDefaults(t *testing.T) {
	place := `{"type":"record","name":"Place","fields":[{"name":"country","type":"string","default":"IN"},{"name":"tags","type":{"type":"map","values":"long"},"default":{}}]}`
	const within = `{"type":"record","name":"Within","fields":[{"name":"x","type":["null","string"],"default":"x"}]}` // not of the first branch
	for field, want := range map[string]string{
		`"type":{"type":"map","values":"string"},"default":{}`:                                                        `{}`,
		`"type":["null",{"type":"map","values":"string"}],"default":{}`:                                               `{}`,
		`"type":[{"type":"map","values":"string"},"null"],"default":null`:                                             `null`,
		`"type":` + place + `,"default":{}`:                                                                           `{"country":"IN","tags":{}}`,
		`"type":["null",` + place + `],"default":{}`:                                                                  `{"country":"IN","tags":{}}`,
		`"type":["null",` + place + `],"default":{"country":"PE","further":1}`:                                        `{"country":"PE","tags":{}}`,
		`"type":{"type":"array","items":` + place + `},"default":[{}]`:                                                `[{"country":"IN","tags":{}}]`,
		`"type":{"type":"array","items":` + within + `},"default":[{}]`:                                               `[{"x":"x"}]`,
		`"type":{"type":"map","values":` + within + `},"default":{"k":{}}`:                                            `{"k":{"x":"x"}}`,
		`"type":["null",` + within + `],"default":{}`:                                                                 `{"x":"x"}`,
		`"type":["null","string"],"default":"x"`:                                                                      `"x"`,
		`"type":["int","string"],"default":true`:                                                                      ``,
		`"type":{"type":"record","name":"Place","fields":[{"name":"country","type":"string"}]},"default":{}`:          ``,
		`"type":["null",{"type":"record","name":"Place","fields":[{"name":"country","type":"string"}]}],"default":{}`: ``,
	} {
		s, err := Parse([]byte(withFields(`{"name":"f",` + field + `}`)))
		if err != nil {
			if want != "" || !strings.Contains(err.Error(), `field "f": the default does not fit`) {
				t.Errorf("%s: %v", field, err)
			}
			continue
		}
		body, err := s.EncodeJSON([]byte(`{"id":"r","who":"a","kind":"k","at":1}`))
		if err != nil {
			t.Fatal(err)
		}
		v, err := s.JSONValue(body)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(mustJSON(v["f"])); got != want {
			t.Errorf("%s: %s, want %s", field, got, want)
		}
	}
}
