package schemas

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	hamba "github.com/hamba/avro/v2"
	twmb "github.com/twmb/avro"

	"github.com/millrace/millrace/internal/column"
)

// TestResolve decodes a body under another schema, rule by rule. A field is
// written as f (after the required roles) with a JSON value, and read as the
// fields of the reader.
func TestResolve(t *testing.T) {
	const ab, abc = `{"type":"enum","name":"E","symbols":["A","B"]}`, `{"type":"enum","name":"E","symbols":["C","B","A"]}`
	const short = `{"type":"enum","name":"E","symbols":["A","OTHER"],"default":"OTHER"}`
	rec := func(fields string) string { return `{"type":"record","name":"R","fields":[` + fields + `]}` }
	for _, c := range []struct{ name, writer, value, reader, want string }{
		{"same", `{"name":"f","type":"int"}`, `5`, `{"name":"f","type":"int"}`, `{"f":5}`},
		{"removed", `{"name":"f","type":"string"}`, `"gone"`, ``, `{}`},
		{"added", `{"name":"f","type":"int"}`, `5`, `{"name":"f","type":"int"},{"name":"g","type":"string","default":"a long default"}`, `{"f":5,"g":"a long default"}`},
		{"added zero", `{"name":"f","type":"int"}`, `5`, `{"name":"g","type":"long","default":0},{"name":"h","type":"boolean","default":true}`, `{"g":0,"h":true}`},
		{"added lists", `{"name":"f","type":"int"}`, `5`, `{"name":"g","type":{"type":"array","items":"float"},"default":[0.5,2]},{"name":"h","type":{"type":"array","items":"string"},"default":["x","a longer one"]}`, `{"g":[0.5,2],"h":["x","a longer one"]}`},
		{"added nullable", `{"name":"f","type":"int"}`, `5`, `{"name":"g","type":["null","int"],"default":null},{"name":"h","type":["int","null"],"default":0}`, `{"g":null,"h":0}`},
		{"added enum", `{"name":"f","type":"int"}`, `5`, `{"name":"g","type":` + abc + `,"default":"C"}`, `{"g":"C"}`},
		{"added record", `{"name":"f","type":"int"}`, `5`, `{"name":"g","type":` + rec(`{"name":"x","type":"int","default":3},{"name":"y","type":"string"}`) + `,"default":{"y":"z"}}`, `{"g.x":3,"g.y":"z"}`},
		{"renamed", `{"name":"f","type":"int"}`, `5`, `{"name":"g","type":"int","aliases":["e","f"]}`, `{"g":5}`},
		{"an alias of two", `{"name":"f","type":"int"},{"name":"e","type":"int","default":6}`, `5`, `{"name":"g","type":"int","aliases":["e","f"]}`, `{"g":5}`},
		{"an alias that the name has", `{"name":"g","type":"int","default":6},{"name":"f","type":"int"}`, `5`, `{"name":"g","type":"int","aliases":["f"]}`, `{"g":6}`},
		{"renamed record", `{"name":"f","type":` + rec(`{"name":"x","type":"int"}`) + `}`, `{"x":1}`, `{"name":"f","type":{"type":"record","name":"S","aliases":["R"],"fields":[{"name":"x","type":"int"}]}}`, `{"f.x":1}`},
		{"renamed enum", `{"name":"f","type":` + ab + `}`, `"B"`, `{"name":"f","type":{"type":"enum","name":"F","aliases":["E"],"symbols":["B","A"]}}`, `{"f":"B"}`},
		{"int to long", `{"name":"f","type":"int"}`, `5`, `{"name":"f","type":"long"}`, `{"f":5}`},
		{"int to float", `{"name":"f","type":"int"}`, `16777217`, `{"name":"f","type":"float"}`, `{"f":16777216}`},
		{"long to double", `{"name":"f","type":"long"}`, `5`, `{"name":"f","type":"double"}`, `{"f":5}`},
		{"float to double", `{"name":"f","type":"float"}`, `0.5`, `{"name":"f","type":"double"}`, `{"f":0.5}`},
		{"bytes to string", `{"name":"f","type":"bytes"}`, `"aGVsbG8="`, `{"name":"f","type":"string"}`, `{"f":"hello"}`},
		{"string to bytes", `{"name":"f","type":"string"}`, `"x"`, `{"name":"f","type":"bytes"}`, `{}`},
		{"ints to doubles", `{"name":"f","type":{"type":"array","items":"int"}}`, `[1,2]`, `{"name":"f","type":{"type":"array","items":"double"}}`, `{"f":[1,2]}`},
		{"ints to floats", `{"name":"f","type":{"type":"array","items":"long"}}`, `[16777217]`, `{"name":"f","type":{"type":"array","items":"float"}}`, `{"f":[16777216]}`},
		{"value to nullable", `{"name":"f","type":"int"}`, `5`, `{"name":"f","type":["null","long"]}`, `{"f":5}`},
		{"nullable to nullable", `{"name":"f","type":["null","int"]}`, `null`, `{"name":"f","type":["long","null"]}`, `{"f":null}`},
		{"null to nullable", `{"name":"f","type":"null"}`, `null`, `{"name":"f","type":["null","string"]}`, `{"f":null}`},
		{"nullable record", `{"name":"f","type":["null",` + rec(`{"name":"x","type":"int"}`) + `]}`, `null`, `{"name":"f","type":["null",` + rec(`{"name":"x","type":"int"},{"name":"y","type":"int","default":9}`) + `]}`, `{"f.x":null,"f.y":null}`},
		{"present record", `{"name":"f","type":["null",` + rec(`{"name":"x","type":"int"}`) + `]}`, `{"x":1}`, `{"name":"f","type":["null",` + rec(`{"name":"x","type":"int"},{"name":"y","type":"int","default":9}`) + `]}`, `{"f.x":1,"f.y":9}`},
		{"enum by name", `{"name":"f","type":` + ab + `}`, `"A"`, `{"name":"f","type":` + abc + `}`, `{"f":"A"}`},
		{"enum default", `{"name":"f","type":` + ab + `}`, `"B"`, `{"name":"f","type":` + short + `}`, `{"f":"OTHER"}`},
		{"enums", `{"name":"f","type":{"type":"array","items":` + ab + `}}`, `["B","A"]`, `{"name":"f","type":{"type":"array","items":` + short + `}}`, `{"f":["OTHER","A"]}`},
		{"union to its common type", `{"name":"f","type":["int","long"]}`, `5`, `{"name":"f","type":"double"}`, `{"f":5}`},
	} {
		w := mustSchema(t, withFields(c.writer))
		fields := []string{}
		if c.reader != "" {
			fields = append(fields, c.reader)
		}
		r := mustSchema(t, withFields(fields...))
		body, err := w.EncodeJSON([]byte(`{"id":"i","who":"m:1","kind":"post","at":5,"f":` + c.value + `}`))
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		if err := CheckEvolution(w, r); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		d, err := NewDecoder(w, r)
		if err != nil {
			t.Fatal(err)
		}
		a := column.New(r.Layout(), 1, 0).Append()
		if err := d.Append(a, body); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		slab, got := a.Slab(), map[string]any{}
		for i, f := range r.Layout().Fields() {
			if f.Name[0] != '$' && f.Role == "" {
				got[f.Name] = cell(slab, i, 0)
				if slab.Null(i, 0) {
					got[f.Name] = nil
				}
			}
		}
		if text := string(mustJSON(got)); text != c.want {
			t.Errorf("%s: got %s, want %s", c.name, text, c.want)
		}
		l := r.Layout()
		if slab.String(slab.Word(l.Index(BodyColumn), 0)) != string(body) || slab.Word(l.Index(SchemaColumn), 0) != uint64(w.Fingerprint()) {
			t.Errorf("%s: $body or $schema is wrong", c.name)
		}
	}
}

