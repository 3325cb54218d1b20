package column

// Batch is rows of many Packed of one layout side by side, of which a scan
// reads some columns: what runs over columns then runs over a thousand rows at
// a time where a timeline has twenty. Its memory is used again.
type Batch struct {
	rows   Slab
	fields []int
	nulls  []int // columns of null bits that go with fields
}

// Reset empties the batch, and makes it one of up to rows rows of l that has
// the given fields. All others read as anything.
func (b *Batch) Reset(l *Layout, fields []int, rows int) {
	b.fields, b.nulls = append(b.fields[:0], fields...), b.nulls[:0]
	for _, f := range fields {
		if n := f / 64; l.fields[f].Nullable && (len(b.nulls) == 0 || b.nulls[len(b.nulls)-1] != n) {
			b.nulls = append(b.nulls, n)
		}
	}
	words := b.rows.words
	if need := rows * (l.nullWords + len(l.fields)); cap(words) < need {
		words = make([]uint64, need)
	} else {
		words = words[:need]
	}
	b.rows = Slab{layout: l, stride: rows, words: words, heap: b.rows.heap}
	b.Clear()
}

// Clear empties the batch.
func (b *Batch) Clear() {
	if b.rows.rows = 0; cap(b.rows.heap) > 2*maxBatchHeap {
		b.rows.heap = nil
	}
	b.rows.heap = b.rows.heap[:0]
}

// Len returns the number of rows.
func (b *Batch) Len() int { return b.rows.rows }

// Room returns how many rows more there is room for: none once long strings
// take maxBatchHeap.
func (b *Batch) Room() int {
	if len(b.rows.heap) > maxBatchHeap {
		return 0
	}
	return b.rows.stride - b.rows.rows
}

// maxBatchHeap bounds, but for what is added last, the heap of a batch.
const maxBatchHeap = 1 << 20

// Slab returns the rows. They hold until the batch is cleared.
func (b *Batch) Slab() *Slab { return &b.rows }

// Add adds rows [lo, hi) of p, for which there must be room.
func (b *Batch) Add(p Packed, lo, hi int) {
	s, n := &b.rows, hi-lo
	for _, c := range b.nulls {
		p.widen(s.words[c*s.stride+s.rows:][:n], *p.descriptor(c), lo)
	}
	for _, f := range b.fields {
		s.gather(p, lo, n, f)
	}
	s.rows += n
}
