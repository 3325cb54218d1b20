// Package kernel is what generated scoring functions and the interpreter share
// besides arithmetic: the arguments of a call, look-up tables, and the
// register of generated code by shape.
package kernel

import (
	"fmt"
	"math"
	"unicode/utf8"
	"unsafe"

	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr/fn"
	"github.com/millrace/millrace/relevance/trees"
)

// Args are what a generated function scores, and with what. A function owns
// its Args for the length of a call.
type Args struct {
	Rows    *column.Slab
	Sel     []int32      // rows to score
	Entity  *column.Slab // one row, or nil
	Objects *column.Slab // of each row of Rows what is known of its object
	Folded  []float64    // of each row of Rows, the part of the record alone
	Columns []int        // of Rows, in the order of the plan's loads
	EntCols []int        // of Entity
	Weights []float64    // parameters; Weights[0] is the bias
	Tables  []*Table     // parameters, then the tables of literals

	// What the request decides, computed once when a scorer is bound.
	Numbers []float64
	Bools   []bool
	Strings []string
	Lists   [][]float64
	Sets    []*Table

	Output          // of the model
	More   []Output // of the further models of a joint plan

	Arena       Arena // for the texts and lists of a row
	EntityArena Arena // for those of the entity

	vectors []vector
}

// vector is a number for each of Args.Sel.
type vector struct {
	numbers []float64
	bools   []bool
	ages    *float64 // of Decays: the vector of ages, and the half-life
	half    uint64
}

// Vector returns memory for a number of each of Sel, the nth of the function.
func (k *Args) Vector(n int) []float64 {
	v := k.vector(n)
	if len(v.numbers) < len(k.Sel) {
		v.numbers = make([]float64, max(len(k.Sel), trees.Batch))
	}
	return v.numbers[:len(k.Sel)]
}

func (k *Args) vector(n int) *vector {
	for len(k.vectors) <= n {
		k.vectors = append(k.vectors, vector{})
	}
	return &k.vectors[n]
}

// Lookup returns the value of the string of each row in a table, in vector n.
func (k *Args) Lookup(n int, t *Table, words []uint64) []float64 {
	dst := k.Vector(n)
	t.words(dst, k.Rows, words, k.Sel)
	return dst
}

// In tells of each row whether its string is in a set, in vector n.
func (k *Args) In(n int, set *Table, words []uint64) []bool {
	v := k.vector(n)
	if len(v.bools) < len(k.Sel) {
		v.bools = make([]bool, max(len(k.Sel), trees.Batch))
	}
	dst := v.bools[:len(k.Sel)]
	set.contain(dst, k.Rows, words, k.Sel)
	return dst
}

// Decays returns fn.Decay of each of a vector of ages: in vector n, or in one
// before it that has them already, since a request often says what a model
// says too. The vectors before n are of this call.
func (k *Args) Decays(n int, ages []float64, halfLife float64) []float64 {
	from, half := unsafe.SliceData(ages), math.Float64bits(halfLife)
	k.vector(n).ages = nil
	for i := range k.vectors[:n] {
		if v := &k.vectors[i]; v.ages == from && v.half == half {
			return v.numbers[:len(k.Sel)]
		}
	}
	dst := k.Vector(n)
	fn.Decays(dst, ages, halfLife)
	k.vectors[n].ages, k.vectors[n].half = from, half
	return dst
}

// Output is where what is computed of Args.Sel goes for one model.
type Output struct {
	Out []float64 // a score for each; unused by trees

	// Of trees: feature c of row i goes to i/Block*Stride + c*Block + i%Block.
	Matrix []float64
	Stride int
}

// Arena is memory for texts and lists that live as long as a row. It grows to
// what a row needs and is then reused.
type Arena struct {
	buf     []byte
	numbers []float64
	strings []string
}

// Block is how many rows of a matrix stand side by side.
const Block = trees.Block

// Func scores Args.Sel into each Output's Out; of trees it fills Matrix with the
// features of Args.Sel, which then has at most trees.Batch rows.
type Func func(*Args)

// Generated is generated code for one shape.
type Generated struct {
	Model string // the spec it was written from, for people
	Shape string
	Score Func
}

var byShape = map[string]Generated{}