func TestCheckEvolution(t *testing.T) {
	rec := func(fields string) string {
		return `{"name":"r","type":{"type":"record","name":"R","fields":[` + fields + `]}}`
	}
	for _, c := range []struct{ name, old, new, want string }{
		{"same", `{"name":"f","type":"int"}`, `{"name":"f","type":"int"}`, ""},
		{"added without a default", `{"name":"f","type":"int"}`, `{"name":"f","type":"int"},{"name":"g","type":"int"}`, `field "g": the writer's schema has no such field, and it has no default`},
		{"renamed without an alias", `{"name":"f","type":"int"}`, `{"name":"g","type":"int"}`, `field "g"`},
		{"another type", `{"name":"f","type":"string"}`, `{"name":"f","type":"int"}`, `field "f": string cannot be read as int`},
		{"narrowed", `{"name":"f","type":"long"}`, `{"name":"f","type":"int"}`, `field "f": long cannot be read as int`},
		{"no longer null", `{"name":"f","type":["null","int"]}`, `{"name":"f","type":"int"}`, `field "f": null cannot be read as int`},
		{"a branch less", `{"name":"f","type":["null","int","string"]}`, `{"name":"f","type":["null","int"]}`, `field "f": string cannot be read as union of null, int`},
		{"another unit", `{"name":"f","type":{"type":"long","logicalType":"timestamp-millis"}}`, `{"name":"f","type":{"type":"long","logicalType":"timestamp-micros"}}`, `field "f": long (timestamp-millis) cannot be read as long (timestamp-micros)`},
		{"a unit given", `{"name":"f","type":"long"}`, `{"name":"f","type":{"type":"long","logicalType":"timestamp-micros"}}`, ""},
		{"a symbol less", `{"name":"f","type":{"type":"enum","name":"E","symbols":["A","B"]}}`, `{"name":"f","type":{"type":"enum","name":"E","symbols":["A"]}}`, `no symbol B`},
		{"another size", `{"name":"f","type":{"type":"fixed","name":"E","size":4}}`, `{"name":"f","type":{"type":"fixed","name":"E","size":8}}`, `field "f": fixed E cannot be read`},
		{"below", rec(`{"name":"x","type":"int"}`), rec(`{"name":"x","type":"boolean"}`), `field "r.x": int cannot be read as boolean`},
		{"in a list", `{"name":"f","type":{"type":"array","items":"int"}}`, `{"name":"f","type":{"type":"array","items":"string"}}`, `field "f[]": int cannot be read as string`},
		{"a role added", `{"name":"f","type":"int"}`, `{"name":"f","type":"int"},{"name":"v","type":"int","default":0,"millrace":"version"}`, ""},
		{"a role added with a default", `{"name":"f","type":"int"}`, `{"name":"v","type":"int","default":7,"millrace":"version"}`, `field "v": the role "version" is new`},
		{"a nullable role added with a default", `{"name":"f","type":"int"}`, `{"name":"o","type":["string","null"],"default":"x","millrace":"object"}`, `field "o": the role "object" is new`},
		{"a nullable role added", `{"name":"f","type":"int"}`, `{"name":"o","type":["string","null"],"default":"","millrace":"object"}`, ""},
		{"a role kept with its default", `{"name":"f","type":"int"},{"name":"v","type":"int","default":7,"millrace":"version"}`, `{"name":"v","type":"int","default":7,"millrace":"version"}`, ""},
		{"a role kept under an alias", `{"name":"v","type":"int","millrace":"version"}`, `{"name":"w","type":"int","default":7,"aliases":["v"],"millrace":"version"}`, ""},
		{"a role given", `{"name":"v","type":"int"}`, `{"name":"v","type":"int","millrace":"version"}`, `field "v": its role was "" and is "version"`},
		{"a role taken", `{"name":"v","type":"int","millrace":"version"}`, `{"name":"v","type":"int"}`, `field "v": its role was "version" and is ""`},
		{"a role removed", `{"name":"v","type":"int","millrace":"version"}`, `{"name":"f","type":"int","default":0}`, `field "v": its role was "version"`},
	} {
		err := CheckEvolution(mustSchema(t, withFields(c.old)), mustSchema(t, withFields(c.new)))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
	if err := CheckEvolution(Note(), Activity()); err == nil {
		t.Error("an activity is taken for an evolution of a note")
	}
}

// TestManyCandidates resolves unions of records that differ only in namespace,
// level upon level, and fail in the last: every pair is tried, but only once.
func TestManyCandidates(t *testing.T) {
	schema := func(leaf string) *Schema {
		var fields, refs []string
		for level := range 3 {
			typ := leaf
			if level > 0 {
				typ = "[" + strings.Join(refs, ",") + "]"
			}
			refs = nil
			for i := range 9 {
				name := fmt.Sprintf("l%d.n%d.R", level, i)
				refs = append(refs, fmt.Sprintf("%q", name))
				fields = append(fields, fmt.Sprintf(`{"name":"f%d_%d","default":null,"type":["null",{"type":"record","name":%q,"fields":[{"name":"x","type":%s}]}]}`, level, i, name, typ))
			}
		}
		return mustSchema(t, withFields(fields...))
	}
	old, new := schema(`"int"`), schema(`"boolean"`)
	if err := CheckEvolution(old, new); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Error(err)
	}
	c := newCompiler()
	last := func(s *Schema) *node { return s.root.fields[len(s.root.fields)-1].typ }
	if _, err := c.resolve(nil, last(old), last(new), "f"); err == nil {
		t.Error("an int is read as a boolean")
	}
}

