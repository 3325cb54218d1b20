package outcome

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Seen has the schemas of the entries that were read of a topic, by fingerprint, with the
// family of each. A record can be read by the names of all fields of its family.
type Seen map[millrace.Fingerprint]seen

// seen is a schema and its family: all known schemas of the same name.
type seen struct {
	of     *schemas.Schema
	family *schemas.Family
}

// Add adds the schema of an entry, if it is known.
func (s Seen) Add(known *registry.Snapshot, value []byte) {
	if framed, err := schemas.Unframe(value); err == nil && !framed.Confluent {
		if of := known.ByFingerprint(framed.Fingerprint); of != nil {
			s[framed.Fingerprint] = seen{of, known.Family(of.Name())}
		}
	}
}

// Lacks refuses actions that no outcome of the topic can have, since in each schema the
// type is an enum without them. It refuses a field that no schema has; "" stands for no
// field. It refuses nothing if no schema was seen. The error is a [*millrace.Error].
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
