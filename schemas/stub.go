package schemas

import (
	"context"
	"errors"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

var errNotBuilt = errors.New("schemas: not built yet")

type node struct{ name string }

// Parse reads a schema and checks everything about it. The error tells every
// fault of the file at once, each with the field it is in.
func Parse(avsc []byte) (*Schema, error) { return nil, errNotBuilt }

// Envelope validates the whole body strictly and returns its roles. The error
// is an [*Error].
func (s *Schema) Envelope(body []byte) (Envelope, error) { return Envelope{}, errNotBuilt }

// EncodeJSON turns a JSON object into a body. A field may be left out when it
// has a default; an unknown one is refused by name. Timestamps are RFC 3339
// strings or integers in the schema's unit, bytes are base64, unions are not
// wrapped. The error is an [*Error].
func (s *Schema) EncodeJSON(line []byte) (body []byte, err error) { return nil, errNotBuilt }

// JSONValue returns a body as values that encode to JSON: timestamps as
// RFC 3339 strings, integers beyond 2^53 as strings, enums as symbols, bytes
// as base64, unions without a wrapping.
func (s *Schema) JSONValue(body []byte) (map[string]any, error) { return nil, errNotBuilt }

// Decoder decodes bodies of one schema into rows of another's layout. It may
// be used by several goroutines at once.
type Decoder struct{}

// NewDecoder returns the decoder of bodies written under writer into rows laid
// out by reader, after Avro's rules of resolution: a field that the writer
// lacks has the reader's default, one that the reader lacks is dropped, one
// renamed is found by alias, and numbers are promoted.
func NewDecoder(writer, reader *Schema) (*Decoder, error) { return nil, errNotBuilt }

// Append decodes body strictly into a new row of a, $body and $schema
// included. The error is an [*Error], or [column.ErrFull]; no row is then
// added.
func (d *Decoder) Append(a *column.Appender, body []byte) error { return errNotBuilt }

// CheckEvolution reports why records of old could not be read under new.
func CheckEvolution(old, new *Schema) error { return errNotBuilt }

// Lookup finds a schema by its id in a Confluent registry. An error that is
// an [*Error] of reason [UnknownSchema] says that it is not there; any other
// that the registry could not be asked.
type Lookup func(ctx context.Context, id uint32) (*Schema, error)

// Store persists a registry.
type Store interface {
	// PutSchema keeps a schema under its fingerprint, with its place in the
	// order of admission.
	PutSchema(StoredSchema) error
	// Schemas returns every schema kept, in any order.
	Schemas() ([]StoredSchema, error)
}

// StoredSchema is a schema as a [Store] keeps it.
type StoredSchema struct {
	Fingerprint millrace.Fingerprint
	Order       uint64 // of admission, from 1
	JSON        string
}

// Registry holds every schema met, by fingerprint, and the latest by name.
type Registry struct{}

// NewRegistry returns the registry of what store holds. Without a store (nil)
// it starts empty and forgets when the process ends. Lookup may be nil: then
// Confluent framing is refused as [UnknownSchema].
func NewRegistry(store Store, lookup Lookup) (*Registry, error) { return nil, errNotBuilt }

// Admit adds a schema as the latest of its name, unless it is known already.
// It refuses a schema that cannot read every earlier one of its name, and one
// whose fingerprint belongs to another.
func (r *Registry) Admit(s *Schema) (added bool, err error) { return false, errNotBuilt }

// Snapshot returns the registry as it is now.
func (r *Registry) Snapshot() *Snapshot { return nil }

// Writer returns the schema that a value was written under.
func (r *Registry) Writer(ctx context.Context, f Framed) (*Schema, error) { return nil, errNotBuilt }

// Decoder returns the decoder from a known writer to reader.
func (r *Registry) Decoder(writer millrace.Fingerprint, reader *Schema) (*Decoder, error) {
	return nil, errNotBuilt
}

// Snapshot is a registry at one instant. It is immutable.
type Snapshot struct{}

// ByFingerprint returns a schema, or nil.
func (s *Snapshot) ByFingerprint(fp millrace.Fingerprint) *Schema { return nil }

// Latest returns the newest schema of a full name, or nil.
func (s *Snapshot) Latest(name string) *Schema { return nil }

// All returns every schema in order of admission.
func (s *Snapshot) All() []*Schema { return nil }