// evolve returns a changed copy of a record schema, as a team might change it
// or get it wrong.
func (g *generator) evolve(schema object) object {
	var out object
	if err := json.Unmarshal(mustJSON(schema), &out); err != nil {
		panic(err)
	}
	g.evolveRecord(out)
	return out
}

func (g *generator) evolveRecord(record object) {
	fields := []any{}
	for _, f := range record["fields"].([]any) {
		f := f.(object)
		if f["millrace"] == nil {
			switch g.IntN(8) {
			case 0:
				continue
			case 1:
				f["aliases"], f["name"] = []any{f["name"]}, g.name("renamed")
			case 2:
				f["name"] = g.name("renamed")
			case 3:
				f["type"] = g.evolveType(f["type"])
			}
		}
		fields = append(fields, f)
	}
	for range g.IntN(3) {
		f := object{"name": g.name("added"), "type": g.leaf(0)}
		switch g.IntN(4) {
		case 0:
			f["type"], f["default"] = "string", strings.Repeat("d", g.IntN(12))
		case 1:
			f["type"], f["default"] = object{"type": "array", "items": "int"}, []any{1, -2}
		case 2:
			f["type"], f["default"] = []any{"null", "double"}, nil
		case 3:
			f["type"], f["default"] = "boolean", true
		}
		fields = append(fields, f)
	}
	g.Shuffle(len(fields), func(i, j int) { fields[i], fields[j] = fields[j], fields[i] })
	record["fields"] = fields
}

