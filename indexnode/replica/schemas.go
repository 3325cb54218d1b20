package replica

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/schemas/registry"
)

// StoredSchemas returns a node's store as the store of a registry of schemas.
func StoredSchemas(s *store.Store) registry.Store { return storedSchemas{s} }

// storedSchemas implements registry.Store.
type storedSchemas struct{ s *store.Store }

// SchemaRow returns a schema as the store keeps it: its place in the order in which schemas
// were admitted, as a uvarint that is not 0, and its JSON. The row of a retired schema has
// a zero byte before these.
func SchemaRow(x registry.StoredSchema) []byte {
	var row []byte
	if x.Retired {
		row = append(row, 0)
	}
	return append(binary.AppendUvarint(row, x.Order), x.JSON...)
}

// PutSchema implements registry.Store.
func (s storedSchemas) PutSchema(x registry.StoredSchema) error {
	if err := s.s.ReplaceSchema(x.Fingerprint, SchemaRow(x)); err != nil {
		return fmt.Errorf("schema %s: %w", x.Fingerprint, err)
	}
	return nil
}

// Schemas implements registry.Store.
func (s storedSchemas) Schemas() ([]registry.StoredSchema, error) {
	rows, err := s.s.Schemas()
	if err != nil {
		return nil, err
	}
	var out []registry.StoredSchema
	for fp, row := range rows {
		rest, retired := bytes.CutPrefix(row, []byte{0})
		order, n := binary.Uvarint(rest)
		if n <= 0 {
			return nil, fmt.Errorf("schema row %s: %w", fp, store.ErrCorrupt)
		}
		out = append(out, registry.StoredSchema{Fingerprint: fp, Order: order, JSON: string(rest[n:]), Retired: retired})
	}
	return out, nil
}
