package outcome

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/schemas"
)

const actedBy = `{"type": "record", "name": "NAME", "namespace": "shop", "fields": [
  {"name": "event", "type": "string", "millrace": "id"},
  {"name": "who", "type": "string", "millrace": "entity"},
  {"name": "on", "type": "string", "millrace": "object"},
  {"name": "what", "type": TYPE, "millrace": "type"},
  {"name": "when", "type": {"type": "long", "logicalType": "timestamp-millis"}, "millrace": "time"},
  {"name": "answer", "type": ["null", "string"], "default": null}
]}`

// What no entry of a topic can be is known by its schemas: of one whose types are any
// text, and of a topic without entries, it is not.
func TestSeenLacks(t *testing.T) {
	schema := func(name, kind string) *schemas.Schema {
		s, err := schemas.Parse([]byte(strings.NewReplacer("NAME", name, "TYPE", kind).Replace(actedBy)))
		must(t, err)
		return s
	}
	closed := schema("Act", `{"type": "enum", "name": "What", "symbols": ["click", "save"]}`)
	hides := schema("Hide", `{"type": "enum", "name": "Hiding", "symbols": ["hide"]}`)
	open := schema("Other", `"string"`)
	of := func(all ...*schemas.Schema) Seen {
		s := Seen{}
		for _, x := range all {
			f, err := schemas.FamilyOf(x)
			must(t, err)
			s[x.Fingerprint()] = seen{x, f}
		}
		return s
	}
	for _, c := range []struct {
		seen   Seen
		action string
		field  string
		want   string
	}{
		{Seen{}, "klick", "zzz", ""},
		{of(closed), "click", "answer", ""},
		{of(closed), "klick", "", "outcomes.actions: topic acts has no action klick; name one of click, save"},
		{of(closed, hides), "hide", "", ""},
		{of(closed, open), "klick", "", ""},
		{of(closed, open), "klick", "zzz", "outcomes.answer_field: no schema of topic acts has a field zzz; name the field"},
	} {
		err := c.seen.Lacks("acts", []string{c.action}, c.field)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%s, %s: %v, want %q", c.action, c.field, err, c.want)
		}
	}
}
