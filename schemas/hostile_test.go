package schemas

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

const rolesJSON = `{"name":"id","type":"string","millrace":"id"},{"name":"who","type":"string","millrace":"entity"},
 {"name":"kind","type":"string","millrace":"type"},{"name":"at","type":{"type":"long","logicalType":"timestamp-millis"},"millrace":"time"}`

// withFields returns a schema with the required roles and some further fields.
func withFields(fields ...string) string {
	all := strings.Join(append([]string{rolesJSON}, fields...), ",")
	return `{"type":"record","name":"T","fields":[` + all + `]}`
}

func mustSchema(t testing.TB, avsc string) *Schema {
	t.Helper()
	s, err := Parse([]byte(avsc))
	if err != nil {
		t.Fatalf("%s: %v", avsc, err)
	}
	return s
}

// TestHostileSchemas has the schemas that must be refused, each with what the
// refusal says.
func TestHostileSchemas(t *testing.T) {
	field := func(name, typ string) string { return fmt.Sprintf(`{"name":%q,"type":%s}`, name, typ) }
	var many []string
	for i := range 1100 {
		many = append(many, field(fmt.Sprintf("m%d", i), `"int"`))
	}
	aliases := func(n int) string {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("%q", fmt.Sprintf("a%d", i)))
		}
		return strings.Join(names, ",")
	}
	laugh := `"int"`
	for i := range 30 {
		laugh = fmt.Sprintf(`{"type":"record","name":"L%d","fields":[{"name":"a","type":%s}`, i, laugh)
		laugh += fmt.Sprintf(`,{"name":"b","type":%s}]}`, map[bool]string{true: `"int"`, false: fmt.Sprintf(`"L%d"`, i-1)}[i == 0])
	}
	deepRecords := `"int"`
	for i := range 18 {
		deepRecords = fmt.Sprintf(`{"type":"array","items":{"type":"record","name":"R%d","fields":[{"name":"x","type":%s}]}}`, i, deepRecords)
	}
	for _, c := range []struct{ name, avsc, want string }{
		{"empty", ``, "ends within"},
		{"not JSON", `{"type":`, "ends within"},
		{"two values", withFields() + `{}`, "goes on after"},
		{"not UTF-8", "\"\xff\"", "not UTF-8"},
		{"an attribute twice", `{"type":"record","type":"record","name":"T","fields":[]}`, `"type" stands twice`},
		{"not a record", `{"type":"array","items":"int"}`, "keeps records"},
		{"a name for a type", `"nothing"`, `unknown type "nothing"`},
		{"array of null", withFields(field("f", `{"type":"array","items":"null"}`)), `field "f": the items of the array can take no bytes`},
		{"array of empty records", withFields(field("f", `{"type":"array","items":{"type":"record","name":"E","fields":[]}}`)), "can take no bytes"},
		{"array of fixed 0", withFields(field("f", `{"type":"array","items":{"type":"fixed","name":"E","size":0}}`)), "can take no bytes"},
		{"map of null", withFields(field("f", `{"type":"map","values":"null"}`)), "can take no bytes"},
		{"recursive", withFields(field("f", `["null","T"]`)), `field "f": T contains itself`},
		{"deep text", withFields(field("f", strings.Repeat(`{"type":"array","items":`, 9000)+`"int"`+strings.Repeat("}", 9000))), "more than 65536"},
		{"deep", withFields(field("f", strings.Repeat(`{"type":"array","items":`, 40)+`"int"`+strings.Repeat("}", 40))), `": types nest deeper than 32 levels`},
		{"deep maps", withFields(field("f", strings.Repeat(`{"type":"map","values":`, 40)+`"int"`+strings.Repeat("}", 40))), `": types nest deeper than 32 levels`},
		{"deep unions", withFields(field("f", strings.Repeat(`[{"type":"map","values":`, 18)+`"int"`+strings.Repeat("}]", 18))), `": types nest deeper than 32 levels`},
		{"deep records", withFields(field("f", deepRecords)), `": types nest deeper than 32 levels`},
		{"deep types of types", withFields(field("f", strings.Repeat(`{"type":`, 40)+`"int"`+strings.Repeat("}", 40))), `": types nest deeper than 32 levels`},
		{"deep JSON", withFields(field("f", strings.Repeat(`[`, 200)+strings.Repeat("]", 200))), "deeper than 100 levels"},
		{"large", withFields(`{"name":"f","type":"int","doc":"` + strings.Repeat("x", 65<<10) + `"}`), "more than 65536"},
		{"fixed 8 GiB", withFields(field("f", `{"type":"fixed","name":"E","size":8589934592}`)), "from 0 to 1048576"},
		{"fixed -1", withFields(field("f", `{"type":"fixed","name":"E","size":-1}`)), "from 0 to 1048576"},
		{"fixed 1.5", withFields(field("f", `{"type":"fixed","name":"E","size":1.5}`)), "from 0 to 1048576"},
		{"field twice", withFields(field("f", `"int"`), field("f", `"long"`)), `field "f": the record T has two fields`},
		{"alias of a field", withFields(field("f", `"int"`), `{"name":"g","type":"int","aliases":["f"]}`), `field "f": the record T has two fields`},
		{"many aliases", withFields(`{"name":"f","type":"int","aliases":[` + aliases(7000) + `]}`), "7000 aliases; at most 64"},
		{"many aliases of a type", withFields(field("f", `{"type":"fixed","name":"E","size":1,"aliases":[`+aliases(65)+`]}`)), "65 aliases; at most 64"},
		{"name with code", withFields(field(`f"; os.Exit(1) //`, `"int"`)), "names are letters"},
		{"record name with code", `{"type":"record","name":"T{}","fields":[]}`, "names are letters"},
		{"namespace with code", `{"type":"record","name":"T","namespace":"a/../b","fields":[]}`, "names joined by dots"},
		{"symbol with code", withFields(field("f", `{"type":"enum","name":"E","symbols":["A\n"]}`)), "symbols are letters"},
		{"symbol twice", withFields(field("f", `{"type":"enum","name":"E","symbols":["A","A"]}`)), "the symbol A twice"},
		{"enum default", withFields(field("f", `{"type":"enum","name":"E","symbols":["A"],"default":"B"}`)), "none of its symbols"},
		{"name of a primitive", withFields(field("f", `{"type":"enum","name":"long","symbols":["A"]}`)), "name of a primitive"},
		{"type twice", withFields(field("f", `{"type":"enum","name":"E","symbols":["A"]}`), field("g", `{"type":"enum","name":"E","symbols":["B"]}`)), "E is defined twice"},
		{"default of another type", withFields(`{"name":"f","type":"int","default":"1"}`), `field "f": the default does not fit the type: want int, got "1"`},
		{"default out of range", withFields(`{"name":"f","type":"int","default":2147483648}`), "want int, got 2147483648"},
		{"default of no branch", withFields(`{"name":"f","type":["string","null"],"default":1}`), "want string, got 1"},
		{"union in a union", withFields(field("f", `["null",["int"]]`)), "directly in a union"},
		{"branch twice", withFields(field("f", `["int","int"]`)), "int twice"},
		{"empty union", withFields(field("f", `[]`)), "the union is empty"},
		{"a type within itself", withFields(field("f", `{"type":"record","name":"R","fields":[{"name":"x","type":{"type":"record","name":"R","fields":[]}}]}`)), `field "f.x": R is defined twice`},
		{"many fields", withFields(many...), "at most 1024"},
		{"many laughs", withFields(field("f", laugh)), "written out"},
		{"no roles", `{"type":"record","name":"T","fields":[]}`, `no field has the role "entity"`},
		{"unknown role", withFields(`{"name":"f","type":"int","millrace":"rank"}`), `field "f": record schemas have no role "rank"`},
		{"role twice", withFields(`{"name":"f","type":"string","millrace":"id"}`), `field "f": field "id" has the role "id" already`},
		{"role of another type", withFields(`{"name":"f","type":"string","millrace":"version"}`), `the role "version" needs an int or a long, not string`},
		{"role below", withFields(field("f", `{"type":"record","name":"E","fields":[{"name":"g","type":"int","millrace":"version"}]}`)), `field "f.g": the property millrace`},
		{"time as a long", strings.Replace(withFields(), `{"type":"long","logicalType":"timestamp-millis"}`, `"long"`, 1), `the role "time" needs {"type": "long"`},
		{"features without order", `{"type":"record","name":"F","millrace":"features","fields":[{"name":"e","type":"string","millrace":"entity"}]}`, "which features are newer"},
		{"features without an entity", `{"type":"record","name":"F","millrace":"features","fields":[{"name":"v","type":"int","millrace":"version"}]}`, `no field has the role "entity"; give a string the property`},
		{"features with an id", `{"type":"record","name":"F","millrace":"features","fields":[{"name":"e","type":"string","millrace":"id"}]}`, `field "e": feature schemas have no role "id"`},
		{"a subject in a record", withFields(`{"name":"f","type":"string","millrace":"subject"}`), `field "f": record schemas have no role "subject"`},
		{"no time", strings.Replace(withFields(), `,"millrace":"time"`, "", 1), `no field has the role "time"`},
		{"about of numbers", withFields(`{"name":"f","type":{"type":"array","items":"int"},"millrace":"about"}`), `the role "about" needs an array of strings, not array of int`},
		{"about of one", withFields(`{"name":"f","type":"string","millrace":"about"}`), `the role "about" needs an array of strings, not string`},
		{"object of a number", withFields(`{"name":"f","type":["null","int"],"millrace":"object"}`), `the role "object" needs a string, or a union of null and string, not union of null, int`},
		{"object of three", withFields(`{"name":"f","type":["null","string","int"],"millrace":"object"}`), `the role "object" needs`},
		{"time in microseconds", strings.Replace(withFields(), "timestamp-millis", "timestamp-micros", 1), `not long (timestamp-micros)`},
		{"time in days", strings.Replace(withFields(), `"long","logicalType":"timestamp-millis"`, `"int","logicalType":"date"`, 1), `not int (date)`},
		{"role of a number", withFields(`{"name":"f","type":"int","millrace":7}`), `field "f": the property millrace is a string`},
		{"unknown property", `{"type":"record","name":"F","millrace":"model","fields":[]}`, `it may be "features"`},
		{"a number for a type", withFields(field("f", `7`)), `field "f": a type is a name, a list (a union) or an object, not 7`},
		{"no type of a type", withFields(field("f", `{"items":"int"}`)), `field "f": the type object has no "type"`},
		{"no type", withFields(`{"name":"f"}`), `field "f": the field has no "type"`},
		{"no items", withFields(field("f", `{"type":"array"}`)), `field "f": the array has no "items"`},
		{"no values", withFields(field("f", `{"type":"map","items":"int"}`)), `field "f": the map has no "values"`},
		{"no items that are a type", withFields(field("f", `{"type":"array","items":"nothing"}`)), `field "f[]": unknown type "nothing"`},
		{"no values that are a type", withFields(field("f", `{"type":"map","values":"nothing"}`)), `field "f{}": unknown type "nothing"`},
		{"no branch that is a type", withFields(field("f", `["null","nothing"]`)), `field "f": unknown type "nothing"`},
		{"no symbols", withFields(field("f", `{"type":"enum","name":"E"}`)), "the enum E has no list of symbols"},
		{"symbols are none", withFields(field("f", `{"type":"enum","name":"E","symbols":[]}`)), "the enum E has no list of symbols"},
		{"a symbol is a number", withFields(field("f", `{"type":"enum","name":"E","symbols":["A",7]}`)), `the enum E has the symbol "7"`},
		{"an enum's default is a number", withFields(field("f", `{"type":"enum","name":"E","symbols":["A"],"default":0}`)), `the default "0", which is none`},
		{"a use of a type at fault", withFields(field("f", `{"type":"enum","name":"E","symbols":[]}`), field("g", `{"type":"enum","name":"E","symbols":["A"]}`)), `field "g": E is defined twice`},
		{"fixed without a size", withFields(field("f", `{"type":"fixed","name":"E"}`)), "from 0 to 1048576"},
		{"fixed a byte too long", withFields(field("f", `{"type":"fixed","name":"E","size":1048577}`)), "from 0 to 1048576"},
		{"fields are none", withFields(field("f", `{"type":"record","name":"E"}`)), `field "f": the record E has no list of fields`},
		{"a field is a number", withFields(`7`), "schemas: field 4 is not an object"},
		{"a field without a name", withFields(`{"type":"int"}`), "schemas: field 4 has the name"},
		{"a name of 257 bytes", withFields(field(strings.Repeat("n", 257), `"int"`)), "names are letters"},
		{"a definition without a name", withFields(field("f", `{"type":"enum","symbols":["A"]}`)), "the enum has no name"},
		{"a full name of 257 bytes", withFields(field("f", `{"type":"fixed","size":1,"name":"`+strings.Repeat("n", 257)+`"}`)), "the fixed has the name"},
		{"a namespace that is a number", withFields(field("f", `{"type":"fixed","size":1,"name":"E","namespace":7}`)), `the namespace "7" of "E" is not names joined by dots`},
		{"a primitive's name in a namespace", withFields(field("f", `{"type":"fixed","size":1,"name":"a.int"}`)), `the fixed has the name of a primitive type, "a.int"`},
		{"aliases are no list", withFields(`{"name":"f","type":"int","aliases":"g"}`), `field "f": aliases is not a list`},
		{"an alias is a number", withFields(`{"name":"f","type":"int","aliases":[7]}`), `field "f": the alias "7" is not a name`},
		{"an alias is no name", withFields(`{"name":"f","type":"int","aliases":["g-h"]}`), `field "f": the alias "g-h" is not a name`},
		{"an alias twice", withFields(`{"name":"f","type":"int","aliases":["g"]}`, `{"name":"h","type":"int","aliases":["g"]}`), `field "g": the record T has two fields`},
		{"an order that is none", withFields(`{"name":"f","type":"int","order":"bogus"}`), `order "bogus" is invalid`}, // the second reader's
		{"a long value", withFields(`{"name":"f","type":"int","aliases":["` + strings.Repeat("-", 65) + `"]}`), `the alias "` + strings.Repeat("-", 64) + `…" is not`},
		{"a default of code points", withFields(`{"name":"f","type":"bytes","default":"\u0100"}`), `field "f": the default does not fit the type: want bytes`},
		{"a default of a time as text", withFields(`{"name":"f","type":{"type":"long","logicalType":"timestamp-millis"},"default":"2026-01-01T00:00:00Z"}`), `the default does not fit the type: want long`},
	} {
		_, err := Parse([]byte(c.avsc))
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v; want an error with %q", c.name, err, c.want)
		}
	}
}

