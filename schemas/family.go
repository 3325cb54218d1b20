package schemas

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/column"
)

// maxColumns bounds the columns of a family: a row has a word for each.
const maxColumns = 2048

// Family is every schema of one full name, and the one layout by which filters
// and models read the records of all of them. It is immutable.
//
// The layout has a column for every field that any schema of the family has, so
// that no schema takes a field away from those before it. A column has the kind
// that the first schema with this field gave it; where one has an integer and
// another a double, it is a double. A record has in a column the first of these
// that applies:
//
//  1. its own field of that name, and null if its schema gives that field a
//     type that the column cannot hold;
//  2. its own field that an alias of any schema links to that name;
//  3. the default that the first schema with one gives the field;
//  4. null.
//
// So it makes no difference which schema is the newest. A retired schema adds no column,
// alias or default; its records are read like all others.
type Family struct {
	name     string
	all      []*Schema // in the order of admission
	schemas  []*Schema // those of all that are not retired
	layout   *column.Layout
	decoders map[*Schema]*Decoder // by writer, for all schemas
	clashes  []Clash
	bytes    int // of memory, for the layout and the decoders
}

// Clash is a field to which two schemas give types that one column cannot hold.
type Clash struct {
	Field  string
	Kind   column.Kind // of the column: as the first schema says
	Schema *Schema     // the later schema, whose records read null there
	Type   string      // the type that it gives the field, in words
}

// String tells a clash in a line.
func (c Clash) String() string {
	return fmt.Sprintf("field %q of %s %s is %s, and the first schema that had it made it %s: these records read null there", c.Field, c.Schema.Name(), c.Schema.fingerprint, c.Type, c.Kind)
}

// Name returns the full name that the schemas share.
func (f *Family) Name() string { return f.name }

// FamilyOf returns the family of schemas of one name, given in the order of their
// admission. None is retired.
func FamilyOf(all ...*Schema) (*Family, error) {
	return NewFamily(all, func(*Schema) bool { return false })
}

// Schemas returns the schemas in the order of admission, without those retired.
// The caller must not change the slice.
func (f *Family) Schemas() []*Schema { return f.schemas }

// Of returns the family of those schemas of f alone that have these fingerprints, as hex,
// retired or not; nil if f has none of them.
func (f *Family) Of(prints []string) (*Family, error) {
	var of []*Schema
	for _, s := range f.all {
		if slices.Contains(prints, s.fingerprint.String()) {
			of = append(of, s)
		}
	}
	if len(of) == 0 {
		return nil, nil
	}
	return FamilyOf(of...)
}

// Features reports whether the schemas are of features, not of records.
func (f *Family) Features() bool { return f.schemas[0].features }

// Decoder returns the decoder of bodies that were written under a schema of the family,
// retired or not, into rows of the family's layout; nil for any other schema.
func (f *Family) Decoder(writer *Schema) *Decoder { return f.decoders[writer] }

// Bytes returns about how many bytes of memory the family takes, without its schemas.
func (f *Family) Bytes() int { return f.bytes }

// Layout returns the columns of the family's records.
func (f *Family) Layout() *column.Layout { return f.layout }

// Clashes returns the fields that read null for the records of some schema,
// because an earlier one gave them another type.
func (f *Family) Clashes() []Clash { return f.clashes }

// place is a path in the records of a family: a column, or a record with places below it,
// or both if schemas disagree.
type place struct {
	path   string
	column int // or -1
	kind   column.Kind
	role   string
	wide   bool     // a Double that some schema has as an Int
	kids   []*place // directly below it, in the order of their columns
}

// kid returns the place of a name directly below p, or nil.
func (p *place) kid(name string) *place {
	path := join(p.path, name)
	if i := slices.IndexFunc(p.kids, func(k *place) bool { return k.path == path }); i >= 0 {
		return p.kids[i]
	}
	return nil
}

// each calls visit for every column at and below a place; none if p is nil.
func (p *place) each(visit func(*place)) {
	if p == nil {
		return
	}
	if p.column >= 0 {
		visit(p)
	}
	for _, k := range p.kids {
		k.each(visit)
	}
}

// takes reports whether a column of one kind can hold values of another.
func takes(have, value column.Kind) bool {
	whole := func(k column.Kind) bool { return k == column.Int || k == column.Time }
	return have == value || have == column.Double && value == column.Int || whole(have) && whole(value)
}

// NewFamily returns the family of schemas of one name, given in the order of their
// admission. retired says which are retired: the family decodes their records, and takes
// nothing else from them. It fails if all are retired.
func NewFamily(all []*Schema, retired func(*Schema) bool) (*Family, error) {
	f := &Family{name: all[0].Name(), all: all, decoders: make(map[*Schema]*Decoder, len(all))}
	for _, s := range all {
		if !retired(s) {
			f.schemas = append(f.schemas, s)
		}
	}
	if len(f.schemas) == 0 {
		return nil, fmt.Errorf("schemas: no other schema of %s would be left, and its records must stay readable", f.name)
	}
	root, places, err := f.places()
	if err != nil {
		return nil, err
	}
	sh := &shaper{root: root, places: places, defaults: map[string]*field{}, links: map[string][]string{}, nulls: make([]bool, len(places))}
	for _, s := range f.schemas {
		sh.learn(s.root, "", []string{""})
	}
	plans := make([]plan, len(all))
	for i, s := range all {
		plans[i] = sh.plan(s.root)
	}
	if f.layout, err = f.layoutOf(places, sh.nullable()); err != nil {
		return nil, err
	}
	for i, s := range all {
		f.decoders[s] = newDecoder(s, f.layout, plans[i])
	}
	f.bytes = f.weigh()
	return f, nil
}

