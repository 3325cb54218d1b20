package schemas

import "github.com/millrace/millrace/internal/column"

// Decoder decodes bodies of one schema into rows of another's layout. It may
// be used by several goroutines at once.
type Decoder struct {
	plan         plan
	writer       int64 // fingerprint
	layout       *column.Layout
	body, schema int // columns
}

// NewDecoder returns the decoder of bodies written under writer into rows laid
// out by reader, after Avro's rules of resolution: a field that the writer
// lacks has the reader's default, one that the reader lacks is dropped, one
// renamed is found by alias, and numbers are promoted.
func NewDecoder(writer, reader *Schema) (*Decoder, error) {
	c := newCompiler()
	c.layout = reader.layout
	p, err := c.resolve(nil, writer.root, reader.root, "")
	if err != nil {
		return nil, err
	}
	return &Decoder{
		plan: p, writer: int64(writer.fingerprint), layout: reader.layout,
		body: reader.layout.Index(BodyColumn), schema: reader.layout.Index(SchemaColumn),
	}, nil
}

// Append decodes body strictly into a new row of a, $body and $schema
// included. The error is an [*Error], or [column.ErrFull]; no row is then
// added, though the heap may have grown.
func (d *Decoder) Append(a *column.Appender, body []byte) error {
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
