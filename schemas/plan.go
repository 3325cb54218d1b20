package schemas

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/internal/column"
)

// A plan reads a value of one of the writer's types, front to back, and puts what the
// reader needs of it where the reader needs it. It is flat: the steps for the fields of
// nested records stand among the others. Only unions, arrays and maps have plans of their
// own inside a step.
type plan []step

type op uint8

const (
	opBoolean op = iota + 1
	opInt
	opLong
	opTime // a long that must be a record's time
	opFloat
	opDouble
	opBytes
	opString
	opFixed
	opEnum
	opArray
	opMap
	opUnion
	opNull    // put a null; reads nothing of the body
	opDefault // put a default; reads nothing of the body
	opCopy    // put the value of column n; reads nothing of the body
)

// put is what happens to a value that was read.
type put uint8

const (
	putNothing  put = iota
	putBool         // into column at
	putInt          // into column at
	putDouble       // into column at
	putFloat        // into column at, rounded to a float first
	putString       // into column at
	putDoubles      // the list collected, into column at
	putStrings      // the list collected, into column at
	pushDouble      // onto the list being collected
	pushFloat       // onto the list being collected, rounded to a float first
	pushString      // onto the list being collected
	keepInt         // in slot at of kept.ints
	keepString      // in slot at of kept.texts
	keepStrings     // the list collected, in kept.about
)

// step is one operation of a plan.
type step struct {
	op   op
	put  put
	at   int      // column or slot
	n    int      // bytes of a fixed; number of an enum's symbols; the column to copy
	path string   // of the field, for errors
	syms [][]byte // the reader's symbol for each of the writer's enum symbols
	subs []plan   // one for the items of an array or map, or one for each branch of a union
	def  []byte   // encoded default, which subs[0] reads
}

// compiler builds plans for one pair of writer and reader. Values go into the
// columns of layout, or, if that is nil, into the slots of their field's path.
type compiler struct {
	layout *column.Layout
	slots  map[string]slot // by path
	list   bool            // the values are items of a list that is collected
	seen   *seen
}

func newCompiler() compiler {
	return compiler{seen: &seen{enums: map[pairing][][]byte{}, refused: map[pairing]error{}}}
}

// seen is what the compiler has found out about named types, since a schema may refer to
// the same ones very often.
type seen struct {
	enums   map[pairing][][]byte // see compiler.symbols
	refused map[pairing]error    // records that do not resolve
}

// pairing is a named type of the writer's, and the reader's type that is to read it.
type pairing struct{ w, r *node }

// slot is where a role's value is kept.
type slot struct {
	put put
	at  int
}

// target returns where a value of the reader's type r, at path, goes; r may be nil.
func (c *compiler) target(r *node, path string) (put, int) {
	switch {
	case r == nil:
		return putNothing, 0
	case c.list:
		return listPut(r), 0
	case c.layout == nil:
		return c.slots[path].put, c.slots[path].at
	}
	at := c.layout.Index(path)
	if at < 0 {
		return putNothing, 0
	}
	if r.kind == kindFloat {
		return putFloat, at
	}
	return columnPuts[columnKind(r)], at
}

func listPut(r *node) put {
	switch columnKind(r) {
	case column.String:
		return pushString
	case column.Double:
		if r.kind == kindFloat {
			return pushFloat
		}
	}
	return pushDouble
}

var columnPuts = map[column.Kind]put{
	column.Bool: putBool, column.Int: putInt, column.Time: putInt, column.Double: putDouble, column.String: putString,
	column.Doubles: putDoubles, column.Strings: putStrings,
}

// mismatch says that a reader's type cannot read a writer's.
func mismatch(w, r *node, path, why string) error {
	return fmt.Errorf("schemas: field %q: %s cannot be read as %s%s", path, w.what(), r.what(), why)
}