// places returns every column of the family's layout except for $body and $schema, as a
// tree and as a list. The columns of the newest schema come first, then those that only
// earlier schemas have. The first schema that was admitted with a field decides its kind.
func (f *Family) places() (root *place, all []*place, err error) {
	root = &place{column: -1}
	byPath := map[string]*place{}
	for _, s := range slices.Backward(f.schemas) {
		for _, c := range s.layout.Fields() {
			if c.Name == BodyColumn || c.Name == SchemaColumn || byPath[c.Name] != nil {
				continue
			}
			p := root.grow(c.Name)
			p.column = len(all)
			byPath[c.Name] = p
			all = append(all, p)
		}
	}
	if len(all) > maxColumns {
		return nil, nil, fmt.Errorf("schemas: the schemas of %s have %d fields together; at most %d are allowed: give the new one a name of its own, or retire old ones", f.name, len(all), maxColumns)
	}
	roles := map[string]bool{}
	for _, s := range f.schemas {
		for _, c := range s.layout.Fields() {
			p := byPath[c.Name]
			switch {
			case p == nil:
			case p.kind == 0:
				p.kind = c.Kind
			case p.kind == column.Int && c.Kind == column.Double, p.kind == column.Double && c.Kind == column.Int:
				p.kind, p.wide = column.Double, true
			}
			if p != nil && c.Role != "" && !roles[c.Role] {
				p.role, roles[c.Role] = c.Role, true
			}
		}
	}
	f.findClashes(all)
	return root, all, nil
}

// grow returns the place of a path below p, and makes it and those on the way to it if they
// are missing.
func (p *place) grow(path string) *place {
	at := 0
	for name := range strings.SplitSeq(path, ".") {
		at += len(name)
		k := p.kid(name)
		if k == nil {
			k = &place{path: path[:at], column: -1}
			p.kids = append(p.kids, k)
		}
		p, at = k, at+1
	}
	return p
}

// findClashes notes every field of a schema whose type the column of its name cannot hold.
func (f *Family) findClashes(all []*place) {
	for _, s := range f.schemas {
		for _, p := range all {
			if i := s.layout.Index(p.path); i >= 0 {
				if k := s.layout.Fields()[i].Kind; !takes(p.kind, k) {
					f.clashes = append(f.clashes, Clash{p.path, p.kind, s, k.String()})
				}
			} else if n, _ := nodeAt(s.root, p.path); n != nil {
				f.clashes = append(f.clashes, Clash{p.path, p.kind, s, n.what()})
			}
		}
	}
}

// nodeAt returns the type of the field at a path within a record, without null, and true.
// If the path goes on below a type that is no record, it returns that type and false. If
// there is no such field it returns nil.
func nodeAt(n *node, path string) (_ *node, ok bool) {
	for name := range strings.SplitSeq(path, ".") {
		if n.kind != kindRecord {
			return n, false
		}
		i := slices.IndexFunc(n.fields, func(f field) bool { return f.name == name })
		if i < 0 {
			return nil, false
		}
		n = n.fields[i].typ
		if t, ok := n.nullable(); ok {
			n = t
		}
	}
	return n, true
}

// layoutOf returns the layout of places. If a schema of the family has the same columns it
// returns that schema's layout, the newest first, so that whatever is kept by layout stays
// valid.
func (f *Family) layoutOf(places []*place, nullable []bool) (*column.Layout, error) {
	fields := make([]column.Field, 0, len(places)+2)
	for i, p := range places {
		fields = append(fields, column.Field{Name: p.path, Kind: p.kind, Nullable: nullable[i], Role: p.role, Widened: p.wide})
	}
	fields = append(fields, column.Field{Name: BodyColumn, Kind: column.String}, column.Field{Name: SchemaColumn, Kind: column.Int})
	for _, s := range slices.Backward(f.schemas) {
		if slices.Equal(s.layout.Fields(), fields) {
			return s.layout, nil
		}
	}
	l, err := column.NewLayout(fields)
	if err != nil {
		return nil, err
	}
	types := map[string]string{}
	for _, s := range f.schemas {
		carried(types, s.root, "", l)
	}
	l.Describe(nil, types)
	return l, nil
}

// weigh returns about how many bytes of memory a family takes without its schemas.
func (f *Family) weigh() int {
	n := 0
	for _, c := range f.layout.Fields() {
		n += columnWeight + len(c.Name)
	}
	for _, d := range f.decoders {
		n += d.plan.weigh(map[*[]byte]bool{})
	}
	return n
}
