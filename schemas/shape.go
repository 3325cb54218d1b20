package schemas

import (
	"slices"
	"strings"
)

// shaper makes the plans that read the bodies of a family's writers into its
// columns. A plan sets each column once, to a value or a null, except that copies
// come at its end, also over the null or the default of a record that the writer lacks. It
// does not set a column whose value is the zero that new rows have.
type shaper struct {
	root     *place
	places   []*place            // by column
	defaults map[string]*field   // by path: the first field there with a default
	links    map[string][]string // by path: the paths that an alias links to it, both ways
	nulls    []bool              // by column: some writer's records are null there
	copies   []copied            // of all plans so far
	writer   *node               // of the plan being made
	wanted   []copied            // copies that this plan makes at its end
}

// copied says that a column gets the value of another column.
type copied struct{ from, to int }

// maxLinks bounds the names that aliases give one field.
const maxLinks = 64

// learn notes the defaults and aliases of the fields of a record at path. By its aliases
// the record is at the paths in alternatives, too; these include path.
func (sh *shaper) learn(n *node, path string, alternatives []string) {
	for i := range n.fields {
		f := &n.fields[i]
		at := join(path, f.name)
		var names []string
		for _, parent := range alternatives {
			names = append(names, join(parent, f.name))
			for _, a := range f.aliases {
				if !slices.ContainsFunc(n.fields, func(other field) bool { return other.name == a }) {
					names = append(names, join(parent, a))
				}
			}
		}
		names = names[:min(len(names), maxLinks)]
		for _, name := range names {
			if name != at {
				sh.link(at, name)
				sh.link(name, at)
			}
		}
		if f.hasDefault && sh.defaults[at] == nil {
			sh.defaults[at] = f
		}
		t := f.typ
		if u, ok := t.nullable(); ok {
			t = u
		}
		if t.kind == kindRecord {
			sh.learn(t, at, names)
		}
	}
}

func (sh *shaper) link(from, to string) {
	if !slices.Contains(sh.links[from], to) {
		sh.links[from] = append(sh.links[from], to)
	}
}

// plan returns the plan of a writer.
func (sh *shaper) plan(writer *node) plan {
	sh.writer, sh.wanted = writer, nil
	p := sh.record(nil, writer, sh.root)
	for _, c := range sh.wanted {
		p = append(p, step{op: opCopy, at: c.to, n: c.from})
	}
	sh.copies = append(sh.copies, sh.wanted...)
	return p
}

// nullable returns which columns may be null, once all plans are made: a copy of a column
// that may be null may be null, too.
func (sh *shaper) nullable() []bool {
	for more := true; more; {
		more = false
		for _, c := range sh.copies {
			if sh.nulls[c.from] && !sh.nulls[c.to] {
				sh.nulls[c.to], more = true, true
			}
		}
	}
	return sh.nulls
}

// null appends the steps that make every column at and below a place null.
func (sh *shaper) null(p plan, at *place) plan {
	at.each(func(c *place) { p = sh.nullOne(p, c) })
	return p
}

// nullOne appends the step that makes the column of a place itself null, if it has one.
func (sh *shaper) nullOne(p plan, c *place) plan {
	if c == nil || c.column < 0 {
		return p
	}
	sh.nulls[c.column] = true
	return append(p, step{op: opNull, at: c.column, path: c.path})
}

// value appends the steps that read a value of type w. They set every column at and below
// its place. If at is nil there is no column, and the value is only checked.
func (sh *shaper) value(p plan, w *node, at *place, path string) plan {
	switch w.kind {
	case kindNull:
		return sh.null(p, at)
	case kindRecord:
		return sh.record(sh.nullOne(p, at), w, within(at, path))
	case kindUnion:
		s := step{op: opUnion, path: path}
		for _, b := range w.branches {
			s.subs = append(s.subs, sh.value(nil, b, at, path))
		}
		return append(p, s)
	}
	return sh.leaf(p, w, at, path)
}

// within returns the place of a record. If that is nil it returns one without columns.
func within(at *place, path string) *place {
	if at != nil {
		return at
	}
	return &place{path: path, column: -1}
}