// TestSchemasAtTheirLimits has what just fits, and refuses one more of it.
func TestSchemasAtTheirLimits(t *testing.T) {
	times := func(n int, each string) string { return strings.Repeat(each, n) }
	list := func(n int, each string) string {
		all := make([]string, n)
		for i := range all {
			all[i] = strings.ReplaceAll(each, "#", fmt.Sprint(i))
		}
		return strings.Join(all, ",")
	}
	of := func(typ string) string { return withFields(`{"name":"f","type":` + typ + `}`) }
	record := func(n int) string {
		return `{"type":"record","name":"R","fields":[` + list(n, `{"name":"f#","type":"int"}`) + `]}`
	}
	for _, c := range []struct {
		name   string
		avsc   func(n int) string
		n      int // fits
		beyond string
	}{
		{"bytes of the text", func(n int) string { return withFields(`{"name":"f","type":"int"}`) + times(n, " ") }, maxSchemaBytes - len(of(`"int"`)), "more than 65536 bytes"},
		{"levels", func(n int) string { return of(times(n, `{"type":"array","items":`) + `"int"` + times(n, "}")) }, maxDepth - 2, "deeper than 32 levels"},
		{"levels of unions", func(n int) string { return of(times(n, `[{"type":"map","values":`) + `"int"` + times(n, "}]")) }, (maxDepth - 2) / 2, "deeper than 32 levels"},
		{"fields", func(n int) string { return withFields(list(n, `{"name":"f#","type":"int"}`)) }, maxFields - 4, "1025 fields; at most 1024"},
		{"fields written out", func(n int) string {
			return withFields(`{"name":"f","type":`+record(100)+`}`, list(9, `{"name":"g#","type":"R"}`), list(n, `{"name":"h#","type":"int"}`))
		}, maxFields - 4 - 1010, "has 1025 fields; at most 1024"},
		{"types written out", func(n int) string {
			return withFields(`{"name":"f","type":[`+list(100, `{"type":"fixed","size":1,"name":"F#"}`)+`]}`, list(80, `{"name":"g#","type":{"type":"array","items":[`+list(99, `"F#"`)+`]}}`), list(n, `{"name":"h#","type":"int"}`))
		}, maxNodes - 5 - 101 - 80*101, "has 8193 types within; at most 8192"},
		{"bytes of a name", func(n int) string { return withFields(`{"name":"` + times(n, "n") + `","type":"int"}`) }, maxNameBytes, "names are letters"},
		{"bytes of a full name", func(n int) string {
			return of(`{"type":"fixed","size":1,"namespace":"a","name":"` + times(n, "n") + `"}`)
		}, maxNameBytes - 2, "names are letters"},
		{"aliases", func(n int) string { return withFields(`{"name":"f","type":"int","aliases":[` + list(n, `"a#"`) + `]}`) }, maxAliases, "65 aliases; at most 64"},
		{"aliases of a type", func(n int) string {
			return of(`{"type":"fixed","size":1,"name":"F","aliases":[` + list(n, `"a#"`) + `]}`)
		}, maxAliases, "65 aliases; at most 64"},
		{"bytes of a fixed", func(n int) string { return of(fmt.Sprintf(`{"type":"fixed","size":%d,"name":"F"}`, n)) }, millrace.MaxBodyBytes, "from 0 to 1048576"},
		{"bytes of defaults", func(n int) string {
			def := `{"name":"g","type":{"type":"array","items":{"type":"fixed","size":1,"name":"F"}},"default":[`
			return withFields(`{"name":"f","type":{"type":"record","name":"R","fields":[{"name":"x","type":"string","default":"`+times(30_000, "x")+`"}]},"default":{}}`, // twice, 3 bytes and 30,000
				def+list(n, `"x"`)+`]}`)
		}, maxDefaultBytes - 2*30_003 - 3, "bytes encoded"},
	} {
		if _, err := Parse([]byte(c.avsc(c.n))); err != nil {
			t.Errorf("%s: %d do not fit: %v", c.name, c.n, err)
		}
		if _, err := Parse([]byte(c.avsc(c.n + 1))); err == nil || !strings.Contains(err.Error(), c.beyond) {
			t.Errorf("%s: %d: %.300v; want an error with %q", c.name, c.n+1, err, c.beyond)
		}
	}
}

