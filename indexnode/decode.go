package indexnode

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/schemas"
)

// decode turns records, newest first, into slabs, oldest first, one a record
// schema under its latest version.
func (n *Node) decode(records []millrace.Record) ([]*column.Slab, error) {
	known := n.schemas.Snapshot()
	var (
		readers   []*schemas.Schema
		rows      []*column.Appender
		heapBytes int
	)
	for i := range records {
		heapBytes += len(records[i].Body)
	}
	for _, r := range slices.Backward(records) {
		reader := latest(known, r.Schema)
		if reader == nil {
			return nil, fmt.Errorf("record %s has the unknown schema %s", r.ID, r.Schema)
		}
		i := slices.Index(readers, reader)
		if i < 0 {
			i = len(readers)
			readers = append(readers, reader)
			rows = append(rows, column.New(reader.Layout(), len(records), heapBytes).Append())
		}
		if err := n.append(rows[i], reader, r); err != nil {
			return nil, err
		}
	}
	slabs := make([]*column.Slab, len(rows))
	for i, a := range rows {
		slabs[i] = a.Slab()
	}
	return slabs, nil
}

func (n *Node) append(a *column.Appender, reader *schemas.Schema, r millrace.Record) error {
	d, err := n.schemas.Decoder(r.Schema, reader)
	if err != nil {
		return fmt.Errorf("record %s: %w", r.ID, err)
	}
	if err := d.Append(a, r.Body); err != nil {
		return fmt.Errorf("record %s: %w", r.ID, err)
	}
	return nil
}

// latest returns the newest version of the schema that wrote a body, or nil if
// nobody knows the writer's.
func latest(known *schemas.Snapshot, writer millrace.Fingerprint) *schemas.Schema {
	if s := known.ByFingerprint(writer); s != nil {
		return known.Latest(s.Name())
	}
	return nil
}