// resolve appends to p the steps that read a value of the writer's type w and put it as the
// reader's type r. If r is nil the value is only checked.
func (c *compiler) resolve(p plan, w, r *node, path string) (plan, error) {
	switch {
	case w.kind == kindUnion:
		return c.fromUnion(p, w, r, path)
	case r != nil && r.kind == kindUnion:
		return c.toUnion(p, w, r, path)
	}
	if r != nil && !readable(w, r) {
		return nil, mismatch(w, r, path, "")
	}
	switch w.kind {
	case kindNull:
		return p, nil
	case kindRecord:
		if err := c.seen.refused[pairing{w, r}]; err != nil {
			return nil, err
		}
		q, err := c.record(p, w, r, path)
		if err != nil {
			c.seen.refused[pairing{w, r}] = err
		}
		return q, err
	case kindArray, kindMap:
		return c.collection(p, w, r, path)
	case kindEnum:
		return c.enum(p, w, r, path)
	}
	s := step{op: primitiveOps[w.kind], n: w.size, path: path}
	if s.put, s.at = c.target(r, path); s.op == opBytes && r != nil && r.kind == kindString {
		s.op = opString
	}
	return append(p, s), nil
}

var primitiveOps = map[kind]op{
	kindBoolean: opBoolean, kindInt: opInt, kindLong: opLong, kindFloat: opFloat, kindDouble: opDouble,
	kindBytes: opBytes, kindString: opString, kindFixed: opFixed,
}

// promotions gives for each type the other types as which it may be read.
var promotions = map[kind][]kind{
	kindInt:    {kindLong, kindFloat, kindDouble},
	kindLong:   {kindFloat, kindDouble},
	kindFloat:  {kindDouble},
	kindString: {kindBytes},
	kindBytes:  {kindString},
}

// readable reports whether a reader's type may read a writer's, without a look at the types
// within them. Avro's specification lets a reader change milliseconds to microseconds; this
// does not.
func readable(w, r *node) bool {
	if w.logical != "" && r.logical != "" && w.logical != r.logical {
		return false
	}
	if w.kind != r.kind {
		return slices.Contains(promotions[w.kind], r.kind)
	}
	if w.name != "" && shortName(w.name) != shortName(r.name) && !slices.Contains(r.aliases, w.name) {
		return false
	}
	return w.kind != kindFixed || w.size == r.size
}

// fromUnion appends the step that reads a union of the writer's. The reader must be able
// to read every branch, so that no record of an admitted schema can fail later.
func (c *compiler) fromUnion(p plan, w, r *node, path string) (plan, error) {
	s := step{op: opUnion, path: path}
	for _, b := range w.branches {
		sub, err := c.resolve(nil, b, r, path)
		if err != nil {
			return nil, err
		}
		s.subs = append(s.subs, sub)
	}
	return append(p, s), nil
}

// toUnion appends the steps that read a w as one branch of the reader's union: the first
// of the same type, else the first to which w can be promoted.
func (c *compiler) toUnion(p plan, w, r *node, path string) (plan, error) {
	for _, same := range []bool{true, false} {
		for _, b := range r.branches {
			if (w.kind == b.kind) != same || !readable(w, b) {
				continue
			}
			if q, err := c.resolve(p, w, b, path); err == nil {
				if w.kind == kindNull {
					q = c.nulls(q, r, path)
				}
				return q, nil
			}
		}
	}
	return nil, mismatch(w, r, path, "")
}

// nulls appends the steps that make every column at and below a nullable type null.
func (c *compiler) nulls(p plan, r *node, path string) plan {
	t, ok := r.nullable()
	if !ok || c.layout == nil {
		return p
	}
	for _, f := range flatten(nil, t, path, true) {
		if at := c.layout.Index(f.Name); at >= 0 {
			p = append(p, step{op: opNull, at: at, path: f.Name})
		}
	}
	return p
}

func (c *compiler) collection(p plan, w, r *node, path string) (plan, error) {
	s := step{op: opArray, path: path}
	mark := "[]"
	if w.kind == kindMap {
		s.op, mark = opMap, "{}"
	}
	inner := *c
	var items *node
	if r != nil {
		items = r.items
		s.put, s.at = c.target(r, path)
		inner.list = s.put != putNothing
	}
	sub, err := inner.resolve(nil, w.items, items, path+mark)
	if err != nil {
		return nil, err
	}
	s.subs = []plan{sub}
	return append(p, s), nil
}

func (c *compiler) enum(p plan, w, r *node, path string) (plan, error) {
	s := step{op: opEnum, n: len(w.symbols), path: path}
	if r == nil {
		return append(p, s), nil
	}
	var err error
	if s.syms, err = c.symbols(w, r, path); err != nil {
		return nil, err
	}
	s.put, s.at = c.target(r, path)
	return append(p, s), nil
}

