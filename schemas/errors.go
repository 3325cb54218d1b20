package schemas

import "fmt"

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

	// A record's time is too far after its arrival: Accept.
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
