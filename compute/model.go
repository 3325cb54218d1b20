package compute

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/millrace/millrace/internal/column"
)

// ModelArgs are the inputs and outputs of a generated function. The function may use them
// as it likes until it returns.
type ModelArgs struct {
	Rows    *column.Slab
	Sel     []int32      // indexes in Rows of the rows to score
	Entity  *column.Slab // one row: the features of the entity; nil if there are none
	Objects *column.Slab // a row for each of Rows: the features of its object
	Folded  []float64    // for each of Rows, the part of its score that depends on the record alone, which the caller has computed
	Columns []int        // indexes of the columns of Rows that the function reads, in the order of its plan
	EntCols []int        // indexes of the columns of Entity that the function reads, in the order of its plan
	Weights []float64    // the model's parameters that are numbers; Weights[0] is the bias
	Tables  []*Table     // its parameters that are tables, then the tables written in its expressions

	// Values that the request alone decides. They are computed once for the request.
	Numbers []float64
	Bools   []bool
	Strings []string
	Lists   [][]float64
	Sets    []*Table

	Output          // the output of the model
	More   []Output // the outputs of the other models, if the function scores by several at once

	Arena       Arena // memory for the texts and lists of a row
	EntityArena Arena // memory for the texts and lists of the entity

	vectors []vector
}

// vector is memory for a number or a bool for each of ModelArgs.Sel.
type vector struct {
	numbers []float64
	bools   []bool
	ages    *float64 // the first of the ages of which numbers are the Decays; nil: numbers are no Decays
	half    uint64   // the bits of the half-life of these Decays
}

// Vector returns the nth vector of the function: memory for one number for each row of
// Sel. If the model compares lists, the caller fills the first vectors before the call.
// Each of these holds how similar each row's list is to a list of the request. For a list
// of the entity it holds one similarity, as its first number.
func (k *ModelArgs) Vector(n int) []float64 {
	v := k.vector(n)
	if len(v.numbers) < len(k.Sel) {
		v.numbers = make([]float64, max(len(k.Sel), MatrixRows))
	}
	return v.numbers[:len(k.Sel)]
}

// vector returns the nth vector. It makes those that do not exist yet.
func (k *ModelArgs) vector(n int) *vector {
	for len(k.vectors) <= n {
		k.vectors = append(k.vectors, vector{})
	}
	return &k.vectors[n]
}

// Lookup looks up the string of each row of Sel in a table, and returns the values in
// vector n. words is the column of these strings.
func (k *ModelArgs) Lookup(n int, t *Table, words []uint64) []float64 {
	dst := k.Vector(n)
	t.words(dst, k.Rows, words, k.Sel)
	return dst
}

// In reports for each row of Sel whether its string is in a set, in vector n. words is the
// column of these strings.
func (k *ModelArgs) In(n int, set *Table, words []uint64) []bool {
	v := k.vector(n)
	if len(v.bools) < len(k.Sel) {
		v.bools = make([]bool, max(len(k.Sel), MatrixRows))
	}
	dst := v.bools[:len(k.Sel)]
	set.contain(dst, k.Rows, words, k.Sel)
	return dst
}

// Decays returns Decay of each of a vector of ages, in vector n. If an earlier vector of
// this call has the decays of the same ages by the same half-life, it returns that one: a
// half-life that the request gives is often equal to one in the model.
func (k *ModelArgs) Decays(n int, ages []float64, halfLife float64) []float64 {
	from, half := unsafe.SliceData(ages), math.Float64bits(halfLife)
	k.vector(n).ages = nil
	for i := range k.vectors[:n] {
		if v := &k.vectors[i]; v.ages == from && v.half == half {
			return v.numbers[:len(k.Sel)]
		}
	}
	dst := k.Vector(n)
	Decays(dst, ages, halfLife)
	k.vectors[n].ages, k.vectors[n].half = from, half
	return dst
}

// Output is where the results of one model for the rows of ModelArgs.Sel go.
type Output struct {
	Out []float64 // a score for each row of Sel, in its order; unused by a model of trees

	// A model of trees writes features instead, which the trees then score: feature c
	// of the i-th of Sel goes to i/MatrixBlock*Stride + c*MatrixBlock +
	// i%MatrixBlock.
	Matrix []float64
	Stride int
}

// Arena is memory for the texts and lists that are needed while one row is scored. It
// grows to what a row needs, and is reused for the next.
type Arena struct {
	buf     []byte
	numbers []float64
	strings []string
}

// Output.Matrix has at most MatrixRows rows. In memory, the values of MatrixBlock rows
// for one feature stand side by side.
const (
	MatrixRows  = 64
	MatrixBlock = 8
)

// ModelFunc scores the rows of Sel, and writes the scores to the Out of each Output. For
// a model of trees it writes the features of the rows to Matrix; Sel then has at most
// MatrixRows rows.
type ModelFunc func(*ModelArgs)

// Model is generated code for one shape.
type Model struct {
	Name  string // the name of the spec or the feed that it was generated from, for people
	Shape string // a digest of the plan that it computes: a model's operations, without its parameters
	Score ModelFunc
}

var models = map[string]Model{} // the registered models, by shape

// RegisterModel makes generated code known. Only init functions may call it. Of two
// functions for one shape, which compute the same, the first stays.
func RegisterModel(m Model) {
	if m.Score == nil {
		panic(fmt.Sprintf("compute: %s: no function for shape %s", m.Name, m.Shape))
	}
	if _, ok := models[m.Shape]; !ok {
		models[m.Shape] = m
	}
}

// FindModel returns the generated code of a shape; false if there is none.
func FindModel(shape string) (Model, bool) {
	m, ok := models[shape]
	return m, ok
}

// Text returns a number as text (see AppendNumber), in the arena's memory.
func (a *Arena) Text(x float64) string {
	at := len(a.buf)
	a.buf = AppendNumber(a.buf, x)
	return a.string(at)
}

// Cross joins two strings (see AppendCross), in the arena's memory.
func (a *Arena) Cross(x, y string) string {
	at := len(a.buf)
	a.buf = AppendCross(a.buf, x, y)
	return a.string(at)
}

// string returns what buf has after its first at bytes. The string shares the memory of
// buf.
func (a *Arena) string(at int) string {
	b := a.buf[at:]
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// Numbers returns the list of numbers in a field of a row, in the arena's memory.
func (a *Arena) Numbers(rows *column.Slab, field, row int) []float64 {
	at := len(a.numbers)
	a.numbers = rows.Doubles(a.numbers, rows.Word(field, row))
	return a.numbers[at:]
}

// Strings returns the list of strings in a field of a row, in the arena's memory.
func (a *Arena) Strings(rows *column.Slab, field, row int) []string {
	at := len(a.strings)
	a.strings = rows.Strings(a.strings, rows.Word(field, row))
	return a.strings[at:]
}

// Reset empties the arena for the next row. The memory of what was read is overwritten,
// so nobody may keep it.
func (a *Arena) Reset() {
	a.buf, a.numbers, a.strings = a.buf[:0], a.numbers[:0], a.strings[:0]
}

// LetGo frees the arenas that have grown beyond MaxKept.
func (k *ModelArgs) LetGo() {
	for _, a := range []*Arena{&k.Arena, &k.EntityArena} {
		if a.Large() {
			*a = Arena{}
		}
	}
}

// MaxKept is how many bytes an arena may keep from one request to the next.
const MaxKept = 256 << 10

// Large reports whether the arena has more than MaxKept bytes.
func (a *Arena) Large() bool {
	return cap(a.buf)+8*cap(a.numbers)+int(unsafe.Sizeof(""))*cap(a.strings) > MaxKept
}
