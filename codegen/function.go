package codegen

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/relevance/plan"
)

// function writes one scoring function: a head that runs once a call, and the
// loop over rows. A value is an operation of the plan, by its index in Values.
type function struct {
	w       *writer
	p       *plan.Plan
	slots   map[int]string    // by value that the request decides, its slot in the arguments
	hoisted map[string]string // by slot, the variable that it is read into
	sets    map[int]string    // by list that the operation In looks into, its set
	uses    []int             // by value, how many others use it
	names   names
	vars    []string // by value, its variable; "": none
	columns []string // by load of a record's field, the variable with its column's words
	objects []string // by load of a field of the object's features, the same
	nullsOf map[loaded]masked
	head    bytes.Buffer
	before  bytes.Buffer // code between head and loop, which computes vectors
	loop    bytes.Buffer
	out     *bytes.Buffer // head, before or loop: the one that is being written
	weights bool          // the code reads w, the weights
	arena   bool          // it makes texts or lists in k.Arena
	entity  bool          // it reads the entity's features
	rows    bool          // it reads the rows' columns
	folded  bool          // it reads folded, the part of the score that is kept with the rows
	temps   int           // how many variables have names of a number alone
	results []*result     // by output
}

// newFunction returns the function of a plan, with the slots of its values and nothing written.
func newFunction(w *writer, p *plan.Plan) *function {
	f := &function{
		w: w, p: p, uses: p.Uses(), names: newNames(), slots: map[int]string{}, hoisted: map[string]string{}, sets: map[int]string{},
		vars: make([]string, len(p.Values)), columns: make([]string, len(p.Record)), objects: make([]string, len(p.Object)), nullsOf: map[loaded]masked{},
	}
	for i, o := range p.Outputs() {
		f.results = append(f.results, f.result(i, o))
	}
	s := p.Slots()
	for _, slot := range []struct {
		name   string
		values []int
	}{{"Numbers", s.Numbers}, {"Bools", s.Bools}, {"Strings", s.Strings}, {"Lists", s.Lists}} {
		for i, v := range slot.values {
			f.slots[v] = fmt.Sprintf("k.%s[%d]", slot.name, i)
		}
	}
	for i, v := range s.Sets {
		f.sets[v] = fmt.Sprintf("k.Sets[%d]", i)
	}
	return f
}

// text returns the body of the function, after emit.
func (f *function) text() string {
	var b strings.Builder
	forest := f.p.Scorer == plan.Trees
	b.WriteString("sel := k.Sel\n")
	switch {
	case f.rows && forest:
		b.WriteString("rows := k.Rows\n")
	case f.rows:
		b.WriteString("rows, out := k.Rows, k.Out[:len(sel)]\n")
	case !forest:
		b.WriteString("out := k.Out[:len(sel)]\n")
	}
	for _, r := range f.results[1:] {
		if r.Scorer != plan.Trees {
			fmt.Fprintf(&b, "%s := %sOut[:len(sel)]\n", r.out, r.args)
		}
	}
	if f.folded {
		b.WriteString("folded := k.Folded\n")
	}
	if f.weights {
		fmt.Fprintf(&b, "w := (*[%d]float64)(k.Weights)\n", f.p.Weights)
	}
	if f.entity {
		b.WriteString("entity := k.Entity\n")
	}
	if bytes.Contains(f.head.Bytes(), []byte("k.EntityArena")) {
		b.WriteString("k.EntityArena.Reset()\n")
	}
	b.Write(f.head.Bytes())
	b.Write(f.before.Bytes())
	if bytes.Contains(f.loop.Bytes(), []byte("[r]")) || bytes.Contains(f.loop.Bytes(), []byte("int(r)")) {
		b.WriteString("for i, r := range sel {\n")
	} else {
		b.WriteString("for i := range sel {\n")
	}
	if f.arena {
		b.WriteString("k.Arena.Reset()\n")
	}
	for _, r := range f.results {
		if r.Scorer == plan.Trees {
			fmt.Fprintf(&b, "%s := %sMatrix[i/compute.MatrixBlock*%sStride+i%%compute.MatrixBlock:]\n", r.x, r.args, r.args)
		}
	}
	b.Write(f.loop.Bytes())
	b.WriteString("}\n")
	return b.String()
}

