package filter

import (
	"math"
	"slices"

	"github.com/millrace/millrace/compute"
	"github.com/millrace/millrace/internal/column"
	"github.com/millrace/millrace/internal/expr"
)

// inConstants is the kernel of "x in [constants]".
type inConstants struct {
	out
	x kernel
	// The elements that x may be equal to, by their type:
	same    []uint64         // those of x's type, unless that is double or string
	ints    []int64          // if x is a double
	doubles []float64        // if x is an int or a double
	texts   []string         // if x is a string
	hasNull bool             // an element is null
	hasList bool             // x is a list of the viewer, and an element is equal to it
	seen    int              // rows so far
	hashed  *hashedConstants // nil: the elements are compared one after the other
}

// hashedConstants is the elements of a long list, in maps. A caller may send a list of
// thousands, and it is searched for each record. Each Go map has a seed of its own, so
// a caller cannot choose elements that collide.
type hashedConstants struct {
	same    map[uint64]struct{}
	doubles map[float64]struct{} // and the ints that a double may be equal to
	texts   *compute.Texts
}

// fewConstants is up to how many elements comparing one after the other is faster than a
// map. eval also makes no maps before so many rows have come.
const fewConstants = 16

// hash makes the maps of a list with more than fewConstants elements. It is called only
// once some rows have come: a kernel that [fastIn] replaces never sees a row, and one that
// fold computes sees one.
func (k *inConstants) hash() {
	if k.hashed != nil || len(k.same)+len(k.ints)+len(k.doubles)+len(k.texts) <= fewConstants {
		return
	}
	k.hashed = &hashedConstants{same: setOf(k.same), doubles: setOf(k.doubles), texts: compute.NewTexts(k.texts...)}
	for _, n := range k.ints {
		k.hashed.doubles[float64(n)] = struct{}{} // as compareIntDouble has it
	}
}

func setOf[T comparable](all []T) map[T]struct{} {
	set := make(map[T]struct{}, len(all))
	for _, x := range all {
		set[x] = struct{}{}
	}
	return set
}

func isIn[T comparable](set map[T]struct{}, x T) bool {
	_, ok := set[x]
	return ok
}

// newInConstants returns the kernel of "x in elements". The elements are literals and values
// of the viewer, none of which is an error. It leaves out those of types that no x can be
// equal to.
func newInConstants(x kernel, elements []*constant) *inConstants {
	k := &inConstants{out: out{typ: expr.Bool}, x: x}
	for _, e := range elements {
		switch {
		case e.state == null:
			k.hasNull = true
		case e.typ == expr.String && x.kind() == expr.String:
			k.texts = append(k.texts, e.text)
		case e.typ == expr.Double && (x.kind() == expr.Int || x.kind() == expr.Double):
			k.doubles = append(k.doubles, math.Float64frombits(e.word))
		case e.typ == expr.Int && x.kind() == expr.Double:
			k.ints = append(k.ints, int64(e.word))
		case isList(e.typ) && isList(x.kind()):
			k.hasList = k.hasList || equalLists(x.(*constant), e)
		case e.typ == x.kind():
			k.same = append(k.same, e.word)
		}
	}
	return k
}

func (k *inConstants) eval(b *batch) *vector {
	k.begin(len(b.sel))
	v := k.x.eval(b)
	if k.seen += len(b.sel); k.seen > fewConstants {
		k.hash()
	}
	for i := range b.sel {
		switch s := v.states[i]; {
		case s.isError():
			k.states[i] = s
		case s == null:
			k.words[i] = compute.Bit(k.hasNull)
		default:
			k.words[i] = compute.Bit(k.hasList || k.contains(v, i))
		}
	}
	return &k.vector
}

func (k *inConstants) contains(v *vector, i int) bool {
	if h := k.hashed; h != nil {
		return h.contain(k.x.kind(), v, i)
	}
	switch k.x.kind() {
	case expr.String:
		return slices.Contains(k.texts, v.strings[i])
	case expr.Int:
		x := int64(v.words[i])
		return slices.Contains(k.same, v.words[i]) ||
			slices.ContainsFunc(k.doubles, func(d float64) bool { return compareIntDouble(x, d) == equal })
	case expr.Double:
		x := math.Float64frombits(v.words[i])
		return slices.Contains(k.doubles, x) ||
			slices.ContainsFunc(k.ints, func(n int64) bool { return compareIntDouble(n, x) == equal })
	}
	return slices.Contains(k.same, v.words[i])
}

// contain reports whether the elements have the value at position i of v, of the type kind.
func (h *hashedConstants) contain(kind expr.Type, v *vector, i int) bool {
	switch kind {
	case expr.String:
		return h.texts.Contains(v.strings[i])
	case expr.Int:
		return isIn(h.same, v.words[i]) || isIn(h.doubles, float64(int64(v.words[i])))
	case expr.Double:
		return isIn(h.doubles, math.Float64frombits(v.words[i]))
	}
	return isIn(h.same, v.words[i])
}

// inColumn is the kernel of "x in list", where list is a column of the record or the entity.
type inColumn struct {
	out
	x       kernel
	list    kernel
	entity  bool      // the list is the entity's
	doubles []float64 // memory for a list
	strings []string  // memory for a list
}

func (k *inColumn) eval(b *batch) *vector {
	k.begin(len(b.sel))
	x, list := k.x.eval(b), k.list.eval(b)
	slab := b.rows
	if k.entity {
		slab = b.entity
	}
	for i := range b.sel {
		switch {
		case x.states[i].isError():
			k.states[i] = x.states[i]
		case list.states[i] != present:
			k.states[i] = firstError(list.states[i], present)
		case x.states[i] == null:
			k.words[i] = 0
		default:
			k.words[i] = compute.Bit(k.contains(slab, x, i, list.words[i]))
		}
	}
	return &k.vector
}

func (k *inColumn) contains(s *column.Slab, x *vector, i int, list uint64) bool {
	if k.list.kind() == expr.Strings {
		k.strings = s.Strings(k.strings[:0], list)
		return k.x.kind() == expr.String && slices.Contains(k.strings, x.strings[i])
	}
	k.doubles = s.Doubles(k.doubles[:0], list)
	switch k.x.kind() {
	case expr.Double:
		return slices.Contains(k.doubles, math.Float64frombits(x.words[i]))
	case expr.Int:
		n := int64(x.words[i])
		return slices.ContainsFunc(k.doubles, func(d float64) bool { return compareIntDouble(n, d) == equal })
	}
	return false
}

// size is the kernel of "size(list)", where list is a column.
type size struct {
	out
	list    kernel
	entity  bool
	strings []string
}

func (k *size) eval(b *batch) *vector {
	k.begin(len(b.sel))
	list := k.list.eval(b)
	slab := b.rows
	if k.entity {
		slab = b.entity
	}
	for i := range b.sel {
		switch {
		case list.states[i] != present:
			k.states[i] = firstError(list.states[i], present)
		case k.list.kind() == expr.Doubles:
			k.words[i] = uint64(slab.List(list.words[i]).Len())
		default:
			k.strings = slab.Strings(k.strings[:0], list.words[i])
			k.words[i] = uint64(len(k.strings))
		}
	}
	return &k.vector
}
