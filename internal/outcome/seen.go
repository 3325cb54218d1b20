package outcome

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Seen are the schemas of the entries of a topic that were read, with their
// families, whose names they can be read by. Whoever reads a topic again and again may
// parse a schema anew each time: it is the same by its fingerprint.
type Seen map[millrace.Fingerprint]seen

type seen struct {
	of     *schemas.Schema
	family *schemas.Family
}

// Add notes an entry's schema, if it is known.
func (s Seen) Add(known *registry.Snapshot, value []byte) {
	if framed, err := schemas.Unframe(value); err == nil && !framed.Confluent {
		if of := known.ByFingerprint(framed.Fingerprint); of != nil {
			s[framed.Fingerprint] = seen{of, known.Family(of.Name())}
		}
	}
}

// Lacks refuses actions that no outcome of a topic can be, since the type of each
// schema is an enum without them, and a field, "" for none, that no schema has. Of a
// topic without entries nothing is known. The error is a [*millrace.Error].
func (s Seen) Lacks(topic string, actions []string, field string) error {
	refuse := func(of, wayOut, format string, args ...any) error {
		return &millrace.Error{Reason: millrace.ReasonUnknown, Field: of, Detail: fmt.Sprintf(format, args...), WayOut: wayOut}
	}
	var types []string
	open, there := len(s) == 0, len(s) == 0 || field == ""
	for _, x := range s {
		open = open || x.of.Types() == nil
		there = there || x.family.Layout().Index(field) >= 0
		types = append(types, x.of.Types()...)
	}
	slices.Sort(types)
	types = slices.Compact(types)
	for _, action := range actions {
		if !open && !slices.Contains(types, action) {
			return refuse("outcomes.actions", "name one of "+strings.Join(types, ", "), "topic %s has no action %s", topic, action)
		}
	}
	if !there {
		return refuse("outcomes.answer_field", "name the field that holds the answer_id of a receipt, or leave it out", "no schema of topic %s has a field %s", topic, field)
	}
	return nil
}
