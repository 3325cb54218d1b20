package schemas

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	_ "github.com/millrace/millrace/schemas/decoders" // of the shipped schemas
)

// Decoder decodes bodies of one schema into rows of the layout of another schema, or of
// its family. It is safe for concurrent use.
type Decoder struct {
	plan         plan
	writer       int64          // the fingerprint of the bodies' schema
	layout       *column.Layout // of the rows
	body, schema int            // the indexes of the columns $body and $schema
	// generated does what plan does, only faster. If it returns false it has added no
	// row, and the plan decodes the body. It is nil if there is no generated code.
	generated func(a *column.Appender, body []byte) bool
}

// NewDecoder returns the decoder of bodies written under writer into rows laid
// out by reader, after Avro's rules of resolution: a field that the writer
// lacks has the reader's default, one that the reader lacks is dropped, one
// renamed is found by alias, and numbers are promoted. It fails if the two schemas
// do not resolve. Index nodes use [Family.Decoder] instead, which reads all schemas
// of a name into one layout.
func NewDecoder(writer, reader *Schema) (*Decoder, error) {
	c := newCompiler()
	c.layout = reader.layout
	p, err := c.resolve(nil, writer.root, reader.root, "")
	if err != nil {
		return nil, err
	}
	d := newDecoder(writer, reader.layout, p)
	if reader.Shape() != writer.Shape() {
		d.generated = nil
	}
	return d, nil
}

// newDecoder returns the decoder that runs p. If layout has the writer's own columns it
// uses the writer's generated code, if there is any.
func newDecoder(writer *Schema, layout *column.Layout, p plan) *Decoder {
	d := &Decoder{
		plan: p, writer: int64(writer.fingerprint), layout: layout,
		body: layout.Index(BodyColumn), schema: layout.Index(SchemaColumn),
	}
	if slices.Equal(writer.layout.Fields(), layout.Fields()) {
		d.generated = compute.FindDecoder(writer.Shape())
	}
	return d
}

// Layout returns the columns of the rows.
func (d *Decoder) Layout() *column.Layout { return d.layout }

// Append decodes body strictly into a new row of a, $body and $schema
// included. The error is an [*Error], or [column.ErrFull]; no row is then
// added, though the heap may have grown.
func (d *Decoder) Append(a *column.Appender, body []byte) error {
	if d.generated != nil && d.generated(a, body) {
		return nil
	}
	m := machine{input: input{b: body}, row: a.Begin()}
	m.base = m.row.Heap(body)
	err := m.whole(d.plan)
	m.release()
	if err != nil {
		return err
	}
	m.row.SetHeapString(d.body, body, m.base)
	m.row.SetInt(d.schema, d.writer)
	return a.End(m.row)
}

// Step is one operation of the decoder from a schema to itself, for a
// generator of decoders. Steps are in the order of the body; the fields of nested
// records stand among the others.
type Step struct {
	Op      string   // "boolean", "int", "long", "time", "float", "double", "bytes", "string", "fixed", "enum", "array", "map", "union" or "null"
	Field   string   // dotted path
	Column  int      // where the value goes, or -1
	Size    int      // bytes of a fixed
	Symbols []string // of an enum
	Subs    [][]Step // for the items of an array or map, or for each branch of a union
}

var opNames = map[op]string{
	opBoolean: "boolean", opInt: "int", opLong: "long", opTime: "time", opFloat: "float", opDouble: "double", opBytes: "bytes",
	opString: "string", opFixed: "fixed", opEnum: "enum", opArray: "array", opMap: "map", opUnion: "union", opNull: "null",
}

// Steps returns how bodies of s are decoded into its own layout.
func (s *Schema) Steps() ([]Step, error) {
	d, err := NewDecoder(s, s)
	if err != nil {
		return nil, err
	}
	return exported(d.plan), nil
}

func exported(p plan) []Step {
	var steps []Step
	for i := range p {
		s := &p[i]
		x := Step{Op: opNames[s.op], Field: s.path, Column: -1, Size: s.n}
		if s.put != putNothing || s.op == opNull {
			x.Column = s.at
		}
		for _, symbol := range s.syms {
			x.Symbols = append(x.Symbols, string(symbol))
		}
		for _, sub := range s.subs {
			x.Subs = append(x.Subs, exported(sub))
		}
		steps = append(steps, x)
	}
	return steps
}