func (g *generator) evolveType(typ any) any {
	switch v := typ.(type) {
	case string:
		wider := map[string][]string{"int": {"long", "float", "double", "string"}, "long": {"float", "double", "int"}, "float": {"double"}, "string": {"bytes"}, "bytes": {"string"}}[v]
		if len(wider) > 0 && g.IntN(3) > 0 {
			return wider[g.IntN(len(wider))]
		}
		return []any{"null", v}
	case []any:
		for i := range v {
			if b, ok := v[i].(object); ok {
				v[i] = g.evolveType(b)
			}
		}
		if g.IntN(4) == 0 && len(v) > 1 {
			return v[1:]
		}
	case object:
		switch v["type"] {
		case "record":
			g.evolveRecord(v)
		case "array":
			v["items"] = g.evolveType(v["items"])
		case "map":
			v["values"] = g.evolveType(v["values"])
		case "enum":
			v["symbols"] = []any{"C", "NEW", "A", "LONGER_THAN_A_WORD"}[:2+g.IntN(3)]
			if g.IntN(2) == 0 {
				v["default"] = "C"
			}
		}
	}
	return typ
}

// refusesNewField reports whether err may be of a new field without a default.
// Below a union it only says that no branch reads the writer's type.
func refusesNewField(err error) bool {
	return strings.Contains(err.Error(), "has no default") || strings.Contains(err.Error(), "cannot be read as union")
}

// TestRandomEvolution holds resolution against twmb on random changes: both
// accept the change or both refuse it, and columns equal what it decodes.
func TestRandomEvolution(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 1))}
	accepted, refused := 0, 0
	for range 600 {
		was := g.record()
		is := g.evolve(was)
		old, err := Parse(mustJSON(was))
		if err != nil {
			t.Fatal(err)
		}
		new, err := Parse(mustJSON(is))
		if err != nil {
			continue // such as a union that holds a type twice now
		}
		told, tnew := twmb.MustParse(old.JSON()), twmb.MustParse(new.JSON())
		twmbErr := twmb.CheckCompatibility(told, tnew)
		d, err := NewDecoder(old, new)
		if err != nil && twmbErr == nil && refusesNewField(err) && hambaRefuses(t, old, new) {
			continue // twmb takes a new field that may be null to have a default; the specification does not
		}
		if (err == nil) != (twmbErr == nil) {
			t.Fatalf("ours: %v\ntwmb: %v\n%s\n%s", err, twmbErr, old.JSON(), new.JSON())
		}
		if err != nil {
			refused++
			continue
		}
		accepted++
		resolved, err := twmb.Resolve(told, tnew)
		if err != nil {
			t.Fatal(err)
		}
		a := column.New(new.Layout(), 1, 0).Append()
		for row := range 3 {
			body, err := old.EncodeJSON(mustJSON(g.value(old.root)))
			if err != nil {
				t.Fatal(err)
			}
			var v any
			_, twmbErr := resolved.Decode(body, &v)
			err = d.Append(a, body)
			if e := (*Error)(nil); errors.As(err, &e) && e.Reason == InvalidUTF8 {
				break // bytes that are read as a string and are none
			}
			if err != nil || twmbErr != nil {
				t.Fatalf("ours: %v\ntwmb: %v\n%s\n%s\n%x", err, twmbErr, old.JSON(), new.JSON(), body)
			}
			want, ok := normal(new.root, v)
			if !ok {
				t.Fatalf("%#v\n%s", v, new.JSON())
			}
			checkRow(t, a.Slab(), row, want.(object))
			if t.Failed() {
				t.Fatalf("%s\n%s", old.JSON(), new.JSON())
			}
		}
	}
	if accepted < 50 || refused < 50 {
		t.Errorf("%d evolutions accepted and %d refused; the test wants many of both", accepted, refused)
	}
}

func hambaRefuses(t *testing.T, writer, reader *Schema) bool {
	t.Helper()
	parse := func(s *Schema) hamba.Schema {
		h, err := hamba.ParseBytesWithCache([]byte(s.JSON()), "", &hamba.SchemaCache{})
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	return hamba.NewSchemaCompatibility().Compatible(parse(reader), parse(writer)) != nil
}
