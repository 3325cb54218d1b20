package filter

import (
	"github.com/millrace/millrace/internal/expr"
)

// state says whether a value is present, null, or one of two kinds of error.
type state uint8

const (
	present state = iota
	null
	// unfit is an error: an operand is null, or of a type that the operation
	// does not take.
	unfit
	// failed is an error: int overflow, division by zero.
	failed
)

// isError reports whether a value is an error, so that any operation on it is one.
func (s state) isError() bool { return s >= unfit }

// vector is the values of a node, one for each row of a batch, in its order. That of a
// constant may have more values than the batch has rows.
type vector struct {
	words   []uint64 // bools, ints, doubles, times and durations; for columns of lists and strings the words of the slab
	strings []string // only for strings
	states  []state  // where a state is not present, the word and the string mean nothing
}

// kernel computes a node's values for the rows of a batch. The vector belongs
// to the kernel and is valid until its next eval.
type kernel interface {
	kind() expr.Type
	eval(b *batch) *vector
}

// out is what every kernel has: its type, and its vector.
type out struct {
	typ expr.Type
	vector
}

func (o *out) kind() expr.Type { return o.typ }

// begin makes room for n values, all present.
func (o *out) begin(n int) {
	if cap(o.words) < n {
		room := max(n, 64)
		if n == 1 { // fold computes one value
			room = 1
		}
		o.words, o.states = make([]uint64, room), make([]state, room)
		if o.typ == expr.String {
			o.strings = make([]string, room)
		}
	}
	o.words, o.states = o.words[:n], o.states[:n]
	if o.typ == expr.String {
		o.strings = o.strings[:n]
	}
	clear(o.states)
}

// constant is the same value for every row.
type constant struct {
	out
	word    uint64 // of a bool, int, double, time or duration
	text    string // of a string
	state   state
	doubles []float64 // of a list of numbers
	list    []string  // of a list of strings
}

func (c *constant) eval(b *batch) *vector {
	n := len(b.sel)
	if len(c.states) >= n {
		return &c.vector
	}
	c.begin(n)
	for i := range c.states {
		c.words[i], c.states[i] = c.word, c.state
		if c.typ == expr.String {
			c.strings[i] = c.text
		}
	}
	return &c.vector
}

// field loads a column of the record.
type field struct {
	out
	index    int
	nullable bool
}

func (f *field) eval(b *batch) *vector {
	f.begin(len(b.sel))
	col := b.rows.Column(f.index)
	for i, r := range b.sel {
		f.words[i] = col[r]
	}
	if f.nullable {
		nulls, bit := b.rows.Nulls(f.index)
		for i, r := range b.sel {
			if nulls[r]&bit != 0 {
				f.states[i] = null
			}
		}
	}
	if f.typ == expr.String {
		for i, r := range b.sel {
			f.strings[i] = b.rows.StringAt(f.index, int(r))
		}
	}
	return &f.vector
}

// entityField is a column of the entity's one row.
type entityField struct {
	out
	index int
}

func (f *entityField) eval(b *batch) *vector {
	f.begin(len(b.sel))
	if b.entity == nil || b.entity.Len() == 0 || b.entity.Null(f.index, 0) {
		fill(f.states, null)
		return &f.vector
	}
	fill(f.words, b.entity.Word(f.index, 0))
	if f.typ == expr.String {
		fill(f.strings, b.entity.StringAt(f.index, 0))
	}
	return &f.vector
}

func fill[T any](dst []T, v T) {
	for i := range dst {
		dst[i] = v
	}
}

// misfit is an operation whose operands have types that it does not take, which only
// binding shows: an operand is a value of the viewer, or a null without a type. Each row is
// unfit, or has the error of its first operand with one.
type misfit struct {
	out
	args []kernel
}

func (m *misfit) eval(b *batch) *vector {
	m.begin(len(b.sel))
	fill(m.states, unfit)
	for a := len(m.args) - 1; a >= 0; a-- { // backwards, so that the first error stays
		for i, s := range m.args[a].eval(b).states[:len(b.sel)] {
			if s.isError() {
				m.states[i] = s
			}
		}
	}
	return &m.vector
}