// TestHostileSchemasCostLittle (P20): the largest schemas, right and wrong ones,
// take at most 64 MiB until they are admitted or refused.
func TestHostileSchemasCostLittle(t *testing.T) {
	many := func(each string) string {
		var all []string
		for i, n := 0, 0; n < 59_000; i++ {
			all = append(all, strings.ReplaceAll(each, "#", fmt.Sprint(i)))
			n += len(all[i]) + 1
		}
		return strings.Join(all, ",")
	}
	of := func(typ string) string { return withFields(`{"name":"f","type":` + typ + `}`) }
	for name, avsc := range map[string]string{
		"lists":    of(`[` + many(`[]`) + `]`),
		"branches": of(`[` + many(`{"type":"fixed","name":"e#","size":1}`) + `]`),
		"symbols":  of(`{"type":"enum","name":"E","symbols":[` + many(`"s#"`) + `]}`),
		"objects":  withFields(`{"name":"f","type":"int","x":[` + many(`{}`) + `]}`),
		"fields":   withFields(many(`{}`)),
		"arrays":   withFields(many(`{"name":"x#","type":{"type":"array","items":"int"},"default":[]}`)),
		"default":  withFields(`{"name":"f","type":{"type":"array","items":"int"},"default":[` + many("1") + `]}`),
		"aliases":  withFields(`{"name":"f","type":"int","aliases":[` + many(`"a#"`) + `]}`),
		"twice":    withFields(`{"name":"f","type":"int","x":{` + many(`"a":1`) + `}}`),
	} {
		if len(avsc) > maxSchemaBytes {
			t.Fatalf("%s: %d bytes are refused by their size", name, len(avsc))
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := Parse([]byte(avsc))
		runtime.ReadMemStats(&after)
		t.Logf("%s: %d KiB, %.100v", name, (after.TotalAlloc-before.TotalAlloc)>>10, err)
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("%s: allocated %d MiB", name, took>>20)
		}
	}
}

