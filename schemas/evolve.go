package schemas

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/column"
)

// Change is what a new schema of a family changes in a field that filters and models read.
type Change struct {
	Features bool   // the field is one of features, not of records
	Field    string // dotted path
	What     What
	Detail   string // a clause, such as: read its default
}

// What is the kind of a [Change].
type What string

// The kinds of changes.
const (
	Added   What = "adds"
	Renamed What = "renames" // the new schema's records have the field under both names
	Widened What = "widens"  // the field is a number of a larger type from now on
	Differs What = "changes" // the new schema's records may hold other values than those before
	Dropped What = "drops"   // the new schema's records read a default, or null
	Retyped What = "retypes" // the new schema's records read null
	Clashes What = "clashes" // a schema of another name has the field with another type: filters read null in the new schema's records
)

// Loses reports whether records of the new schema lack the field, or hold it with a type
// that cannot be read.
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

// AppendChanges appends to changes what a new schema changes in the columns of its family,
// and in the types of fields. f is the family without the schema, and next the family with
// it, as its last. It leaves out a change of type of a field that changes already has.
func (f *Family) AppendChanges(changes []Change, next *Family) []Change {
	last, add := f.schemas[len(f.schemas)-1], next.schemas[len(next.schemas)-1]
	for _, c := range next.layout.Fields() {
		if c, ok := change(next, last, add, c); ok {
			changes = append(changes, c)
		}
	}
	told := changes
	for _, c := range differences(add.features, "", last.root, add.root) {
		if !slices.ContainsFunc(told, func(t Change) bool { return t.Field == c.Field }) {
			changes = append(changes, c)
		}
	}
	return changes
}

// differences compares a type that two schemas have at a path, and the fields below it that
// both have. It compares fields with and without a column.
func differences(features bool, path string, was, is *node) (all []Change) {
	tell := func(what What, detail string) { all = append(all, Change{features, path, what, detail}) }
	was, null := bare(was)
	is, nulls := bare(is)
	if nulls && !null { // what was null before may still be, or the schema is refused
		tell(Differs, "it may be null from now on")
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

// bare returns a type without null, and whether it may be null. A union of null and several
// others it returns as it is.
func bare(n *node) (*node, bool) {
	if t, ok := n.nullable(); ok {
		return t, true
	}
	return n, slices.ContainsFunc(n.branches, func(b *node) bool { return b.kind == kindNull })
}

// without returns the symbols that are not among others.
func without(symbols, others []string) []string {
	return slices.DeleteFunc(slices.Clone(symbols), func(s string) bool { return slices.Contains(others, s) })
}

func number(k kind) bool {
	return k == kindInt || k == kindLong || k == kindFloat || k == kindDouble
}

// change returns what the schema add changes in a column of the family now, compared with
// the schema last before it. ok is false if that is nothing.
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
		return c, false // the last schema did not have it either
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

// isWithin reports whether path is the path of, or a path below that.
func isWithin(path, of string) bool { return path == of || strings.HasPrefix(path, of+".") }

// has reports whether a schema of the family other than last has a column.
func (f *Family) has(last *Schema, name string) bool {
	return slices.ContainsFunc(f.schemas, func(s *Schema) bool { return s != last && s.layout.Index(name) >= 0 })
}

// CheckEvolution returns why records of old could not be read under new, and every role
// that is not on the field where it was; nil if all is well.
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

// checkRolesStay returns an error for roles by which a record would have another id, time
// and so on under the two schemas. A role must stay on its field. The field of a role that
// is new must have an empty default, 0 or false.
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

// CheckSame returns an error if two schemas with the same fingerprint differ in what
// records mean: known is admitted already, and s must not be. The fingerprint covers
// neither roles nor logical types.
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

// logicalTypes returns the logical types at and below a type as a text to compare.
func logicalTypes(n *node) string {
	s := n.logical
	for _, c := range n.children() {
		s += "(" + logicalTypes(c) + ")"
	}
	return s
}
