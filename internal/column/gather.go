package column

// Reset empties a slab that has one owner and no readers, and makes it one of
// rows of l. It keeps its memory.
func (s *Slab) Reset(l *Layout) {
	words := s.words[:cap(s.words)]
	*s = Slab{layout: l, stride: len(words) / max(l.nullWords+len(l.fields), 1), words: words, heap: s.heap[:0]}
}

// Gather appends rows [lo, hi) of p, which has the layout of s, to a slab that
// has one owner and no readers. Of the fields
// only those named are gathered, with their null bits, or all for nil; what
// the others' columns have has no meaning. Long strings and lists are copied
// to the heap of s.
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
	if fields == nil {
		for f := range l.fields {
			s.gather(p, lo, n, f)
		}
	} else {
		for _, f := range fields {
			s.gather(p, lo, n, f)
		}
	}
	s.rows += n
}

// gather appends n rows of a field.
func (s *Slab) gather(p Packed, lo, n, field int) {
	dst := s.words[(s.layout.nullWords+field)*s.stride+s.rows:][:n]
	if d := *p.column(s.layout, field); d.encoding() < texts {
		p.widen(dst, d, lo)
		return
	}
	s.gatherReferences(dst, p, lo, field)
}

// gatherReferences writes the words of len(dst) rows of a column of references,
// and appends to the heap what they refer to.
func (s *Slab) gatherReferences(dst []uint64, p Packed, lo, field int) {
	e := p.column(s.layout, field).encoding()
	for i := range dst {
		r := p.reference(s.layout, field, lo+i)
		if w := r.word(p, e); IsInline(w) {
			dst[i] = w
			continue
		}
		dst[i] = refWord(len(s.heap), int(r.n))
		s.heap = append(s.heap, p.slice(r.off, r.n)...)
	}
}
