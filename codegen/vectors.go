package codegen

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/relevance/plan"
)

// vectors writes what is computed of all rows before the loop over them, since
// one call of a batch costs a quarter of as many calls: the decays of ages by
// half-lives that do not change with the record, and look-ups of its strings. The first
// vectors are the similarities.
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

// similarities takes those that change with the record, or else with the entity, from
// the caller.
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

// vector writes the loop that computes value i of all rows into vector n, and
// returns its name.
func (f *function) vector(i, n int) string {
	known := append([]string(nil), f.vars...)
	name := f.names.take(f.want(i))
	text := fmt.Sprintf("%s := k.Vector(%d)[:len(sel)]\n", name, n)
	f.out.WriteString(text + "for i, r := range sel {\n")
	f.share(i)
	fmt.Fprintf(f.out, "%s[i] = %s\n}\n", name, f.expr(i))
	for at, v := range f.vars {
		if v != known[at] {
			delete(f.names, v) // it was the loop's
		}
	}
	f.vars = known
	f.vars[i] = name + "[i]"
	return name
}

// numeric reports whether a value changes with the record and is computed of
// numbers and booleans alone, so that it needs no memory for a row.
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

// want is the name that a value would like to have.
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

// strings writes the look-ups of a record's string, in its column, in a table
// or in a set of the request: the table's own loop makes them side by side.
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