// leaf appends the steps that read a value that is no record, union or null.
func (sh *shaper) leaf(p plan, w *node, at *place, path string) plan {
	s := step{op: primitiveOps[w.kind], n: w.size, path: path}
	kind := columnKind(w)
	held := at != nil && at.column >= 0 && takes(at.kind, kind)
	if held {
		s.put, s.at = columnPuts[at.kind], at.column
	}
	switch w.kind {
	case kindEnum:
		s.op, s.n = opEnum, len(w.symbols)
		for _, symbol := range w.symbols {
			s.syms = append(s.syms, []byte(symbol))
		}
	case kindArray, kindMap:
		s.op = opArray
		if w.kind == kindMap {
			s.op = opMap
		}
		s.subs = []plan{itemPlan(w, held, path)}
	}
	p = append(p, s)
	if at == nil {
		return p
	}
	if !held {
		p = sh.nullOne(p, at)
	}
	for _, k := range at.kids {
		p = sh.null(p, k)
	}
	return p
}

// itemPlan returns the plan that reads an item of a list or map. With collect, for a list
// that has a column, it collects the item.
func itemPlan(w *node, collect bool, path string) plan {
	c, mark, reader := newCompiler(), "[]", (*node)(nil)
	if w.kind == kindMap {
		mark = "{}"
	}
	if collect {
		c.list, reader = true, w.items
	}
	p, err := c.resolve(nil, w.items, reader, path+mark)
	if err != nil {
		panic("schemas: a type cannot read itself: " + err.Error())
	}
	return p
}

// record appends the steps that read a record's fields, and then those for the columns of
// the family that the record does not have.
func (sh *shaper) record(p plan, w *node, at *place) plan {
	for i := range w.fields {
		f := &w.fields[i]
		first := len(p)
		p = sh.value(p, f.typ, at.kid(f.name), join(at.path, f.name))
		if f.role == roleTime && at == sh.root {
			p[first].op = opTime // a role's field is one long
		}
	}
	for _, k := range at.kids {
		if !slices.ContainsFunc(w.fields, func(f field) bool { return join(at.path, f.name) == k.path }) {
			p = sh.absent(p, k)
		}
	}
	return p
}

// absent appends the steps for the columns at and below a place for which the record has
// no field: by an alias, by a default, or null.
func (sh *shaper) absent(p plan, at *place) plan {
	linked := 0
	columns := 0
	at.each(func(c *place) {
		columns++
		if from := sh.linked(c); from != nil {
			sh.want(copied{from.column, c.column})
			linked++
		}
	})
	f := sh.defaults[at.path]
	switch {
	case linked == columns:
		return p
	case f == nil:
		return sh.null(p, at)
	case columns == 1 && at.column >= 0 && isZero(f.typ, f.def) && takes(at.kind, columnKind(f.typ)):
		return p // new rows have it already
	}
	return append(p, step{op: opDefault, def: f.def, subs: []plan{sh.value(nil, f.typ, at, at.path)}, path: at.path})
}

// want has the plan copy a column at its end.
func (sh *shaper) want(c copied) {
	if !slices.Contains(sh.wanted, c) {
		sh.wanted = append(sh.wanted, c)
	}
}

// linked returns the place of a field of the writer that aliases link to a column, over
// other names if need be. Of several it returns the one over the fewest names. It is nil if
// there is none whose type the column can hold.
func (sh *shaper) linked(c *place) *place {
	met := map[string]bool{c.path: true}
	for near := []string{c.path}; len(near) > 0; {
		var next []string
		for _, name := range near {
			for _, to := range sh.links[name] {
				if met[to] {
					continue
				}
				met[to] = true
				next = append(next, to)
				if n, ok := nodeAt(sh.writer, to); !ok || !takes(c.kind, columnKind(n)) {
					continue
				}
				if from := sh.root.find(to); from != nil && from.column >= 0 && takes(c.kind, from.kind) {
					return from
				}
			}
		}
		near = next
	}
	return nil
}

// find returns the place of a path, or nil.
func (p *place) find(path string) *place {
	for name := range strings.SplitSeq(path, ".") {
		if p = p.kid(name); p == nil {
			return nil
		}
	}
	return p
}