// TestManyReferences parses the largest enum and refers to it as often as
// allowed: what a reference costs must not depend on what it refers to.
func TestManyReferences(t *testing.T) {
	var symbols, fields []string
	for i := range 7000 {
		symbols = append(symbols, fmt.Sprintf(`"S%d"`, i))
	}
	fields = append(fields, `{"name":"e0","type":{"type":"enum","name":"E","symbols":[`+strings.Join(symbols, ",")+`]}}`)
	for i := range 200 {
		fields = append(fields, fmt.Sprintf(`{"name":"e%d","type":"E"}`, i+1))
	}
	s := mustSchema(t, withFields(fields...))
	symbolsOf := map[*[]byte]bool{}
	for _, step := range s.envelope {
		if step.op == opEnum {
			symbolsOf[&step.syms[0]] = true
		}
	}
	if len(symbolsOf) != 1 {
		t.Errorf("201 references to an enum made %d copies of its symbols", len(symbolsOf))
	}
}

func TestEveryFaultAtOnce(t *testing.T) {
	_, err := Parse([]byte(withFields(
		`{"name":"a","type":"strin"}`, `{"name":"b","type":"int","default":"x"}`, `{"name":"c","type":{"type":"fixed","name":"E","size":-1}}`,
		`{"name":"d","type":"string","millrace":"id"}`, `{"name":"e","type":{"type":"enum","name":7,"symbols":["A"]}}`, `{"name":"f","type":{"type":"enum","symbols":["A"]}}`,
		`{"name":"g","type":{"type":"enum","name":"A-B","symbols":["A","A","B-C"]}}`, `{"name":"h","type":{"type":"enum","name":"A-C","symbols":["A"]}}`, `{"name":"i","type":{"type":"enum","name":"int","symbols":["A"]}}`,
		`{"name":"j","type":{"type":"enum","name":"J","namespace":"-","symbols":["A"]}}`, `{"name":"k","type":{"type":"enum","name":"K","namespace":"-","symbols":["A"]}}`, `{"name":"l","type":{"type":"enum","name":"long","symbols":["A"]}}`,
		`{"name":"m","type":["null","strin",["int"],"null","int",["long"]]}`, `{"name":"n","type":"string","millrace":"rank"}`)))
	want := `schemas: field "a": unknown type "strin"; define it before it is used
schemas: field "b": the default does not fit the type: want int, got "x"
schemas: field "c": the fixed E has the size -1; it is a whole number from 0 to 1048576
schemas: field "e": the enum has no name
schemas: field "f": the enum has no name
schemas: field "g": the enum has the name "A-B"; names are letters, digits and _, not starting with a digit
schemas: field "h": the enum has the name "A-C"; names are letters, digits and _, not starting with a digit
schemas: field "i": the enum has the name of a primitive type, "int"
schemas: field "j": the namespace "-" of "J" is not names joined by dots
schemas: field "k": the namespace "-" of "K" is not names joined by dots
schemas: field "l": the enum has the name of a primitive type, "long"
schemas: field "m": unknown type "strin"; define it before it is used
schemas: field "m": a union stands directly in a union
schemas: field "m": the union has null twice
schemas: field "m": a union stands directly in a union
schemas: field "d": field "id" has the role "id" already
schemas: field "n": record schemas have no role "rank"; they have id, entity, about, type, time, version, object and deleted`
	if err == nil || err.Error() != want {
		t.Errorf("got\n%v\nwant\n%s", err, want)
	}
	// A name may be its own alias, and an alias may be said twice.
	mustSchema(t, withFields(`{"name":"f","type":"int","aliases":["f","g","g"]}`))
}

