package random

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// avsc returns the schema as an Avro schema in JSON. The fields with roles come first: those
// that Millrace itself reads, such as id, time and version.
func (w *world) avsc() []byte {
	roles := []string{
		`{"name": "id", "type": "string", "millrace": "id"}`,
		`{"name": "who", "type": "string", "millrace": "entity"}`,
		`{"name": "what", "type": "string", "millrace": "type"}`,
		`{"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}, "millrace": "time"}`,
	}
	if w.objects > 0 {
		roles = append(roles, `{"name": "about", "type": "string", "default": "", "millrace": "object"}`)
	}
	if w.versions || w.deletions {
		roles = append(roles, `{"name": "revision", "type": "long", "default": 0, "millrace": "version"}`)
	}
	if w.deletions {
		roles = append(roles, `{"name": "gone", "type": "boolean", "default": false, "millrace": "deleted"}`)
	}
	for _, parent := range w.parents() {
		var own []string
		for _, f := range w.fields {
			if f.parent == parent {
				own = append(own, f.avsc())
			}
		}
		if parent == "" {
			roles = append(roles, own...)
			continue
		}
		roles = append(roles, fmt.Sprintf(`{"name": %q, "type": {"type": "record", "name": %q, "fields": [%s]}}`, parent, strings.ToUpper(parent), strings.Join(own, ", ")))
	}
	return fmt.Appendf(nil, "{\"type\": \"record\", \"name\": \"Item\", \"namespace\": \"random\", \"fields\": [\n%s]}\n", strings.Join(roles, ",\n"))
}

// parents returns the nested records that have fields, in the order of the fields. "" stands
// for the top level, and sorts first.
func (w *world) parents() (all []string) {
	for _, f := range w.fields {
		if !slices.Contains(all, f.parent) {
			all = append(all, f.parent)
		}
	}
	return all
}

func (f *field) avsc() string {
	t := map[kind]string{ints: `"long"`, doubles: `"double"`, singles: `"float"`, bools: `"boolean"`, texts: `"string"`, prose: `"string"`,
		vectors: `{"type": "array", "items": "double"}`, tags: `{"type": "array", "items": "string"}`, numbers: `{"type": "array", "items": "long"}`}[f.kind]
	switch {
	case f.kind == vectors && f.single:
		t = `{"type": "array", "items": "float"}`
	case f.enum:
		t = fmt.Sprintf(`{"type": "enum", "name": %q, "symbols": [%s]}`, "Enum_"+f.name, quoted(f.dict))
	}
	if f.nullable {
		t = `["null", ` + t + `]`
	}
	return fmt.Sprintf(`{"name": %q, "type": %s}`, f.name, t)
}

// line returns a record as a JSON object, as millrace load reads it.
func (w *world) line(x *record) ([]byte, error) {
	all := map[string]any{"id": x.id, "who": x.entity, "what": kindName(x.kind), "at": x.at}
	if w.objects > 0 {
		all["about"] = x.object
	}
	if w.versions || w.deletions {
		all["revision"] = x.version
	}
	if w.deletions {
		all["gone"] = x.deleted
	}
	for i, f := range w.fields {
		if f.parent == "" {
			all[f.name] = x.values[i]
			continue
		}
		within, ok := all[f.parent].(map[string]any)
		if !ok {
			within = map[string]any{}
			all[f.parent] = within
		}
		within[f.name] = x.values[i]
	}
	return json.Marshal(all)
}

const feedName = "random"

// feed returns the definition, in YAML, of the feed that all questions ask for.
func (w *world) feed() []byte {
	var b strings.Builder
	var types, clauses []string
	for _, k := range w.asked {
		types = append(types, kindName(k))
	}
	for _, c := range w.filter {
		clauses = append(clauses, c.cel)
	}
	fmt.Fprintf(&b, "name: %s\ntypes: [%s]\nmodel: %s\nwindow: %s\nlimit: %d\n", feedName, strings.Join(types, ", "), modelName, w.window, w.limit)
	if len(clauses) > 0 {
		fmt.Fprintf(&b, "filter: %q\n", strings.Join(clauses, " && "))
	}
	if w.distinct {
		b.WriteString("distinct_objects: true\n")
	}
	if w.cap > 0 {
		fmt.Fprintf(&b, "cap_per_entity: %d\n", w.cap)
	}
	return []byte(b.String())
}
