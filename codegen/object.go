package codegen

import (
	"fmt"

	"github.com/millrace/millrace/relevance/plan"
)

// loadObject writes code that reads a field of the features of the record's object into a
// variable. If the features are not known, each field is null, and its word (the 64 bits of a row
// in a column) is 0, so that a boolean reads false.
func (f *function) loadObject(i int) {
	v := &f.p.Values[i]
	l := f.p.Object[v.Index]
	name := f.names.take(camel("object_"+l.Name, false))
	f.vars[i] = name
	switch v.Kind {
	case plan.String:
		fmt.Fprintf(f.out, "%s := k.Objects.StringAt(%d, int(r))\n", name, l.Column)
	case plan.Numbers, plan.Strings:
		f.arena = true
		fmt.Fprintf(f.out, "%s := k.Arena.%s(k.Objects, %d, int(r))\n", name, listKind(v.Kind), l.Column)
	case plan.Bool:
		fmt.Fprintf(f.out, "%s := %s[r] != 0\n", name, f.objectColumn(v.Index))
	default:
		read := f.number(l.Kind, f.objectColumn(v.Index)+"[r]")
		fmt.Fprintf(f.out, "%s := compute.Missing\nif %s == 0 {\n%s = %s\n}\n", name, f.objectNulls(v.Index), name, read)
	}
}

// objectColumn returns the variable with the words of a field, for all rows. The code that
// sets it stands before the loop, once.
func (f *function) objectColumn(load int) string {
	if f.objects[load] == "" {
		l := f.p.Object[load]
		f.objects[load] = f.names.take(camel("object_"+l.Name, false) + "Column")
		fmt.Fprintf(&f.head, "%s := k.Objects.Column(%d)\n", f.objects[load], l.Column)
	}
	return f.objects[load]
}

// objectNulls returns an expression that is not 0 if a field of the object's features is null
// in row r.
func (f *function) objectNulls(load int) string {
	l := f.p.Object[load]
	return f.masked(loaded{true, load}, camel("object_"+l.Name, false), fmt.Sprintf("k.Objects.Nulls(%d)", l.Column))
}