// symbols returns for each symbol of w the symbol of r as which it is read: the same one,
// or r's default.
func (c *compiler) symbols(w, r *node, path string) ([][]byte, error) {
	if syms, ok := c.seen.enums[pairing{w, r}]; ok {
		return syms, nil
	}
	known := make(map[string]bool, len(r.symbols))
	for _, symbol := range r.symbols {
		known[symbol] = true
	}
	syms := make([][]byte, len(w.symbols))
	for i, symbol := range w.symbols {
		switch {
		case known[symbol]:
			syms[i] = []byte(symbol)
		case r.fallback >= 0:
			syms[i] = []byte(r.symbols[r.fallback])
		default:
			return nil, mismatch(w, r, path, fmt.Sprintf(", which has no symbol %s and no default", symbol))
		}
	}
	c.seen.enums[pairing{w, r}] = syms
	return syms, nil
}

func (c *compiler) record(p plan, w, r *node, path string) (plan, error) {
	if r == nil {
		r = &node{kind: kindRecord}
	}
	to := pair(w, r)
	var err error
	for i := range w.fields {
		f, at := &w.fields[i], join(path, w.fields[i].name)
		var want *node
		if j := to[i]; j >= 0 {
			want, at = r.fields[j].typ, join(path, r.fields[j].name)
		}
		if p, err = c.resolve(p, f.typ, want, at); err != nil {
			return nil, err
		}
		if f.role == roleTime {
			p[len(p)-1].op = opTime // a role's field is one long, hence one step
		}
	}
	for j := range r.fields {
		if !slices.Contains(to, j) {
			if p, err = c.missing(p, &r.fields[j], join(path, r.fields[j].name)); err != nil {
				return nil, err
			}
		}
	}
	return p, nil
}

// pair returns for each field of w the index of the field of r that reads it,
// by name or else by alias, or -1.
func pair(w, r *node) []int {
	to := make([]int, len(w.fields))
	taken := make([]bool, len(r.fields))
	for i := range w.fields {
		to[i] = slices.IndexFunc(r.fields, func(f field) bool { return f.name == w.fields[i].name })
		if to[i] >= 0 {
			taken[to[i]] = true
		}
	}
	for i := range w.fields {
		if to[i] >= 0 {
			continue
		}
		for j := range r.fields {
			if !taken[j] && slices.Contains(r.fields[j].aliases, w.fields[i].name) {
				to[i], taken[j] = j, true
				break
			}
		}
	}
	return to
}

// missing appends the step that puts the default of a field that the writer does not have.
// It fails if there is no default.
func (c *compiler) missing(p plan, f *field, path string) (plan, error) {
	if !f.hasDefault {
		return nil, fmt.Errorf("schemas: field %q: the writer's schema has no such field, and it has no default; give it one", path)
	}
	if isZero(f.typ, f.def) {
		return p, nil // new rows have it already
	}
	sub, err := c.resolve(nil, f.typ, f.typ, path)
	if err != nil {
		return nil, err
	}
	return append(p, step{op: opDefault, def: f.def, subs: []plan{sub}, path: path}), nil
}

// isZero reports whether an encoded default is the value that columns of a new row have:
// false, 0, or an empty text or list.
func isZero(n *node, def []byte) bool {
	switch n.kind {
	case kindBoolean, kindInt, kindLong, kindFloat, kindDouble, kindString, kindArray:
		return !slices.ContainsFunc(def, func(b byte) bool { return b != 0 })
	}
	return false
}

// weigh returns about how many bytes of memory a plan takes. Plans share tables of symbols:
// it does not count those in met, and adds the others to it.
func (p plan) weigh(met map[*[]byte]bool) (n int) {
	for i := range p {
		s := &p[i]
		n += stepWeight + len(s.path) + len(s.def)
		if len(s.syms) > 0 && !met[&s.syms[0]] {
			met[&s.syms[0]] = true
			n += symbolWeight * len(s.syms)
		}
		for _, sub := range s.subs {
			n += planWeight + sub.weigh(met)
		}
	}
	return n
}