// A fault ends a body at once, however many items are left by what it says.
func TestFaultEndsTheBody(t *testing.T) {
	s := mustSchema(t, withFields(`{"name":"f","type":{"type":"array","items":{"type":"record","name":"R","fields":[{"name":"x","type":{"type":"fixed","name":"F","size":1000000}}]}}}`))
	body := bodyOf(bytes.Repeat(long(300_000), 300_000)...) // blocks of so many items, none of which it has
	for _, names := range [][]string{nil, {"id"}, {"f"}} {
		_, err := s.AppendStruct(nil, body, s.Select(names))
		checkReason(t, fmt.Sprint(names), err, Truncated)
	}
}

// bodyOf builds a body of withFields' roles and then rest.
func bodyOf(rest ...byte) []byte {
	e := encoder{}
	e.bytes("i1")
	e.bytes("member:1")
	e.bytes("post")
	e.long(1767323045678)
	return append(e.buf, rest...)
}

func long(x int64) []byte { return binary.AppendVarint(nil, x) }

func cat(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

// TestHostileBodies has the bodies that must be refused, each with its reason.
func TestHostileBodies(t *testing.T) {
	nan := binary.LittleEndian.AppendUint64(nil, math.Float64bits(math.NaN()))
	inf := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(math.Inf(-1))))
	const ints = `{"type":"array","items":"int"}`
	const mapping = `{"type":"map","values":"int"}`
	const enum = `{"type":"enum","name":"E","symbols":["A","B"]}`
	for _, c := range []struct {
		name, typ string
		rest      []byte
		want      Reason
	}{
		{"good", `"int"`, long(7), ""},
		{"nothing", `"int"`, nil, Truncated},
		{"trailing byte", `"int"`, []byte{2, 0}, TrailingBytes},
		{"overlong varint", `"int"`, []byte{0x82, 0x00}, BadVarint},
		{"endless varint", `"long"`, bytes.Repeat([]byte{0x80}, 11), BadVarint},
		{"varint of 65 bits", `"long"`, append(bytes.Repeat([]byte{0xff}, 9), 2), BadVarint},
		{"largest long", `"long"`, append(bytes.Repeat([]byte{0xff}, 9), 1), ""},
		{"int overflow", `"int"`, long(1 << 31), BadVarint},
		{"boolean 2", `"boolean"`, []byte{2}, BadBoolean},
		{"double NaN", `"double"`, nan, NotFinite},
		{"float -Inf", `"float"`, inf, NotFinite},
		{"NaN in a list", `{"type":"array","items":"double"}`, cat(long(1), nan, long(0)), NotFinite},
		{"count 2^40", ints, long(1 << 40), BadCount},
		{"count beyond the body", ints, long(1000), Truncated},
		{"count minInt64", ints, cat(long(math.MinInt64), long(1)), BadCount},
		{"two counts that overflow", ints, cat(long(math.MaxInt64), long(math.MaxInt64)), BadCount},
		{"count after a block", ints, cat(long(1), long(5), long(1<<62)), BadCount},
		{"negative count, right size", ints, cat(long(-2), long(2), long(5), long(6), long(0)), ""},
		{"negative count, wrong size", ints, cat(long(-2), long(1), long(5), long(6), long(0)), BadCount},
		{"negative count, size -1", ints, cat(long(-2), long(-1), long(5), long(6), long(0)), BadCount},
		{"bytes of 2^61", `"bytes"`, long(1 << 61), BadCount},
		{"bytes of 2^20", `"bytes"`, long(1 << 20), Truncated},
		{"bytes of 2^20+1", `"bytes"`, long(1<<20 + 1), BadCount},
		{"string of -1", `"string"`, long(-1), BadCount},
		{"string not UTF-8", `"string"`, cat(long(1), []byte{0xff}), InvalidUTF8},
		{"map key not UTF-8", mapping, cat(long(1), long(1), []byte{0xff}, long(1), long(0)), InvalidUTF8},
		{"map key twice", mapping, cat(long(2), long(1), []byte("k"), long(1), long(1), []byte("k"), long(2), long(0)), DuplicateMapKey},
		{"map key twice in two blocks", mapping, cat(long(1), long(1), []byte("k"), long(1), long(1), long(1), []byte("k"), long(2), long(0)), DuplicateMapKey},
		{"union -1", `["null","int"]`, long(-1), BadUnionIndex},
		{"union 99", `["null","int"]`, long(99), BadUnionIndex},
		{"enum -1", enum, long(-1), BadEnumIndex},
		{"enum 2", enum, long(2), BadEnumIndex},
	} {
		s := mustSchema(t, withFields(`{"name":"f","type":`+c.typ+`}`))
		body := bodyOf(c.rest...)
		_, err := s.Envelope(body)
		checkReason(t, c.name, err, c.want)
		if c.want != "" && c.want != TrailingBytes {
			if e := (*Error)(nil); !errors.As(err, &e) || !strings.HasPrefix(e.Field, "f") {
				t.Errorf("%s: the error does not name the field f: %v", c.name, err)
			}
		}
		d, err := NewDecoder(s, s)
		if err != nil {
			t.Fatal(err)
		}
		a := column.New(s.Layout(), 1, 0).Append()
		checkReason(t, c.name+" (columns)", d.Append(a, body), c.want)
		if rows := a.Slab().Len(); (rows == 1) != (c.want == "") {
			t.Errorf("%s: %d rows", c.name, rows)
		}
		_, err = s.JSONValue(body)
		checkReason(t, c.name+" (JSON)", err, c.want)
		checkReason(t, c.name+" (checked)", s.Check(body), c.want)
		checkStruct(t, s, body)
	}
}

