package compute

import (
	"fmt"
	"math"
	"unsafe"

	"github.com/millrace/millrace/internal/column"
)

// ModelArgs are what a generated function scores, and with what. A function owns
// them for the length of a call.
type ModelArgs struct {
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

// vector is a number for each of ModelArgs.Sel.
type vector struct {
	numbers []float64
	bools   []bool
	ages    *float64 // of Decays: the vector of ages, and the half-life
	half    uint64
}

// Vector returns the nth vector of the function that is called: memory for one number of
// each row of Sel. The first ones are filled before the call, with the plan's similarities:
// each tells how like the list of each row is to a list that the request decides; or, as its
// first number alone, how like that of the entity is.
func (k *ModelArgs) Vector(n int) []float64 {
	v := k.vector(n)
	if len(v.numbers) < len(k.Sel) {
		v.numbers = make([]float64, max(len(k.Sel), MatrixRows))
	}
	return v.numbers[:len(k.Sel)]
}

func (k *ModelArgs) vector(n int) *vector {
	for len(k.vectors) <= n {
		k.vectors = append(k.vectors, vector{})
	}
	return &k.vectors[n]
}

// Lookup returns the value of the string of each row in a table, in vector n.
func (k *ModelArgs) Lookup(n int, t *Table, words []uint64) []float64 {
	dst := k.Vector(n)
	t.words(dst, k.Rows, words, k.Sel)
	return dst
}

// In tells of each row whether its string is in a set, in vector n.
func (k *ModelArgs) In(n int, set *Table, words []uint64) []bool {
	v := k.vector(n)
	if len(v.bools) < len(k.Sel) {
		v.bools = make([]bool, max(len(k.Sel), MatrixRows))
	}
	dst := v.bools[:len(k.Sel)]
	set.contain(dst, k.Rows, words, k.Sel)
	return dst
}

// Decays returns Decay of each of a vector of ages: in vector n, or in one
// before it that has them already, since a request often says what a model
// says too. The vectors before n are of this call.
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

// Output is where what is computed of ModelArgs.Sel goes for one model.
type Output struct {
	Out []float64 // a score for each; unused by trees

	// Of trees: feature c of row i goes to i/MatrixBlock*Stride + c*MatrixBlock + i%MatrixBlock.
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

// A matrix of the features of trees has at most MatrixRows rows, of which
// MatrixBlock stand side by side.
const (
	MatrixRows  = 64
	MatrixBlock = 8
)

// ModelFunc scores Sel into each Output's Out; of trees it fills Matrix with the
// features of Sel, which then has at most MatrixRows rows.
type ModelFunc func(*ModelArgs)

// Model is generated code for one shape.
type Model struct {
	Name  string // of the spec or the feed that it was written from, for people
	Shape string // of the plan that it computes: a model's way of computing, without its parameters
	Score ModelFunc
}

var models = map[string]Model{} // by shape

// RegisterModel makes generated code known. It is for init functions; two
// functions for one shape compute the same, and the first stays.
func RegisterModel(m Model) {
	if m.Score == nil {
		panic(fmt.Sprintf("compute: %s: no function for shape %s", m.Name, m.Shape))
	}
	if _, ok := models[m.Shape]; !ok {
		models[m.Shape] = m
	}
}

// FindModel returns the generated code of a shape.
func FindModel(shape string) (Model, bool) {
	m, ok := models[shape]
	return m, ok
}

// Text appends a number's digits to the call's arena.
func (a *Arena) Text(x float64) string {
	at := len(a.buf)
	a.buf = AppendNumber(a.buf, x)
	return a.string(at)
}

// Cross joins two strings in the arena.
func (a *Arena) Cross(x, y string) string {
	at := len(a.buf)
	a.buf = AppendCross(a.buf, x, y)
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

// LetGo lets go of the texts and lists of rows, where they take much memory.
func (k *ModelArgs) LetGo() {
	for _, a := range []*Arena{&k.Arena, &k.EntityArena} {
		if a.Large() {
			*a = Arena{}
		}
	}
}

// MaxKept is how many bytes an arena keeps from one question to the next.
const MaxKept = 256 << 10

// Large reports whether the arena has more memory than is kept for the next
// question.
func (a *Arena) Large() bool {
	return cap(a.buf)+8*cap(a.numbers)+int(unsafe.Sizeof(""))*cap(a.strings) > MaxKept
}
