package schemas

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/hamba/avro/v2"
	"github.com/hamba/avro/v2/pkg/crc64"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas/internal/jsontext"
)

// kind is one of Avro's types.
type kind uint8

const (
	kindNull kind = iota + 1
	kindBoolean
	kindInt
	kindLong
	kindFloat
	kindDouble
	kindBytes
	kindString
	kindRecord
	kindEnum
	kindFixed
	kindArray
	kindMap
	kindUnion
)

var kindNames = [...]string{
	kindNull: "null", kindBoolean: "boolean", kindInt: "int", kindLong: "long", kindFloat: "float",
	kindDouble: "double", kindBytes: "bytes", kindString: "string", kindRecord: "record",
	kindEnum: "enum", kindFixed: "fixed", kindArray: "array", kindMap: "map", kindUnion: "union",
}

func (k kind) String() string { return kindNames[k] }

var primitives = map[string]kind{
	"null": kindNull, "boolean": kindBoolean, "int": kindInt, "long": kindLong, "float": kindFloat,
	"double": kindDouble, "bytes": kindBytes, "string": kindString,
}

// node is a type of a schema. Nodes of named types are shared by every
// reference to them; there are no cycles.
type node struct {
	kind     kind
	name     string         // full name of a record, enum or fixed
	aliases  []string       // full names
	logical  string         // a logical type of logicals; empty: none
	fields   []field        // of a record
	byName   map[string]int // the fields of a record, by their names
	symbols  []string       // of an enum
	fallback int            // an enum's default symbol, or -1
	size     int            // bytes of a fixed
	items    *node          // of an array; the values of a map
	branches []*node        // of a union

	// Measures of the type when every reference is replaced by the type that it
	// refers to. They bound the work that any use of the schema does.
	nodes     int // types
	allFields int // fields of records
	depth     int // levels
	minBytes  int // of a value
}

// field is a field of a record.
type field struct {
	name       string
	aliases    []string
	typ        *node
	role       string // the property millrace; empty: none
	hasDefault bool
	def        []byte // the default, encoded as Avro
}

// children returns the types directly within a type.
func (n *node) children() []*node {
	switch n.kind {
	case kindArray, kindMap:
		return []*node{n.items}
	case kindUnion:
		return n.branches
	case kindRecord:
		cs := make([]*node, len(n.fields))
		for i := range n.fields {
			cs[i] = n.fields[i].typ
		}
		return cs
	}
	return nil
}

// width returns how many bytes every value of a type takes. It returns 0 if values differ
// in that, and for null.
func (n *node) width() int {
	switch n.kind {
	case kindBoolean:
		return 1
	case kindFloat:
		return 4
	case kindDouble:
		return 8
	case kindFixed:
		return n.size
	}
	return 0
}

// measure sets a node's measures from those of its children.
func (n *node) measure() {
	n.nodes, n.allFields, n.depth = 1, len(n.fields), 1
	for _, c := range n.children() {
		n.nodes += c.nodes
		n.allFields += c.allFields
		n.depth = max(n.depth, c.depth+1)
	}
	switch n.kind {
	case kindNull:
	case kindFloat:
		n.minBytes = 4
	case kindDouble:
		n.minBytes = 8
	case kindFixed:
		n.minBytes = n.size
	case kindRecord:
		n.byName = make(map[string]int, len(n.fields))
		for i := range n.fields {
			n.minBytes += n.fields[i].typ.minBytes
			n.byName[n.fields[i].name] = i
		}
	default:
		n.minBytes = 1
	}
}

// nullable returns T and true for a union of null and one T, in either order.
func (n *node) nullable() (*node, bool) {
	if n.kind != kindUnion || len(n.branches) != 2 {
		return nil, false
	}
	switch kindNull {
	case n.branches[0].kind:
		return n.branches[1], true
	case n.branches[1].kind:
		return n.branches[0], true
	}
	return nil, false
}

// what returns a type in words, for messages.
func (n *node) what() string {
	switch {
	case n.name != "":
		return n.kind.String() + " " + n.name
	case n.logical != "":
		return n.kind.String() + " (" + n.logical + ")"
	case n.kind == kindArray, n.kind == kindMap:
		return n.kind.String() + " of " + n.items.what()
	case n.kind == kindUnion:
		parts := make([]string, len(n.branches))
		for i, b := range n.branches {
			parts[i] = b.what()
		}
		return "union of " + strings.Join(parts, ", ")
	}
	return n.kind.String()
}