// TestLargestBody: a body may have so many bytes, and not one more.
func TestLargestBody(t *testing.T) {
	s := mustSchema(t, withFields(`{"name":"f","type":"null"}`, `{"name":"g","type":{"type":"array","items":"string"}}`))
	for more, want := range map[int]Reason{0: "", 1: OverLimit} {
		text := bytes.Repeat([]byte("x"), millrace.MaxBodyBytes-len(bodyOf())-5+more)
		body := bodyOf(cat(long(1), long(int64(len(text))), text, long(0))...)
		_, err := s.Envelope(body)
		checkReason(t, "largest", err, want)
		checkReason(t, "largest (checked)", s.Check(body), want)
		_, err = s.JSONValue(body)
		checkReason(t, "largest (JSON)", err, want)
	}
	for e, want := range map[*Error]string{
		{Reason: BadCount, Detail: "why"}: "schemas: bad-count: why", {Reason: BadCount, Field: "f", Detail: "why"}: `schemas: field "f": bad-count: why`,
	} {
		if e.Error() != want {
			t.Errorf("%q, want %q", e, want)
		}
	}
}

func checkReason(t *testing.T, name string, err error, want Reason) {
	t.Helper()
	e := (*Error)(nil)
	if want == "" && err == nil || errors.As(err, &e) && e.Reason == want {
		return
	}
	t.Errorf("%s: got %v, want reason %q", name, err, want)
}

