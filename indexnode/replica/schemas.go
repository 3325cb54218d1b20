package replica

import (
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/schemas"
)

// StoredSchemas keeps a registry in a node's store.
func StoredSchemas(s *store.Store) schemas.Store { return storedSchemas{s} }

type storedSchemas struct{ s *store.Store }

// SchemaRow is a schema as the store has it: the place in the order of
// admission, as uvarint, and the JSON.
func SchemaRow(x schemas.StoredSchema) []byte {
	return append(binary.AppendUvarint(nil, x.Order), x.JSON...)
}

// PutSchema implements schemas.Store.
func (s storedSchemas) PutSchema(x schemas.StoredSchema) error {
	var b store.Batch
	b.PutSchema(x.Fingerprint, SchemaRow(x))
	if _, err := s.s.Apply(&b, nil); err != nil {
		return fmt.Errorf("schema %s: %w", x.Fingerprint, err)
	}
	return nil
}

// Schemas implements schemas.Store.
func (s storedSchemas) Schemas() ([]schemas.StoredSchema, error) {
	rows, err := s.s.Schemas()
	if err != nil {
		return nil, err
	}
	var out []schemas.StoredSchema
	for fp, row := range rows {
		order, n := binary.Uvarint(row)
		if n <= 0 {
			return nil, fmt.Errorf("schema row %s: %w", fp, store.ErrCorrupt)
		}
		out = append(out, schemas.StoredSchema{Fingerprint: fp, Order: order, JSON: string(row[n:])})
	}
	return out, nil
}
