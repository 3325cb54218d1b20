package schemas

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/column"
)

// Change is what a schema makes of a field that filters and models read.
type Change struct {
	Features bool   // the field is of features, and not of records
	Field    string // dotted path
	What     What
	Detail   string // a clause, such as: read its default
}

// What is the kind of a [Change].
type What string

// The kinds of changes.
const (
	Added   What = "adds"
	Renamed What = "renames" // its records read the field under both names
	Widened What = "widens"  // a number of a larger type from now on
	Differs What = "changes" // its records may hold what those before could not
	Dropped What = "drops"   // its records read a default, or null
	Retyped What = "retypes" // its records read null
	Clashes What = "clashes" // with another name's field: filters read null in its records
)

// Loses reports whether records of the schema lack the field, so that what
// reads it passes them over.
func (c Change) Loses() bool { return c.What == Dropped || c.What == Retyped }

// Path returns the field as filters and specs name it.
func (c Change) Path() string {
	if c.Features {
		return "entity." + c.Field
	}
	return "record." + c.Field
}

// String tells the change in a line.
func (c Change) String() string {
	return strings.TrimSuffix(fmt.Sprintf("%s %s: %s", c.What, c.Path(), c.Detail), ": ")
}

// AppendChanges adds to the changes of a schema, the last of next, what it
// changes in the fields of its family and in their types; f is the family without
// it. It tells no further change of type of a field that changes already has.
func (f *Family) AppendChanges(changes []Change, next *Family) []Change {
	last, add := f.schemas[len(f.schemas)-1], next.schemas[len(next.schemas)-1]
	for _, c := range next.layout.Fields() {
		if c.Name == BodyColumn || c.Name == SchemaColumn {
			continue
		}
		if c, ok := change(next, last, add, c); ok {
			changes = append(changes, c)
		}
	}
	for _, c := range differences(add.features, "", last.root, add.root) {
		if !slices.ContainsFunc(changes, func(told Change) bool { return told.Field == c.Field }) {
			changes = append(changes, c)
		}
	}
	return changes
}

// differences compares the types of the fields at and below a path that two
// schemas have, columns or not.
func differences(features bool, path string, was, is *node) (all []Change) {
	tell := func(what What, detail string) { all = append(all, Change{features, path, what, detail}) }
	was, null := bare(was)
	is, nulls := bare(is)
	switch {
	case nulls && !null:
		tell(Differs, "it may be null from now on")
	case null && !nulls:
		tell(Differs, "it is never null any more")
	}
	switch {
	case was.kind == kindRecord && is.kind == kindRecord:
		for _, f := range is.fields {
			if i := slices.IndexFunc(was.fields, func(g field) bool { return g.name == f.name }); i >= 0 {
				all = append(all, differences(features, join(path, f.name), was.fields[i].typ, f.typ)...)
			}
		}
	case was.kind == is.kind && was.items != nil:
		for _, c := range differences(features, path, was.items, is.items) {
			if c.Field == path {
				c.Detail = "of its items: " + c.Detail
			}
			all = append(all, c)
		}
	case was.kind == kindEnum && is.kind == kindEnum:
		if more := without(is.symbols, was.symbols); len(more) > 0 {
			tell(Differs, "it may also be "+strings.Join(more, ", "))
		}
		if gone := without(was.symbols, is.symbols); len(gone) > 0 {
			tell(Differs, "it is never "+strings.Join(gone, " or ")+" any more")
		}
	case was.what() == is.what():
	case number(was.kind) && number(is.kind) && was.kind != is.kind:
		tell(Widened, "it was "+was.what()+", and is "+is.what())
	default:
		tell(Differs, "it was "+was.what()+", and is "+is.what())
	}
	return all
}

// bare is a type without null, and whether it was nullable.
func bare(n *node) (*node, bool) {
	if t, ok := n.nullable(); ok {
		return t, true
	}
	return n, false
}

// without returns the symbols that others lack.
func without(symbols, others []string) []string {
	return slices.DeleteFunc(slices.Clone(symbols), func(s string) bool { return slices.Contains(others, s) })
}

func number(k kind) bool {
	return k == kindInt || k == kindLong || k == kindFloat || k == kindDouble
}