// TestHostileRoles has the bodies whose roles say what no record may.
func TestHostileRoles(t *testing.T) {
	line := func(change ...string) []byte {
		return []byte(strings.NewReplacer(change...).Replace(`{"id":"a1","actor":"m:1","verb":"post","created_at":1767323045678,"about":["m:2"]}`))
	}
	long := strings.Repeat("x", 513)
	about := `["` + strings.Repeat(`e","`, millrace.MaxAbout) + `e"]`
	for _, c := range []struct {
		name  string
		line  []byte
		want  Reason
		field string
	}{
		{"good", line(), "", ""},
		{"empty id", line(`"a1"`, `""`), MissingRole, "id"},
		{"empty entity", line(`"m:1"`, `""`), MissingRole, "actor"},
		{"empty type", line(`"post"`, `""`), MissingRole, "verb"},
		{"empty about", line(`"m:2"`, `""`), MissingRole, "about[0]"},
		{"long id", line(`a1`, long), OverLimit, "id"},
		{"long entity", line(`m:1`, long), OverLimit, "actor"},
		{"long type", line(`post`, long[:65]), OverLimit, "verb"},
		{"NUL in the type", line(`post`, `\u0000`), BadValue, "verb"},
		{"long object", line(`"about"`, `"object":"`+long+`","about"`), OverLimit, "object"},
		{"long about", line(`m:2`, long), OverLimit, "about[0]"},
		{"much about", line(`["m:2"]`, about), OverLimit, "about"},
		{"time before 1970", line(`1767323045678`, `-1`), TimeOutOfRange, "created_at"},
		{"time in microseconds", line(`1767323045678`, `1767323045678000`), TimeOutOfRange, "created_at"},
		{"year 10000", line(`1767323045678`, `253402300800000`), TimeOutOfRange, "created_at"},
		{"large body", line(`"about"`, `"text":"`+strings.Repeat("x", 1<<20)+`","about"`), OverLimit, "text"},
	} {
		_, err := Activity().EncodeJSON(c.line)
		checkReason(t, c.name, err, c.want)
		if e := (*Error)(nil); errors.As(err, &e) && e.Field != c.field {
			t.Errorf("%s: the error names the field %q, want %q", c.name, e.Field, c.field)
		}
	}
}