// slot returns the variable of a value that the request decides. The head sets it.
func (f *function) slot(i int) string {
	text := f.slots[i]
	if f.hoisted[text] == "" {
		name := f.names.take(map[plan.Kind]string{plan.Number: "number", plan.Bool: "flag", plan.String: "text", plan.Numbers: "list"}[f.p.Values[i].Kind] + strings.Trim(text[strings.Index(text, "["):], "[]"))
		f.hoisted[text] = name
		fmt.Fprintf(&f.head, "%s := %s\n", name, text)
	}
	return f.hoisted[text]
}

// emit writes the head, the vectors and the loop. text puts them together.
func (f *function) emit() {
	f.out = &f.head
	f.similarities(plan.Entity)
	f.entityValues()
	f.vectors()
	f.out = &f.loop
	f.outputs()
}

// comment returns an expression on one line. It replaces two single quotes, which gofmt would
// turn into one curly quote in a doc comment.
func comment(source string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(source), " "), "''", `""`)
}

// entityValues writes code for the head that computes values which depend on the entity and
// not on the record, so that they are computed once a call.
func (f *function) entityValues() {
	used := make([]bool, len(f.p.Values))
	mark := func(i int) {
		if d := f.p.Values[i].Deps; d&plan.Entity != 0 && d&plan.Record == 0 {
			used[i] = true
		}
	}
	for i := range f.p.Values {
		if f.p.Values[i].Deps&plan.Record == 0 || f.p.Similar(i) {
			continue
		}
		for _, a := range f.p.Values[i].Args {
			mark(a)
		}
	}
	for _, o := range f.p.Outputs() {
		if o.Score >= 0 {
			mark(o.Score)
			continue
		}
		for _, t := range o.Terms {
			mark(t.Value)
		}
	}
	for i := range used {
		if used[i] {
			f.share(i)
			f.name(i)
		}
	}
}

// share gives variables to the values that value i is computed from, if they are used more
// than once or take a statement of their own.
func (f *function) share(i int) {
	v := &f.p.Values[i]
	if f.done(i) {
		return
	}
	for _, a := range v.Args {
		if f.p.Direct(i) && a == v.Args[0] {
			f.column(f.p.Values[a].Index)
			continue
		}
		f.share(a)
		b := &f.p.Values[a]
		if f.done(a) {
			continue
		}
		if f.uses[a] > 1 || b.Op == plan.Field || b.Op == plan.EntField || b.Op == plan.ObjField || b.Op == plan.Text || b.Op == plan.Cross {
			f.name(a)
		}
	}
	if v.Op == plan.HasField {
		f.nulls(v.Index)
	}
	if v.Op == plan.HasObj {
		f.objectNulls(v.Index)
	}
	if v.Op == plan.Field || v.Op == plan.EntField || v.Op == plan.ObjField {
		f.name(i)
	}
}

// done reports whether a value needs no code that computes it: it has a variable, is a
// constant, or is in the arguments.
func (f *function) done(i int) bool {
	v := &f.p.Values[i]
	return f.vars[i] != "" || v.Op == plan.Const || v.Op == plan.Folded || v.Deps&(plan.Record|plan.Entity) == 0
}

// name writes code that computes a value into a variable.
func (f *function) name(i int) {
	if f.vars[i] != "" {
		return
	}
	v := &f.p.Values[i]
	switch v.Op {
	case plan.Field:
		f.load(i)
		return
	case plan.EntField:
		f.loadEntity(i)
		return
	case plan.ObjField:
		f.loadObject(i)
		return
	}
	text := f.expr(i)
	f.vars[i] = f.names.take(f.want(i))
	fmt.Fprintf(f.out, "%s := %s\n", f.vars[i], text)
}

// column returns the variable with the words of a record's field, for all rows. The head sets
// it.
func (f *function) column(load int) string {
	f.rows = true
	if f.columns[load] == "" {
		l := f.p.Record[load]
		f.columns[load] = f.names.take(camel(l.Name, false) + "Column")
		fmt.Fprintf(&f.head, "%s := rows.Column(k.Columns[%d])\n", f.columns[load], load)
	}
	return f.columns[load]
}

// loaded is a load of the plan: of a record's field, or of a field of its object's features.
type loaded struct {
	object bool
	load   int
}