// join returns the path of a field within the record at path.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// shortName returns a full name without its namespace.
func shortName(full string) string { return full[strings.LastIndexByte(full, '.')+1:] }

// canonicalForm returns a type's Parsing Canonical Form (Avro specification,
// "Transforming into Parsing Canonical Form"). The library's own rendering is
// not it: that keeps logical types, and so fingerprints differently than every
// other implementation.
func canonicalForm(n *node) string {
	c := canonical{defined: map[string]bool{}}
	c.typ(n)
	return c.String()
}

// canonical writes canonical forms.
type canonical struct {
	strings.Builder
	defined map[string]bool
}

func (c *canonical) typ(n *node) {
	switch n.kind {
	case kindArray:
		c.WriteString(`{"type":"array","items":`)
		c.typ(n.items)
		c.WriteByte('}')
	case kindMap:
		c.WriteString(`{"type":"map","values":`)
		c.typ(n.items)
		c.WriteByte('}')
	case kindUnion:
		c.list(len(n.branches), func(i int) { c.typ(n.branches[i]) })
	case kindRecord, kindEnum, kindFixed:
		c.named(n)
	default:
		c.WriteString(strconv.Quote(n.kind.String()))
	}
}

// named writes a type's definition the first time, and only its name after that. Names
// are letters, digits, _ and dots, so that Go quotes them as JSON does.
func (c *canonical) named(n *node) {
	if c.defined[n.name] {
		c.WriteString(strconv.Quote(n.name))
		return
	}
	c.defined[n.name] = true
	fmt.Fprintf(c, `{"name":%q,"type":%q,`, n.name, n.kind)
	switch n.kind {
	case kindEnum:
		c.WriteString(`"symbols":`)
		c.list(len(n.symbols), func(i int) { c.WriteString(strconv.Quote(n.symbols[i])) })
	case kindFixed:
		fmt.Fprintf(c, `"size":%d`, n.size)
	case kindRecord:
		c.WriteString(`"fields":`)
		c.list(len(n.fields), func(i int) {
			fmt.Fprintf(c, `{"name":%q,"type":`, n.fields[i].name)
			c.typ(n.fields[i].typ)
			c.WriteByte('}')
		})
	}
	c.WriteByte('}')
}

func (c *canonical) list(n int, item func(int)) {
	c.WriteByte('[')
	for i := range n {
		if i > 0 {
			c.WriteByte(',')
		}
		item(i)
	}
	c.WriteByte(']')
}

// fingerprint returns the CRC-64-AVRO of a canonical form.
func fingerprint(canonical string) millrace.Fingerprint {
	h := crc64.New()
	h.Write([]byte(canonical)) // never fails
	return millrace.Fingerprint(h.Sum64())
}

// secondReader returns an error for a schema that the Avro library does not parse, so
// that other readers accept the schemas that are admitted here. Each schema gets a cache
// of its own, since the library's global one would carry names from one schema into the
// next. The library does not see the defaults of fields: for a union it would accept only
// defaults of the first branch, as Avro did until 1.11.
func secondReader(avsc []byte) error {
	text, err := jsontext.Value(avsc)
	if err != nil {
		return fmt.Errorf("schemas: %w", err)
	}
	dropDefaults(text)
	bare, err := json.Marshal(text)
	if err != nil {
		return fmt.Errorf("schemas: %w", err)
	}
	if _, err := avro.ParseBytesWithCache(bare, "", &avro.SchemaCache{}); err != nil {
		return fmt.Errorf("schemas: %w", err)
	}
	return nil
}

// dropDefaults removes the defaults of fields from the JSON of a schema.
func dropDefaults(v any) {
	switch v := v.(type) {
	case []any:
		for _, x := range v {
			dropDefaults(x)
		}
	case map[string]any:
		fields, _ := v["fields"].([]any)
		for _, f := range fields {
			if f, ok := f.(map[string]any); ok {
				delete(f, "default")
				dropDefaults(f["type"])
			}
		}
		for _, attr := range []string{"type", "items", "values"} {
			dropDefaults(v[attr])
		}
	}
}
