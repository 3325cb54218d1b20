package column

// Batch is rows of many slabs of one layout side by side, of which a scan
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

// Add adds rows [lo, hi) of s, for which there must be room.
func (b *Batch) Add(s *Slab, lo, hi int) {
	at, n := b.rows.rows, hi-lo
	for _, c := range b.nulls {
		copy(b.rows.words[c*b.rows.stride+at:][:n], s.words[c*s.stride+lo:])
	}
	l := b.rows.layout
	for _, f := range b.fields {
		dst := b.rows.words[(l.nullWords+f)*b.rows.stride+at:][:n]
		copy(dst, s.words[(l.nullWords+f)*s.stride+lo:])
		if l.fields[f].Kind >= String {
			b.own(dst, s)
		}
	}
	b.rows.rows += n
}

// own makes references of what s holds in its heap references to a heap of the
// batch.
func (b *Batch) own(words []uint64, s *Slab) {
	var any uint64
	for _, w := range words {
		any |= w&refTag + 1
	}
	if any&(refTag+1) == 0 {
		return
	}
	for i, w := range words {
		if IsInline(w) {
			continue
		}
		off := len(b.rows.heap)
		b.rows.heap = append(b.rows.heap, s.ref(w)...)
		words[i] = refWord(off, StringLen(w))
	}
}