// masked is two variables that say where a load is null: a slice with a word for each row,
// and the load's bit in such a word.
type masked struct{ words, bit string }

// nulls returns an expression that is not 0 if a record's field is null in row r.
func (f *function) nulls(load int) string {
	f.rows = true
	return f.masked(loaded{load: load}, camel(f.p.Record[load].Name, false), fmt.Sprintf("rows.Nulls(k.Columns[%d])", load))
}

// masked returns an expression that is not 0 if a load is null in row r. The head sets its
// two variables, once for each load; they are kept by load, since the names of several
// loads may be equal in camel case.
func (f *function) masked(of loaded, name, source string) string {
	m, made := f.nullsOf[of]
	if !made {
		m = masked{f.names.take(name + "Nulls"), f.names.take(name + "Null")}
		f.nullsOf[of] = m
		fmt.Fprintf(&f.head, "%s, %s := %s\n", m.words, m.bit, source)
	}
	return fmt.Sprintf("%s[r]&%s", m.words, m.bit)
}

// load writes code that reads a field of the record into a variable.
func (f *function) load(i int) {
	v := &f.p.Values[i]
	l := f.p.Record[v.Index]
	name := f.names.take(camel(l.Name, false))
	f.vars[i], f.rows = name, true
	switch v.Kind {
	case plan.String:
		fmt.Fprintf(f.out, "%s := rows.StringAt(k.Columns[%d], int(r))\n", name, v.Index)
	case plan.Numbers, plan.Strings:
		if f.p.Picked(i) {
			fmt.Fprintf(f.out, "%s := rows.ListAt(k.Columns[%d], int(r))\n", name, v.Index)
			return
		}
		f.arena = true
		fmt.Fprintf(f.out, "%s := k.Arena.%s(rows, k.Columns[%d], int(r))\n", name, listKind(v.Kind), v.Index)
	case plan.Bool:
		fmt.Fprintf(f.out, "%s := %s[r] != 0\n", name, f.column(v.Index))
	default:
		read := f.number(l.Kind, f.column(v.Index)+"[r]")
		if !l.Nullable {
			fmt.Fprintf(f.out, "%s := %s\n", name, read)
			return
		}
		fmt.Fprintf(f.out, "%s := compute.Missing\nif %s == 0 {\n%s = %s\n}\n", name, f.nulls(v.Index), name, read)
	}
}

// loadEntity writes code that reads a field of the entity's features into a variable.
func (f *function) loadEntity(i int) {
	v := &f.p.Values[i]
	l := f.p.Entity[v.Index]
	name := f.names.take(camel(l.Name, false))
	f.vars[i], f.entity = name, true
	c := fmt.Sprintf("k.EntCols[%d]", v.Index)
	guard := "entity != nil"
	if l.Nullable {
		guard += fmt.Sprintf(" && !entity.Null(%s, 0)", c)
	}
	zero, read := "", ""
	switch v.Kind {
	case plan.String:
		zero, read = "var "+name+" string", fmt.Sprintf("entity.StringAt(%s, 0)", c)
	case plan.Numbers:
		zero, read = "var "+name+" []float64", fmt.Sprintf("k.EntityArena.Numbers(entity, %s, 0)", c)
	case plan.Strings:
		zero, read = "var "+name+" []string", fmt.Sprintf("k.EntityArena.Strings(entity, %s, 0)", c)
	case plan.Bool:
		zero, read = name+" := false", fmt.Sprintf("entity.Word(%s, 0) != 0", c)
	default:
		zero, read = name+" := compute.Missing", f.number(l.Kind, fmt.Sprintf("entity.Word(%s, 0)", c))
	}
	fmt.Fprintf(f.out, "%s\nif %s {\n%s = %s\n}\n", zero, guard, name, read)
}

// listKind returns the name of the arena's method that reads a list of a kind.
func listKind(k plan.Kind) string {
	if k == plan.Numbers {
		return "Numbers"
	}
	return "Strings"
}

// number returns an expression for the number that a column's word holds.
func (f *function) number(k column.Kind, word string) string {
	if k == column.Double {
		f.w.imports["math"] = true
		return "math.Float64frombits(" + word + ")"
	}
	return "float64(int64(" + word + "))"
}