func TestHostileLines(t *testing.T) {
	good := `{"id":"n","author":"m:1","kind":"post","at":"2026-01-02T03:04:05Z"`
	for _, c := range []struct {
		line  string
		want  Reason
		field string
	}{
		{good + `}`, "", ""},
		{good + `,"stars":"3"}`, "", ""},
		{``, BadJSON, ""},
		{`[]`, BadValue, ""},
		{good, BadJSON, ""},
		{good + `}{}`, BadJSON, ""},
		{good + `,"id":"m"}`, BadJSON, ""},
		{good + ",\"text\":\"\xff\"}", BadJSON, ""},
		{good + `,"starts":3}`, UnknownField, "starts"},
		{good + `,"stars":3.5}`, BadValue, "stars"},
		{good + `,"stars":2147483648}`, BadValue, "stars"},
		{good + `,"stars":null}`, BadValue, "stars"},
		{good + `,"text":7}`, BadValue, "text"},
		{strings.Replace(good, "2026-01-02T", "2026-01-02 ", 1) + `}`, BadValue, "at"},
		{`{"id":"n"}`, MissingField, "author"},
	} {
		_, err := Note().EncodeJSON([]byte(c.line))
		checkReason(t, c.line, err, c.want)
		if e := (*Error)(nil); errors.As(err, &e) && e.Field != c.field {
			t.Errorf("%s: the error names the field %q, want %q", c.line, e.Field, c.field)
		}
	}
}

func TestFrame(t *testing.T) {
	fp := Note().Fingerprint()
	f, err := Unframe(Frame(fp, []byte("body")))
	if err != nil || f.Confluent || f.Fingerprint != fp || string(f.Body) != "body" {
		t.Errorf("%+v, %v", f, err)
	}
	f, err = Unframe([]byte("\x00\x00\x00\x01\x02body"))
	if err != nil || !f.Confluent || f.ID != 258 || string(f.Body) != "body" {
		t.Errorf("%+v, %v", f, err)
	}
	for value, want := range map[string]Reason{
		"": EmptyValue, "\xc3": BadFraming, "\xc3\x02": BadFraming, "{}": BadFraming, "\x00\x00\x00\x01": Truncated,
		"\xc3\x01\x00\x00\x00\x00\x00\x00\x00": Truncated,
	} {
		_, err := Unframe([]byte(value))
		checkReason(t, fmt.Sprintf("%x", value), err, want)
	}
}
