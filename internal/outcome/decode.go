package outcome

import (
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Decode reads an outcome by the roles of its schema: entity is the viewer, object the
// record, type the action. answerField is the name of the field with the answer's id. It is
// read if the schema has it, or a field that an alias links to it. The error says why value
// is no outcome.
func Decode(known *registry.Snapshot, value []byte, answerField string) (o Outcome, err error) {
	framed, err := schemas.Unframe(value)
	if err != nil {
		return o, err
	}
	s := known.ByFingerprint(framed.Fingerprint)
	switch {
	case framed.Confluent || s == nil:
		return o, errors.New("its schema is not in the schemas topic")
	case s.Features():
		return o, fmt.Errorf("%s is a schema of features", s.Name())
	case s.Roles().Object.Name == "":
		return o, fmt.Errorf("no field of %s has the role object, which says what was acted on", s.Name())
	}
	e, err := s.Envelope(framed.Body)
	if err != nil {
		return o, err
	}
	if e.Record.Deleted {
		return o, errors.New("it is a tombstone")
	}
	// The roles share the memory of the whole batch that was fetched. They are copied, since
	// outcomes are kept for long.
	o = Outcome{
		ID: strings.Clone(string(e.Record.ID)), Viewer: strings.Clone(string(e.Entity)), Record: strings.Clone(string(e.Record.Object)),
		Action: strings.Clone(string(e.Type)), At: e.Record.Time,
	}
	if o.Answer, err = answerOf(known.Decoder(framed.Fingerprint), framed.Body, answerField); err != nil {
		return o, err
	}
	return o, nil
}

// answerOf reads a field as filters do: after the field was renamed, both names read it, in
// records of both schemas. It returns "" if the schema has no such field, or the field is
// null.
func answerOf(d *schemas.Decoder, body []byte, field string) (string, error) {
	at := d.Layout().Index(field)
	if at < 0 {
		return "", nil
	}
	if d.Layout().Fields()[at].Kind != column.String {
		return "", fmt.Errorf("%s is no string", field)
	}
	row := column.New(d.Layout(), 1, len(body)).Append()
	if err := d.Append(row, body); err != nil {
		return "", err
	}
	if row.Slab().Null(at, 0) {
		return "", nil
	}
	return strings.Clone(row.Slab().StringAt(at, 0)), nil
}

// Faults counts the entries of a topic that are no outcomes.
type Faults struct {
	N     int
	First error // why the first one is none
}

// Add counts an entry that is no outcome, for the reason err.
func (f *Faults) Add(err error) {
	if f.N++; f.First == nil {
		f.First = err
	}
}

// Err returns an error if there are faults, else nil. It is for a topic that has no entry
// that is an outcome: somebody probably named the wrong topic. The error is a
// [*millrace.Error].
func (f *Faults) Err(topic string) error {
	if f.N == 0 {
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "outcomes", Detail: fmt.Sprintf("%d entries of %s are no outcomes; the first: %v", f.N, topic, f.First),
		WayOut: "write them under a schema with the roles id, entity, object, type and time, which millrace load or a partitioner has put into the schemas topic"}
}
