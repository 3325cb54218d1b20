package codegen

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/relevance/plan"
)

// vectors writes what is computed for all rows before the loop over them: decays of ages by
// half-lives that do not depend on the record, and look-ups of the record's strings. A vector
// is memory of the caller for one number of each selected row, known by its index n. One call
// for a batch of rows costs a quarter of a call for each row. The first vectors are the
// similarities of lists, such as dot products (see plan.Plan.Similarities), which the caller
// of the function computes.
func (f *function) vectors() {
	f.out = &f.before
	n := 0
	f.similarities(plan.Record)
	n += len(f.p.Similarities())
	for i := range f.p.Values {
		v := &f.p.Values[i]
		if (v.Op == plan.In || v.Op == plan.Lookup) && f.p.Direct(i) {
			f.strings(i, n)
			n++
			continue
		}
		if v.Op != plan.Call || v.Name != "decay" || f.p.Values[v.Args[1]].Deps&plan.Record != 0 || !f.numeric(v.Args[0]) {
			continue
		}
		half := f.expr(v.Args[1])
		ages, ok := strings.CutSuffix(f.vars[v.Args[0]], "[i]")
		if !ok {
			ages = f.vector(v.Args[0], n)
			n++
		}
		name := f.names.take(f.want(i))
		fmt.Fprintf(f.out, "%s := k.Decays(%d, %s, %s)[:len(sel)]\n", name, n, ages, half)
		f.vars[i] = name + "[i]"
		n++
	}
}

// similarities writes code that takes similarities from the vectors that the caller computed:
// those that depend on the record if of is plan.Record, else the others.
func (f *function) similarities(of plan.Deps) {
	said := false
	for n, s := range f.p.Similarities() {
		if f.p.Values[s.Value].Deps&plan.Record != of&plan.Record {
			continue
		}
		if !said {
			f.out.WriteString("\n// The caller has computed this, over lists where they stand.\n")
			said = true
		}
		if name := f.names.take(f.want(s.Value)); of == plan.Record {
			fmt.Fprintf(f.out, "%s := k.Vector(%d)[:len(sel)]\n", name, n)
			f.vars[s.Value] = name + "[i]"
		} else {
			fmt.Fprintf(f.out, "%s := k.Vector(%d)[0]\n", name, n)
			f.vars[s.Value] = name
		}
	}
}

// vector writes the loop that computes value i for all rows into vector n, and returns the
// vector's variable.
func (f *function) vector(i, n int) string {
	known := append([]string(nil), f.vars...)
	name := f.names.take(f.want(i))
	text := fmt.Sprintf("%s := k.Vector(%d)[:len(sel)]\n", name, n)
	f.out.WriteString(text + "for i, r := range sel {\n")
	f.share(i)
	fmt.Fprintf(f.out, "%s[i] = %s\n}\n", name, f.expr(i))
	for at, v := range f.vars {
		if v != known[at] {
			delete(f.names, v) // its scope was the loop, so the name is free again
		}
	}
	f.vars = known
	f.vars[i] = name + "[i]"
	return name
}

// numeric reports whether a value depends on the record and is computed from numbers and
// booleans alone, so that no row needs memory for a text or a list.
func (f *function) numeric(i int) bool {
	v := &f.p.Values[i]
	if v.Deps&plan.Record == 0 || v.Kind != plan.Number && v.Kind != plan.Bool {
		return false
	}
	if f.p.Similar(i) {
		return true
	}
	for _, a := range v.Args {
		if b := &f.p.Values[a]; b.Deps&plan.Record != 0 && !f.numeric(a) || b.Kind == plan.Strings {
			return false
		}
	}
	return true
}

// want returns the preferred name of a value's variable: of its feature, of its operation, or
// t and a number.
func (f *function) want(i int) string {
	for _, o := range f.p.Outputs() {
		for _, t := range o.Terms {
			if t.Value == i {
				return camel(t.Feature, false)
			}
		}
	}
	if v := &f.p.Values[i]; v.Op == plan.Call && (v.Name == "age" || v.Name == "decay" || f.p.Similar(i)) {
		return v.Name
	}
	f.temps++
	return fmt.Sprintf("t%d", f.temps)
}

// strings writes value i, which looks up a record's string in a table or in a set of the
// request, as one call for all rows into vector n. The call reads the string's column.
func (f *function) strings(i, n int) {
	v := &f.p.Values[i]
	field := f.p.Values[v.Args[0]].Index
	column := f.column(field)
	if v.Op == plan.In {
		name := f.names.take(camel(f.p.Record[field].Name, false) + "In")
		fmt.Fprintf(f.out, "%s := k.In(%d, %s, %s)[:len(sel)]\n", name, n, f.sets[v.Args[1]], column)
		f.vars[i] = name + "[i]"
		return
	}
	name := f.names.take(camel(f.p.Record[field].Name, false) + "Value")
	fmt.Fprintf(f.out, "%s := k.Lookup(%d, k.Tables[%d], %s)[:len(sel)]\n", name, n, v.Index, column)
	f.vars[i] = name + "[i]"
}
