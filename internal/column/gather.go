package column

import (
	"encoding/binary"
	"math"
	"slices"
)

// Reset empties a slab that has one owner and no readers, and gives it the layout l. It
// keeps the memory.
func (s *Slab) Reset(l *Layout) {
	words := s.words[:cap(s.words)]
	*s = Slab{layout: l, stride: len(words) / max(l.nullWords+len(l.fields), 1), words: words, heap: s.heap[:0]}
}

// Gather appends rows [lo, hi) of p, which has the layout of s, to a slab that has one
// owner and no readers. It gathers the given fields with their null bits; nil: all of
// them. The words of other fields have no meaning. Long strings and lists are copied to
// the heap of s; a string that is part of a gathered body is not copied again.
func (s *Slab) Gather(p Packed, lo, hi int, fields []int) {
	l := s.layout
	if p.Layout() != l {
		panic("column: rows of another layout")
	}
	n := hi - lo
	for s.stride-s.rows < n {
		s.grow()
	}
	for c := range l.nullWords {
		p.widen(s.words[c*s.stride+s.rows:][:n], *p.descriptor(c), lo)
	}
	g := gathering{Slab: s, p: p, lo: lo, n: n}
	if l.body >= 0 && (fields == nil || slices.Contains(fields, l.body)) {
		g.bodies = g.gather(l.body) // what follows may be within it
	}
	if fields == nil {
		for f := range l.fields {
			if f != l.body {
				g.gather(f)
			}
		}
	} else {
		for _, f := range fields {
			if f != l.body {
				g.gather(f)
			}
		}
	}
	s.rows += n
}

// gathering is the state of Gather: n rows of p, from lo on, go into a slab.
type gathering struct {
	*Slab
	p      Packed
	lo, n  int
	bodies []uint64 // the words of their bodies; nil: bodies are not gathered
}

// gather appends the words of a field, and returns them.
func (g *gathering) gather(field int) []uint64 {
	dst := g.words[(g.layout.nullWords+field)*g.stride+g.rows:][:g.n]
	switch d := *g.p.column(g.layout, field); d.encoding() {
	case texts:
		for i := range dst {
			dst[i] = g.text(field, i)
		}
	case lists:
		for i := range dst {
			dst[i] = g.list(field, g.lo+i)
		}
	default:
		g.p.widen(dst, d, g.lo)
	}
	return dst
}

// text returns the word of the string of the i-th row.
func (g *gathering) text(field, i int) uint64 {
	row := g.lo + i
	r := g.p.reference(g.layout, field, row)
	if r.n <= maxInline {
		return g.p.inline(r)
	}
	if g.bodies != nil && !IsInline(g.bodies[i]) {
		body, at := g.bodies[i], g.p.bodyAt(g.layout, row)
		if r.off >= at && uint64(r.off-at)+uint64(r.n) <= body>>8&maxRefLen {
			return refWord(int(body>>32)+int(r.off-at), int(r.n))
		}
	}
	at := len(g.heap)
	g.heap = append(g.heap, g.p.slice(r.off, r.n)...)
	return refWord(at, int(r.n))
}

// list returns the word of a list, which it copies to the heap.
func (g *gathering) list(field, row int) uint64 {
	at := len(g.heap)
	if g.layout.fields[field].Kind == Doubles {
		list := g.p.list(g.layout, field, row)
		for i := range list.Len() {
			g.heap = binary.LittleEndian.AppendUint64(g.heap, math.Float64bits(list.At(i)))
		}
	} else {
		r := g.p.reference(g.layout, field, row)
		for b := g.p.slice(r.off, r.n); len(b) > 0; {
			n, skip := binary.Varint(b)
			g.heap = append(binary.LittleEndian.AppendUint32(g.heap, uint32(n)), b[skip:][:n]...)
			b = b[skip+int(n):]
		}
	}
	if len(g.heap) == at {
		return 0
	}
	return refWord(at, len(g.heap)-at)
}