// Shape returns a hash, in hex, of all that a decoder from s to itself depends on: the
// canonical form, and the columns with their kinds and roles. Generated decoders are found
// by it. A fingerprint has 64 bits, so that somebody could make a schema with the
// fingerprint of another.
func (s *Schema) Shape() string {
	h := sha256.New()
	fmt.Fprintln(h, s.canonical)
	for _, f := range s.layout.Fields() {
		fmt.Fprintf(h, "%q %d %t %q\n", f.Name, f.Kind, f.Nullable, f.Role)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}

// layoutOf returns the layout of a schema's outermost record.
func layoutOf(root *node) (*column.Layout, error) {
	fields := flatten(nil, root, "", false)
	for i := range fields {
		for j := range root.fields {
			if root.fields[j].name == fields[i].Name {
				fields[i].Role = root.fields[j].role
			}
		}
	}
	fields = append(fields,
		column.Field{Name: BodyColumn, Kind: column.String},
		column.Field{Name: SchemaColumn, Kind: column.Int})
	l, err := column.NewLayout(fields)
	if err != nil {
		return nil, err
	}
	blank, err := blankOf(root, l)
	if err != nil {
		return nil, err
	}
	l.Describe(blank, carried(map[string]string{}, root, "", l))
	return l, nil
}

// blankOf returns a slab of one row that has the default of every field.
func blankOf(root *node, l *column.Layout) (*column.Slab, error) {
	c := newCompiler()
	c.layout = l
	p, err := c.defaults(nil, root, "")
	if err != nil {
		return nil, err
	}
	a := column.New(l, 1, 0).Append()
	m := machine{row: a.Begin()}
	m.run(p)
	m.release()
	if err := a.End(m.row); err != nil {
		return nil, err
	}
	return a.Slab(), nil
}

// defaults appends the steps that put the defaults of a record's fields.
func (c *compiler) defaults(p plan, n *node, path string) (_ plan, err error) {
	for i := range n.fields {
		f, at := &n.fields[i], join(path, n.fields[i].name)
		switch {
		case f.hasDefault:
			p, err = c.missing(p, f, at)
		case f.typ.kind == kindRecord:
			p, err = c.defaults(p, f.typ, at)
		}
		if err != nil {
			return nil, err
		}
	}
	return p, nil
}

// carried adds to types the fields without a column, by path, and their types in words.
func carried(types map[string]string, n *node, path string, l *column.Layout) map[string]string {
	for i := range n.fields {
		at, t := join(path, n.fields[i].name), n.fields[i].typ
		if one, ok := t.nullable(); ok {
			t = one
		}
		switch {
		case t.kind == kindRecord:
			carried(types, t, at, l)
		case l.Index(at) < 0:
			types[at] = t.what()
		}
	}
	return types
}

// flatten appends the columns of the type at path. Below a nullable record
// every column is nullable.
func flatten(fields []column.Field, n *node, path string, nullable bool) []column.Field {
	if n.kind == kindUnion {
		t, ok := n.nullable()
		if !ok {
			return fields
		}
		n, nullable = t, true
	}
	if n.kind == kindRecord {
		for i := range n.fields {
			fields = flatten(fields, n.fields[i].typ, join(path, n.fields[i].name), nullable)
		}
		return fields
	}
	if k := columnKind(n); k != 0 {
		fields = append(fields, column.Field{Name: path, Kind: k, Nullable: nullable})
	}
	return fields
}

// columnKind returns the kind of a type's column, or 0 when it has none.
func columnKind(n *node) column.Kind {
	switch n.kind {
	case kindBoolean:
		return column.Bool
	case kindInt, kindLong:
		if n.logical == "timestamp-millis" {
			return column.Time
		}
		return column.Int
	case kindFloat, kindDouble:
		return column.Double
	case kindString, kindEnum:
		return column.String
	case kindArray:
		switch n.items.kind {
		case kindInt, kindLong, kindFloat, kindDouble:
			return column.Doubles
		case kindString, kindEnum:
			return column.Strings
		}
	}
	return 0
}
