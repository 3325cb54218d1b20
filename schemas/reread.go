package schemas

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// Read returns a record in the family's columns, a slab of one row. It has the given
// values, by dotted path, and is read as if a body of the schema writer had them.
// [Schema.Row] says what values may be.
func (f *Family) Read(writer *Schema, given map[string]any) (*column.Slab, error) {
	own, err := writer.Row(given)
	if err != nil || writer.layout == f.layout {
		return own, err
	}
	return f.Reread(writer, own, given)
}

// Row returns a record in the schema's own columns, a slab of one row. given has its
// values by dotted path: of fields of the schema that are no records. Each value is
// written as Avro as [Schema.EncodeJSON] does and read as bodies are: a float has 32 bits,
// and a value that its type cannot hold is an [*Error]. A field without a value has its
// default, or else is 0, false or empty.
func (s *Schema) Row(given map[string]any) (*column.Slab, error) {
	a := column.New(s.layout, 1, 0).Append()
	m := machine{row: a.Begin()}
	defer m.release()
	for i, f := range s.layout.Fields() {
		if _, ok := given[f.Name]; !ok {
			m.row.Set(i, s.layout.Blank(), 0)
		}
	}
	var faults []error
	for _, path := range slices.Sorted(maps.Keys(given)) {
		if err := s.put(&m, path, given[path]); err != nil {
			faults = append(faults, err)
		}
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	if err := a.End(m.row); err != nil {
		return nil, err
	}
	return a.Slab(), nil
}

// put checks a value of JSON for a field, and puts it into the field's column, if it has
// one.
func (s *Schema) put(m *machine, path string, v any) error {
	f := fieldAt(s.root, path)
	at := s.layout.Index(path)
	if v == nil && at >= 0 && s.layout.Fields()[at].Nullable { // the field may be null, or a record around it
		m.row.SetNull(at)
		return nil
	}
	body, err := encodeValue(f.typ, v, path)
	if err != nil {
		return err
	}
	c := newCompiler()
	c.layout = s.layout
	p, err := c.resolve(nil, f.typ, f.typ, path)
	if err != nil {
		return err
	}
	if f.role == roleTime {
		p[0].op = opTime // a role's field is one long
	}
	m.input, m.base, m.path = input{b: body}, m.row.Heap(body), ""
	if !m.run(p) {
		return &Error{Reason: m.fault, Field: m.path, Detail: explain[m.fault]}
	}
	return nil
}

// Reread returns a record of the schema writer in the family's columns, as the decoder of
// its body would. own has the record in the schema's own columns, one row. A field that is a
// union of several types has no column; its value is in given, by dotted path.
func (f *Family) Reread(writer *Schema, own *column.Slab, given map[string]any) (*column.Slab, error) {
	d := f.decoders[writer]
	if d == nil {
		return nil, fmt.Errorf("schemas: %s %s is not of the family", writer.Name(), writer.fingerprint)
	}
	a := column.New(f.layout, 1, 0).Append()
	r := reread{machine: machine{row: a.Begin()}, writer: writer, own: own, given: given}
	defer r.release()
	if err := r.steps(d.plan); err != nil {
		return nil, err
	}
	r.row.SetInt(d.schema, d.writer)
	if err := a.End(r.row); err != nil {
		return nil, err
	}
	return a.Slab(), nil
}

// reread runs a plan whose values come from columns instead of a body.
type reread struct {
	machine
	writer *Schema
	own    *column.Slab
	given  map[string]any
}

func (r *reread) steps(p plan) error {
	for i := range p {
		s := &p[i]
		switch s.op {
		case opNull, opDefault, opCopy:
			if !r.run(p[i : i+1]) {
				return &Error{Reason: r.fault, Field: s.path, Detail: explain[r.fault]}
			}
		case opUnion:
			if err := r.union(s); err != nil {
				return err
			}
		default:
			if s.put != putNothing {
				r.row.SetFrom(s.at, r.own, r.own.Layout().Index(s.path), 0)
			}
		}
	}
	return nil
}

// union runs the plan of the branch that the value has. For null and one other type, it is
// null if no column at or below the path has a value. For several types the value itself
// tells.
func (r *reread) union(s *step) error {
	f := fieldAt(r.writer.root, s.path)
	if _, ok := f.typ.nullable(); ok {
		null := slices.IndexFunc(f.typ.branches, func(b *node) bool { return b.kind == kindNull })
		if r.has(s.path) {
			return r.steps(s.subs[1-null])
		}
		return r.steps(s.subs[null])
	}
	body := f.def
	if v, ok := r.given[s.path]; ok {
		var err error
		if body, err = encodeValue(f.typ, v, s.path); err != nil {
			return err
		}
	} else if !f.hasDefault {
		return &Error{Reason: MissingField, Field: s.path, Detail: "the field has several types and no default; give it a value"}
	}
	r.putDefault(&step{def: body, subs: []plan{{*s}}})
	return nil
}

// has reports whether a column at or below a path has a value.
func (r *reread) has(path string) bool {
	for i, f := range r.own.Layout().Fields() {
		if (f.Name == path || strings.HasPrefix(f.Name, path+".")) && !r.own.Null(i, 0) {
			return true
		}
	}
	return false
}

// encodeValue writes a value of JSON as Avro.
func encodeValue(n *node, v any, path string) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, &Error{Reason: BadJSON, Field: path, Detail: err.Error()}
	}
	e := encoder{max: millrace.MaxBodyBytes}
	return e.encode(nil, n, text, path)
}

// fieldAt returns the field at a path within a record.
func fieldAt(n *node, path string) (f *field) {
	for name := range strings.SplitSeq(path, ".") {
		if t, ok := n.nullable(); ok {
			n = t
		}
		f = &n.fields[slices.IndexFunc(n.fields, func(f field) bool { return f.name == name })]
		n = f.typ
	}
	return f
}
