package column

import "unsafe"

// This file finds the lists of many rows of a batch. Rows of one source mostly come one
// after the other without gaps. So the columns that say where lists are get decoded once
// for a run of rows, and not once a row.

// runRows is how many rows a run has at most.
const runRows = 64

// run returns how many of the rows, from the first on, are of one source, and whether
// they follow each other there without gaps. words are those of a field; the first row's
// must be a reference.
func run(words []uint64, rows []int32) (n int, gapless bool) {
	rows = rows[:min(runRows, len(rows))]
	first := words[rows[0]]
	for n = 1; n < len(rows) && uint32(words[rows[n]]) == uint32(first); n++ {
	}
	gapless = true
	for k, r := range rows[:n] {
		gapless = gapless && words[r]>>32 == first>>32+uint64(k)
	}
	return n, gapless
}

// ListsAt writes the lists of doubles that rows have in a field to dst, one a row, without
// copying the items.
func (s *Slab) ListsAt(dst []List, field int, rows []int32) {
	words, dst := s.Column(field), dst[:len(rows)]
	var found places
	for k := 0; k < len(rows); {
		if w := words[rows[k]]; w == 0 || len(s.sources) == 0 {
			dst[k] = s.List(w)
			k++
			continue
		}
		n, gapless := run(words, rows[k:])
		if gapless {
			w := words[rows[k]]
			found.lists(dst[k:k+n], s.sourceOf(w), s.layout, int(w>>32))
		} else {
			for at := k; at < k+n; at++ {
				dst[at] = s.List(words[rows[at]])
			}
		}
		k += n
	}
}

// places says where the lists of a run are: offsets from the row's body, where bodies
// begin, and how many items there are.
type places struct{ offs, bodies, items [runRows]uint64 }

// lists writes the lists of len(dst) rows of a source, from row on.
func (f *places) lists(dst []List, s *source, l *Layout, row int) {
	p, n := s.p, len(dst)
	parts, heap := p.references(l, s.field), unsafe.Add(p.at, p.head().heap)
	p.widen(f.offs[:n], parts[0], row)
	p.widen(f.bodies[:n], p.bodies(l), row)
	p.widen(f.items[:n], parts[1], row)
	for k := range dst {
		// As in [Packed.reference]: the sum wraps around at 32 bits.
		off := uint32(f.offs[k]) + uint32(f.bodies[k])
		dst[k] = List{unsafe.Add(heap, off), int32(f.items[k]), int32(parts[2])}
	}
}

// Sizes returns the sum of [Slab.Size] over rows.
func (s *Slab) Sizes(field int, rows []int32) (sum int) {
	words, doubles := s.Column(field), s.layout.fields[field].Kind == Doubles
	for k := 0; k < len(rows); {
		w := words[rows[k]]
		if IsInline(w) || len(s.sources) == 0 {
			sum += s.Size(field, int(rows[k]))
			k++
			continue
		}
		n, gapless := run(words, rows[k:])
		p := s.sourceOf(w).p
		if lengths := p.references(s.layout, field)[1]; lengths.encoding() == small {
			size := int(lengths >> 8)
			if doubles {
				size *= 8
			}
			sum += n * size
		} else if gapless {
			var all [runRows]uint64
			p.widen(all[:n], lengths, int(w>>32))
			for _, length := range all[:n] {
				if doubles {
					length *= 8
				}
				sum += int(length)
			}
		} else {
			for _, r := range rows[k : k+n] {
				sum += s.Size(field, int(r))
			}
		}
		k += n
	}
	return sum
}
