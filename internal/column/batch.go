package column

import (
	"math"
	"slices"
)

// Batch has rows of many Packed of one layout side by side, with the columns that a scan
// reads. A kernel, which is a loop over columns, then runs over a thousand rows at a
// time, where a timeline has twenty. The memory of a batch is used again.
//
// Lists and long strings stay in the packed rows. The word of one names these and the
// row, and is resolved when it is read. That happens for few rows, since filters come
// first. So the packed rows must stay valid as long as the rows of the batch are used.
type Batch struct {
	rows    Slab
	room    int           // how many rows there is room for in all
	columns []batchColumn // those of the fields, and of the null bits that go with them
}

// batchColumn is a column of a batch.
type batchColumn struct {
	column int // its index in the Packed, where those of null bits come first
	field  int // -1: it is of null bits
	words  []uint64
	most   uint64 // see Most
	watch  bool   // most is kept

	// In many columns all rows of many timelines have the same word. All of words[from:to]
	// have the value of the field equal, perhaps since before the batch was last cleared.
	// They need not be written again for a timeline whose rows all have that word.
	equal    uint64
	from, to int
}

// Reset empties the batch, and makes it one of up to rows rows of l that has the given
// fields. The words of all other fields have no meaning.
func (b *Batch) Reset(l *Layout, fields []int, rows int) {
	words := b.rows.words
	stride := rows + padRows
	if need := stride * (l.nullWords + len(l.fields)); cap(words) < need {
		words = make([]uint64, need)
	} else {
		words = words[:need]
	}
	b.rows, b.room = Slab{layout: l, stride: stride, words: words, sources: b.rows.sources}, rows
	b.Clear()
	b.columns = b.columns[:0]
	last := -1
	for _, f := range fields {
		if n := f / 64; l.fields[f].Nullable && n != last {
			b.add(n, -1)
			last = n
		}
	}
	for _, f := range fields {
		b.add(l.nullWords+f, f)
	}
}

func (b *Batch) add(column, field int) {
	b.columns = append(b.columns, batchColumn{column: column, field: field, words: b.rows.words[column*b.rows.stride:][:b.rows.stride]})
}

// Watch makes the batch keep what Most returns for these fields, and for no others, from
// now on.
func (b *Batch) Watch(fields []int) {
	for i := range b.columns {
		c := &b.columns[i]
		c.watch, c.most = slices.Contains(fields, c.field), 0
	}
}

// Most returns a word that is not less than any that a watched field had since Watch; it
// may be more than the greatest. The field must not be of strings or lists. For a field
// that is not watched it returns the greatest word there is.
func (b *Batch) Most(field int) uint64 {
	for i := range b.columns {
		if c := &b.columns[i]; c.field == field && c.watch {
			return c.most
		}
	}
	return math.MaxUint64
}

// Clear empties the batch.
func (b *Batch) Clear() {
	clear(b.rows.sources)
	b.rows.rows, b.rows.sources = 0, b.rows.sources[:0]
}

// Len returns the number of rows.
func (b *Batch) Len() int { return b.rows.rows }

// Room returns how many rows more there is room for.
func (b *Batch) Room() int { return b.room - b.rows.rows }

// padRows keeps the words of one row in several columns from being at equal offsets
// within a page: a processor may take a load there for one of a recent store, and wait
// for it.
const padRows = 24

// Slab returns the rows. They are valid until the batch is cleared.
func (b *Batch) Slab() *Slab { return &b.rows }

// Add adds rows [lo, hi) of p, for which there must be room.
func (b *Batch) Add(p Packed, lo, hi int) {
	s, n := &b.rows, hi-lo
	for i := range b.columns {
		c := &b.columns[i]
		d := *p.descriptor(c.column)
		dst := c.words[s.rows:][:n]
		switch e := d.encoding(); {
		case e == small:
			c.fill(s.rows, n, uint64(d>>8))
			continue
		case e == constant:
			c.fill(s.rows, n, at[uint64](p.bytes(d), 0))
			continue
		case e < texts:
			p.widen(dst, d, lo)
		case e == texts:
			s.addTexts(dst, p, lo, c.field)
		default:
			s.addLists(dst, p, lo, c.field)
		}
		if c.to = min(c.to, s.rows); c.watch {
			c.most |= p.most(d)
		}
	}
	s.rows += n
}

// source is a column of strings or lists in packed rows that a batch has rows of.
type source struct {
	p     Packed
	field int
}

// A reference in a batch is refTag in the low byte, then 24 bits for the index of its
// source, and 32 bits for the row there.
func sourceWord(source, row int) uint64 { return refTag | uint64(source)<<8 | uint64(row)<<32 }

func (s *Slab) sourceOf(w uint64) *source { return &s.sources[w>>8&maxRefLen] }

// addTexts writes the words of strings. Those of up to 7 bytes are in the word itself, as
// in any slab: equal short strings must be equal words.
func (s *Slab) addTexts(dst []uint64, p Packed, lo, field int) {
	s.sources = append(s.sources, source{p, field})
	lengths := at[descriptor](p.bytes(*p.column(s.layout, field)), 1)
	for i := range dst {
		if p.value(lengths, lo+i) > maxInline {
			dst[i] = sourceWord(len(s.sources)-1, lo+i)
		} else {
			dst[i] = p.inline(p.reference(s.layout, field, lo+i))
		}
	}
}

func (s *Slab) addLists(dst []uint64, p Packed, lo, field int) {
	s.sources = append(s.sources, source{p, field})
	for i := range dst {
		dst[i] = sourceWord(len(s.sources)-1, lo+i)
	}
}

// text returns the bytes of the string that a word refers to. list and strings return the
// items of the list that a word refers to.
func (f *source) text(l *Layout, w uint64) []byte {
	r := f.p.reference(l, f.field, int(w>>32))
	return f.p.slice(r.off, r.n)
}

func (f *source) list(l *Layout, w uint64) List { return f.p.list(l, f.field, int(w>>32)) }

func (f *source) strings(dst []string, l *Layout, w uint64) []string {
	return f.p.strings(dst, l, f.field, int(w>>32))
}

// fill sets the n words from row at on to w, as far as they are not w already.
func (c *batchColumn) fill(at, n int, w uint64) {
	if c.most |= w; c.equal != w || at < c.from || c.to < at {
		c.equal, c.from, c.to = w, at, at
	}
	if c.to < at+n {
		fill(c.words[c.to:at+n], w)
		c.to = at + n
	}
}

// Most returns a word that is not less than any of a field; it may be more than the
// greatest. A field of strings or lists may have the greatest word there is.
func (p Packed) Most(field int) uint64 { return p.most(*p.column(p.Layout(), field)) }

func (p Packed) most(d descriptor) (w uint64) {
	switch d.encoding() {
	case small:
		return uint64(d >> 8)
	case narrow8:
		return math.MaxUint8
	case narrow16:
		return math.MaxUint16
	case narrow32:
		return math.MaxUint32
	case texts, lists:
		return math.MaxUint64
	}
	for row := range p.Len() {
		w |= p.value(d, row)
	}
	return w
}
