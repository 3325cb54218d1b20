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

// Changes tells what a schema would change if it were admitted: of the fields
// that the schema admitted last of its name has and of their types, and of those
// for which another name decides the type. It is empty for a schema that is known. The error is
// the [*RefusedError] of [Registry.Admit].
func (s *Snapshot) Changes(add *Schema) ([]Change, error) {
	next, err := s.after(add)
	if err != nil || next == s {
		return nil, err
	}
	changes := elsewhere(s, add.Name(), add.features, add.layout)
	before := s.Family(add.Name())
	if before == nil {
		return changes, nil
	}
	last, now := before.schemas[len(before.schemas)-1], next.Family(add.Name())
	for _, f := range now.layout.Fields() {
		if f.Name == BodyColumn || f.Name == SchemaColumn {
			continue
		}
		if c, ok := change(now, last, add, f); ok {
			changes = append(changes, c)
		}
	}
	for _, c := range differences(add.features, "", last.root, add.root) {
		if !slices.ContainsFunc(changes, func(told Change) bool { return told.Field == c.Field }) {
			changes = append(changes, c)
		}
	}
	return changes, nil
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

// elsewhere returns the fields of a layout to which another name has given
// another type, or that widen one.
func elsewhere(s *Snapshot, name string, features bool, layout *column.Layout) (changes []Change) {
	for _, f := range layout.Fields() {
		if f.Name == BodyColumn || f.Name == SchemaColumn {
			continue
		}
		for _, family := range s.Families() {
			at := family.layout.Index(f.Name)
			if family.name == name || family.Features() != features || at < 0 {
				continue
			}
			c := Change{Features: features, Field: f.Name}
			number := func(k column.Kind) bool { return k == column.Int || k == column.Double }
			switch first := family.layout.Fields()[at].Kind; {
			case first == f.Kind, first == column.Double && f.Kind == column.Int:
			case number(first) && number(f.Kind):
				c.What, c.Detail = Widened, fmt.Sprintf("it is an int in %s, and filters read it as a double", family.name)
				changes = append(changes, c)
			default:
				c.What, c.Detail = Clashes, fmt.Sprintf("it is %s, and %s in %s, which came first, so that filters read null in records of %s", f.Kind, first, family.name, name)
				changes = append(changes, c)
			}
			break
		}
	}
	return changes
}

// Disagreements returns the fields that filters read null in the records of one
// name, because a name admitted before gave them another type.
func (s *Snapshot) Disagreements() (all []Change) {
	before := &Snapshot{families: map[string]*Family{}}
	for _, f := range s.Families() {
		all = append(all, slices.DeleteFunc(elsewhere(before, f.name, f.Features(), f.layout), func(c Change) bool { return c.What != Clashes })...)
		before.names, before.families[f.name] = append(before.names, f.name), f
	}
	return all
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
