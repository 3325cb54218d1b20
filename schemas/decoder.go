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

// Decoder decodes bodies of one schema into rows of another's layout, or of its
// family's. It may be used by several goroutines at once.
type Decoder struct {
	plan         plan
	writer       int64 // fingerprint
	layout       *column.Layout
	body, schema int // columns
	// generated does what plan does, only faster, or returns false and leaves
	// the body to it; nil without generated code.
	generated func(a *column.Appender, body []byte) bool
}

// NewDecoder returns the decoder of bodies written under writer into rows laid
// out by reader, after Avro's rules of resolution: a field that the writer
// lacks has the reader's default, one that the reader lacks is dropped, one
// renamed is found by alias, and numbers are promoted. What serves reads every
// schema of a name by one layout, through [Snapshot.Decoder].
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

// newDecoder returns the decoder that runs p, or the generated code for the
// writer's own columns where these are those of layout.
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

// Step is one operation of the decoder from a schema to itself: what a
// generator of decoders needs to know. Steps follow the body, the fields of
// nested records in one row.
type Step struct {
	Op      string   // "boolean", "int", "long", "time", "float", "double", "bytes", "string", "fixed", "enum", "array", "map", "union" or "null"
	Field   string   // dotted path
	Column  int      // where the value goes, or -1
	Size    int      // bytes of a fixed
	Symbols []string // of an enum
	Subs    [][]Step // of the items, or of each branch
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

// Shape identifies what a decoder from s to itself does: the canonical form,
// and the columns with their kinds and roles. Generated decoders are found by
// it; a fingerprint of 64 bits alone could be met on purpose.
func (s *Schema) Shape() string {
	h := sha256.New()
	fmt.Fprintln(h, s.canonical)
	for _, f := range s.layout.Fields() {
		fmt.Fprintf(h, "%q %d %t %q\n", f.Name, f.Kind, f.Nullable, f.Role)
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
