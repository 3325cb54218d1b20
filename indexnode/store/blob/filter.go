package blob

import (
	"encoding/binary"
	"errors"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
)

// Filter tells whether a record's id may be in a timeline's older blobs, outside
// its head. Nearly every id that arrives is new, and then no look-up on disk is
// needed. It is a Bloom filter that grows by segments, each with twice the room of
// the one before. Ids are never removed from it.
//
//	0  format, 1
//	1  number of ids added, uint32
//	5  the segments: segment i is 80<<i bytes for 64<<i ids
type Filter struct {
	count uint32 // ids added
	Bits  []byte // the segments
}

const (
	filterFormat  = 1
	filterHeader  = 5
	filterRoom    = 64                             // ids of the first segment
	filterBytes   = filterRoom * filterBitsPer / 8 // bytes of the first segment
	filterBitsPer = 10                             // bits for each id; with filterProbes, about 1 % of other ids seem to be in a full segment
	filterProbes  = 6                              // bits that an id sets
)

// ErrFilter is the error for a row that is no filter, or for a filter that lacks an id which
// was added.
var ErrFilter = errors.New("filter")

// segments is how many segments hold count ids: the first n have room for
// filterRoom * (2^n - 1).
func segments(count uint32) (n int) {
	for uint64(count) > filterRoom*(1<<n-1) {
		n++
	}
	return n
}

// filterLen is how many bytes so many segments take.
func filterLen(segments int) int { return filterBytes * (1<<segments - 1) }

// Add adds an id. An id that is added twice counts twice.
func (f *Filter) Add(id millrace.RecordID) {
	f.count++
	n := segments(f.count)
	if grow := filterLen(n) - len(f.Bits); grow > 0 {
		f.Bits = append(f.Bits, make([]byte, grow)...)
	}
	probe(id, f.Bits[filterLen(n-1):], func(b *byte, bit byte) bool { *b |= bit; return true })
}

// MayHave reports whether an id may have been added. It is true for every id that was.
func (f *Filter) MayHave(id millrace.RecordID) bool {
	for n := segments(f.count); n > 0; n-- {
		if probe(id, f.Bits[filterLen(n-1):filterLen(n)], func(b *byte, bit byte) bool { return *b&bit != 0 }) {
			return true
		}
	}
	return false
}

// probe visits an id's bits in a segment until visit returns false, and reports whether it
// never did.
func probe(id millrace.RecordID, segment []byte, visit func(b *byte, bit byte) bool) bool {
	h := xxhash.Sum64String(string(id))
	step := h>>32 | 1
	for range filterProbes {
		i := h % uint64(len(segment)*8)
		if !visit(&segment[i/8], 1<<(i%8)) {
			return false
		}
		h += step
	}
	return true
}

// Encode returns the filter as the row that [DecodeFilter] reads.
func (f *Filter) Encode() []byte {
	b := append(make([]byte, 0, filterHeader+len(f.Bits)), filterFormat)
	return append(binary.LittleEndian.AppendUint32(b, f.count), f.Bits...)
}

// DecodeFilter reads a row. The filter keeps b, and Add changes it.
func DecodeFilter(b []byte) (*Filter, error) {
	if len(b) < filterHeader || b[0] != filterFormat {
		return nil, ErrFilter
	}
	f := &Filter{binary.LittleEndian.Uint32(b[1:]), b[filterHeader:]}
	if len(f.Bits) != filterLen(segments(f.count)) {
		return nil, ErrFilter
	}
	return f, nil
}
