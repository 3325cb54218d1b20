package lookup

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/schemas/registry"
)

// Slabs decodes records, which come newest first, into slabs: columns in memory, with rows
// oldest first. There is one slab for each family of schemas (schemas of one name, which
// share a layout). It fails if a record has an unknown schema.
func Slabs(known *registry.Snapshot, records []millrace.Record) ([]*column.Slab, error) {
	var (
		layouts   []*column.Layout
		rows      []*column.Appender
		heapBytes int
	)
	for i := range records {
		heapBytes += len(records[i].Body)
	}
	for _, r := range slices.Backward(records) {
		d := known.Decoder(r.Schema)
		if d == nil {
			return nil, fmt.Errorf("record %s has the unknown schema %s", r.ID, r.Schema)
		}
		i := slices.Index(layouts, d.Layout())
		if i < 0 {
			i = len(layouts)
			layouts = append(layouts, d.Layout())
			rows = append(rows, column.New(d.Layout(), len(records), heapBytes).Append())
		}
		if err := d.Append(rows[i], r.Body); err != nil {
			return nil, fmt.Errorf("record %s: %w", r.ID, err)
		}
	}
	slabs := make([]*column.Slab, len(rows))
	for i, a := range rows {
		slabs[i] = a.Slab()
	}
	return slabs, nil
}
