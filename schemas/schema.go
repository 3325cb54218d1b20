// Package schemas is the home of Avro (https://avro.apache.org): it reads the
// schemas that teams bring, admits their evolutions, and turns records into
// columns. A schema says by a property "millrace" on its fields which of them
// are the roles that every record has; see [Roles].
//
// Nothing that comes in is trusted. A schema has bounds: no recursion, no array
// whose items take no bytes, and a limited size when every reference is replaced by
// the type that it refers to. A body is decoded strictly: it must be exactly what a
// writer would have written.
package schemas

import (
	_ "embed" // the shipped schemas
	"fmt"
	"sync"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// Names of the columns that every layout ends in.
const (
	BodyColumn   = column.BodyName // String: the record's Avro body
	SchemaColumn = "$schema"       // Int: the fingerprint of its writer
)

// Schema is a schema that Parse has found good. It is immutable.
type Schema struct {
	root        *node
	json        string
	canonical   string // Parsing Canonical Form
	fingerprint millrace.Fingerprint
	features    bool
	layout      *column.Layout
	roles       Roles
	envelope    plan // reads the roles
	bytes       int  // of memory: of the schema with its layout and its plan
}

// RoleField is the field that has a role.
type RoleField struct {
	Name   string // empty when no field has the role
	Column int    // in the schema's layout, or -1
}

// Roles are the fields of a schema that Millrace itself reads, as the property
// "millrace" of the schema's fields says.
//
// A record schema has id, entity and type (strings; type may be an enum) and
// time (timestamp-millis), and may have about (array of string), version (int
// or long), object (string, or a union of null and string) and deleted
// (boolean). A feature schema has entity, version or time or both, and may
// have subject (string).
type Roles struct {
	ID, Entity, About, Type, Time, Version, Object, Deleted, Subject RoleField
}

// Envelope is what the fields with a role say in one body.
type Envelope struct {
	Record  millrace.Record
	Entity  millrace.Entity      // whose timeline the record is in, or who routes the features
	About   []millrace.Entity    // in whose timelines it is as well; each once, none of them Entity
	Type    millrace.ContentType // empty for features
	Subject string               // of features: an entity or an object
}

//go:embed activity.avsc
var activityAVSC []byte

//go:embed note.avsc
var noteAVSC []byte

//go:embed features.avsc
var featuresAVSC []byte

//go:embed exposure.avsc
var exposureAVSC []byte

//go:embed tombstone.avsc
var tombstoneAVSC []byte

//go:embed exposure_1.avsc
var earlierExposureAVSC []byte

var (
	activity = sync.OnceValue(func() *Schema { return mustParse(activityAVSC) })
	note     = sync.OnceValue(func() *Schema { return mustParse(noteAVSC) })
	features = sync.OnceValue(func() *Schema { return mustParse(featuresAVSC) })
	exposure = sync.OnceValue(func() *Schema { return mustParse(exposureAVSC) })

	tombstone = sync.OnceValue(func() *Schema { return mustParse(tombstoneAVSC) })

	earlierExposure = sync.OnceValue(func() *Schema { return mustParse(earlierExposureAVSC) })
)

// Activity returns the schema of the bundled feeds: what members do.
func Activity() *Schema { return activity() }

// Note returns the small schema of the tutorial.
func Note() *Schema { return note() }

// Features returns the shipped feature schema.
func Features() *Schema { return features() }

// Tombstone returns the shipped schema of tombstones, which delete records of any schema.
func Tombstone() *Schema { return tombstone() }

// Exposure returns the schema of exposures: what brokers write about the answers they gave.
func Exposure() *Schema { return exposure() }

// EarlierExposure returns the schema of exposures that earlier versions of brokers write.
// Its fields are the first ones of [Exposure].
func EarlierExposure() *Schema { return earlierExposure() }

func mustParse(avsc []byte) *Schema {
	s, err := Parse(avsc)
	if err != nil {
		panic(err)
	}
	return s
}

// Name returns the full name of the schema's record.
func (s *Schema) Name() string { return s.root.name }

// Fingerprint returns the CRC-64-AVRO fingerprint of the canonical form.
func (s *Schema) Fingerprint() millrace.Fingerprint { return s.fingerprint }

// JSON returns the complete text, as it was given to Parse.
func (s *Schema) JSON() string { return s.json }

// Bytes returns about how many bytes of memory the schema takes.
func (s *Schema) Bytes() int { return s.bytes }

// How many bytes the parts of a compiled schema count for. Memory is counted and
// not measured, so that all nodes of a cluster refuse the same schema; a test
// compares the sum with the heap.
const (
	textWeight   = 12  // a byte of text: it stays, and names and types are made of it
	stepWeight   = 160 // a step of a plan, beside its path and default
	columnWeight = 200 // a column of a layout, beside its name
	symbolWeight = 24  // a symbol of an enum, for each pair of writer and reader
	planWeight   = 24  // a plan within a step
)

func (s *Schema) weigh() int {
	n := textWeight*len(s.json) + s.envelope.weigh(map[*[]byte]bool{})
	for _, c := range s.layout.Fields() {
		n += columnWeight + len(c.Name)
	}
	return n
}

// Features reports whether the schema is of features, not of records.
func (s *Schema) Features() bool { return s.features }

// Fields returns the names of the record's own fields, in their order.
func (s *Schema) Fields() []string {
	names := make([]string, len(s.root.fields))
	for i := range s.root.fields {
		names[i] = s.root.fields[i].name
	}
	return names
}

// Types returns the content types that a record may have, if the field with the role type
// is an enum; nil if it may be any text. The caller must not change the slice.
func (s *Schema) Types() []string {
	for i := range s.root.fields {
		if f := &s.root.fields[i]; f.name == s.roles.Type.Name && f.typ.kind == kindEnum {
			return f.typ.symbols
		}
	}
	return nil
}

// Roles returns the fields that have roles.
func (s *Schema) Roles() Roles { return s.roles }

// Layout returns the columns of the schema: one for every field that is a
// number, boolean, string, enum, or list of numbers or strings, fields of
// nested records by dotted name, then [BodyColumn] and [SchemaColumn].
func (s *Schema) Layout() *column.Layout { return s.layout }

// Reason is the stable, machine-readable cause of a refused value. It is what
// a dead letter's reason header says, and never changes meaning.
type Reason string

// The reasons a value, a body or a line is refused for.
const (
	EmptyValue      Reason = "empty-value"       // no bytes where a framed record should be
	BadFraming      Reason = "bad-framing"       // neither single-object nor Confluent framing
	UnknownSchema   Reason = "unknown-schema"    // a fingerprint or id that nobody knows
	Truncated       Reason = "truncated"         // the body ends within a value
	TrailingBytes   Reason = "trailing-bytes"    // the body goes on after the record
	BadVarint       Reason = "bad-varint"        // overlong, or beyond the range of its type
	BadCount        Reason = "bad-count"         // a length or count that the rest of the body cannot hold
	BadBoolean      Reason = "bad-boolean"       // neither 0 nor 1
	BadUnionIndex   Reason = "bad-union-index"   // no such branch
	BadEnumIndex    Reason = "bad-enum-index"    // no such symbol
	DuplicateMapKey Reason = "duplicate-map-key" // a map that says a key twice
	InvalidUTF8     Reason = "invalid-utf8"      // a string that is not UTF-8
	NotFinite       Reason = "not-finite"        // NaN or an infinity
	TimeOutOfRange  Reason = "time-out-of-range" // a record's time outside [millrace.MinTime, millrace.MaxTime)
	OverLimit       Reason = "over-limit"        // longer than the limits of package millrace allow
	MissingRole     Reason = "missing-role"      // an empty id, entity or type
	KeyMismatch     Reason = "key-mismatch"      // a timeline record whose key is not its entity
	BadJSON         Reason = "bad-json"          // a line that is not one JSON object
	UnknownField    Reason = "unknown-field"     // a JSON field that the schema does not have
	MissingField    Reason = "missing-field"     // a JSON line without a field that has no default
	BadValue        Reason = "bad-value"         // a JSON value that its field's type cannot hold, or a type with a NUL

	// TimeInTheFuture is a record's time that is too far after its arrival; see
	// [Schema.Accept].
	TimeInTheFuture Reason = "time-in-the-future"
)

// Error is a refused value: why, and which field of it.
type Error struct {
	Reason Reason
	Field  string // dotted path of the field; empty when the whole is at fault
	Detail string
}

func (e *Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("schemas: %s: %s", e.Reason, e.Detail)
	}
	return fmt.Sprintf("schemas: field %q: %s: %s", e.Field, e.Reason, e.Detail)
}