// change compares what the records of two schemas read in a column.
func change(now *Family, last, add *Schema, f column.Field) (c Change, ok bool) {
	c = Change{Features: add.features, Field: f.Name}
	was, is := last.layout.Index(f.Name), add.layout.Index(f.Name)
	n, _ := nodeAt(add.root, f.Name)
	switch {
	case is >= 0 && takes(f.Kind, add.layout.Fields()[is].Kind):
		if was < 0 {
			c.What = Added
			return c, !now.has(add, f.Name)
		}
		c.What, c.Detail = Widened, "it was an int, and is a double for all records"
		return c, f.Widened && add.layout.Fields()[is].Kind == column.Double && last.layout.Fields()[was].Kind == column.Int
	case was < 0:
		return c, false // it was not there before either
	case n != nil:
		c.What = Retyped
		c.Detail = fmt.Sprintf("it is %s and was %s, so that its records read null, or what of it fits", n.what(), f.Kind)
		return c, true
	}
	for _, p := range now.decoders[add].plan {
		switch {
		case p.op == opCopy && p.at == now.layout.Index(f.Name):
			c.What, c.Detail = Renamed, "to "+now.layout.Fields()[p.n].Name
			return c, true
		case p.op == opDefault && isWithin(f.Name, p.path):
			c.What, c.Detail = Dropped, "its records read the default"
			return c, true
		case p.op == opNull && p.at == now.layout.Index(f.Name):
			c.What, c.Detail = Dropped, "its records read null"
			return c, true
		}
	}
	c.What, c.Detail = Dropped, "its records read the default"
	if strings.Contains(f.Name, ".") {
		c.Detail += ", or null"
	}
	return c, true
}

// isWithin reports whether a path is another or below it.
func isWithin(path, of string) bool { return path == of || strings.HasPrefix(path, of+".") }

// has reports whether a schema before the last has a column.
func (f *Family) has(last *Schema, name string) bool {
	return slices.ContainsFunc(f.schemas, func(s *Schema) bool { return s != last && s.layout.Index(name) >= 0 })
}

// CheckEvolution reports why records of old could not be read under new, with
// every field that a role has moved from or to.
func CheckEvolution(old, new *Schema) error {
	if old.Name() != new.Name() {
		return fmt.Errorf("schemas: %s is not an evolution of %s; an evolution keeps the full name", new.Name(), old.Name())
	}
	if old.features != new.features {
		return fmt.Errorf("schemas: one %s is of features and the other of records; give the new one a name of its own", old.Name())
	}
	_, err := NewDecoder(old, new)
	return errors.Join(err, checkRolesStay(old, new))
}

// checkRolesStay makes sure that a record says the same of itself under both
// schemas: a role stays on its field, and one added begins at its zero.
func checkRolesStay(old, new *Schema) error {
	var faults []error
	to := pair(old.root, new.root)
	read := map[int]bool{}
	for i, j := range to {
		was := old.root.fields[i]
		is := field{name: was.name}
		if j >= 0 {
			is = new.root.fields[j]
			read[j] = true
		}
		if was.role != is.role {
			faults = append(faults, fmt.Errorf("schemas: field %q: its role was %q and is %q; a role stays on its field", is.name, was.role, is.role))
		}
	}
	for j, f := range new.root.fields {
		isNew := f.role != "" && !read[j] && f.hasDefault
		if isNew && slices.ContainsFunc(f.def, func(b byte) bool { return b != 0 }) {
			faults = append(faults, fmt.Errorf("schemas: field %q: the role %q is new, so its default must be empty, 0 or false, which is what earlier records say", f.name, f.role))
		}
	}
	return errors.Join(faults...)
}

// CheckSame compares two schemas of one fingerprint. The fingerprint covers
// neither roles nor logical types, so two texts may share it and differ in
// what records mean; then the second is refused.
func CheckSame(known, s *Schema) error {
	if known.canonical != s.canonical {
		return fmt.Errorf("schemas: %s has the fingerprint of %s, %s, by accident; rename a field", s.Name(), known.Name(), s.fingerprint)
	}
	return sameMeaning(known, s)
}

func sameMeaning(known, s *Schema) error {
	faults := []error{}
	if known.features != s.features {
		faults = append(faults, fmt.Errorf("schemas: %s is known with another property millrace; rename it", s.Name()))
	}
	for i := range s.root.fields {
		a, b := &known.root.fields[i], &s.root.fields[i]
		if a.role != b.role || logicalTypes(a.typ) != logicalTypes(b.typ) {
			faults = append(faults, fmt.Errorf("schemas: field %q: %s is known with another role or logical type of it; rename the field", b.name, s.Name()))
		}
	}
	return errors.Join(faults...)
}

// logicalTypes renders the logical types at and below a type.
func logicalTypes(n *node) string {
	s := n.logical
	for _, c := range n.children() {
		s += "(" + logicalTypes(c) + ")"
	}
	return s
}