// Register makes generated code known. It is for init functions; two
// functions for one shape compute the same, and the first stays.
func Register(g Generated) {
	if g.Score == nil {
		panic(fmt.Sprintf("kernel: %s: no function for shape %s", g.Model, g.Shape))
	}
	if _, ok := byShape[g.Shape]; !ok {
		byShape[g.Shape] = g
	}
}

// Lookup returns the generated code of a shape.
func Lookup(shape string) (Generated, bool) {
	g, ok := byShape[shape]
	return g, ok
}

// Missing is the number that is not there.
var Missing = math.NaN()

// Score makes every NaN the same one, whose bits would otherwise depend on the
// order of a sum's operands.
func Score(x float64) float64 {
	if x != x {
		return Missing
	}
	return x
}

// If returns a or b; both have been computed.
func If[T any](c bool, a, b T) T {
	if c {
		return a
	}
	return b
}

// Sigmoid returns 1 / (1 + exp(-x)).
func Sigmoid(x float64) float64 { return 1 / (1 + fn.Exp(-x)) }

// Text appends a number's digits to the call's arena.
func (a *Arena) Text(x float64) string {
	at := len(a.buf)
	a.buf = fn.AppendNumber(a.buf, x)
	return a.string(at)
}

// Cross joins two strings in the arena.
func (a *Arena) Cross(x, y string) string {
	at := len(a.buf)
	a.buf = fn.AppendCross(a.buf, x, y)
	return a.string(at)
}

func (a *Arena) string(at int) string {
	b := a.buf[at:]
	return unsafe.String(unsafe.SliceData(b), len(b))
}

// Numbers reads a list of numbers of rows into the arena.
func (a *Arena) Numbers(rows *column.Slab, field, row int) []float64 {
	at := len(a.numbers)
	a.numbers = rows.Doubles(a.numbers, rows.Word(field, row))
	return a.numbers[at:]
}

// Strings reads a list of strings of rows into the arena.
func (a *Arena) Strings(rows *column.Slab, field, row int) []string {
	at := len(a.strings)
	a.strings = rows.Strings(a.strings, rows.Word(field, row))
	return a.strings[at:]
}

// Reset forgets everything; what was read stays valid only where it is not
// overwritten, so nothing may be kept.
func (a *Arena) Reset() {
	a.buf, a.numbers, a.strings = a.buf[:0], a.numbers[:0], a.strings[:0]
}

// Item returns an item of a list, missing where the list has no such.
func Item(list []float64, i int) float64 {
	if i >= len(list) {
		return Missing
	}
	return list[i]
}

// Size returns the length of a string in characters, as CEL counts them.
func Size(s string) float64 { return float64(utf8.RuneCountInString(s)) }

// One returns 1 for true and 0 for false, without a branch.
func One(b bool) int {
	n := 0
	if b {
		n = 1
	}
	return n
}

// Bool is fn.Bool without a branch, which a record's values would mispredict.
func Bool(b bool) float64 { return float64(One(b)) }

// log1p has fn.Log1p of small whole numbers, which counters mostly are.
var log1p = func() (t [1024]float64) {
	for i := range t {
		t[i] = fn.Log1p(float64(i))
	}
	return t
}()

// Log1p is fn.Log1p, bit for bit, by a table where there is one.
func Log1p(x float64) float64 {
	if i := int(x); i > 0 && i < len(log1p) && float64(i) == x {
		return log1p[i]
	}
	return fn.Log1p(x)
}

// Log1pWhole is Log1p of a column of integers: small enough to be inlined.
func Log1pWhole(x float64) float64 {
	if i := uint(int(x)); i < 1024 {
		return log1p[i]
	}
	return fn.Log1p(x)
}

// Log1ps sets dst to Log1p of each of a.
func Log1ps(dst, a []float64) {
	a = a[:len(dst)]
	for k, x := range a {
		if i := int(x); i > 0 && i < len(log1p) && float64(i) == x {
			dst[k] = log1p[i]
		} else {
			dst[k] = fn.Log1p(x)
		}
	}
}

// Log1pWholes sets dst to Log1p of each of a, of a column of integers.
func Log1pWholes(dst, a []float64) {
	a = a[:len(dst)]
	for k, x := range a {
		dst[k] = Log1pWhole(x)
	}
}
