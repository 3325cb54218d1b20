package store

import (
	"encoding/binary"
	"errors"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
)

// filter tells whether an id may be outside the head of its timeline, so that
// a new id, which is nearly every one, costs no look-up. It is a Bloom filter
// that grows by segments, each of twice the room of the one before; ids are
// never taken out.
//
//	0  format, 1
//	1  number of ids added, uint32
//	5  the segments: segment i is 80<<i bytes for 64<<i ids
type filter struct {
	count uint32
	bits  []byte
}

const (
	filterFormat  = 1
	filterHeader  = 5
	filterRoom    = 64 // ids of the first segment
	filterBytes   = filterRoom * filterBitsPer / 8
	filterBitsPer = 10
	filterProbes  = 6
)

var errFilter = errors.New("filter")

// segments is how many segments hold count ids: the first n have room for
// filterRoom * (2^n - 1).
func segments(count uint32) (n int) {
	for uint64(count) > filterRoom*(1<<n-1) {
		n++
	}
	return n
}

func filterLen(segments int) int { return filterBytes * (1<<segments - 1) }

func (f *filter) add(id millrace.RecordID) {
	f.count++
	n := segments(f.count)
	if grow := filterLen(n) - len(f.bits); grow > 0 {
		f.bits = append(f.bits, make([]byte, grow)...)
	}
	probe(id, f.bits[filterLen(n-1):], func(b *byte, bit byte) bool { *b |= bit; return true })
}

func (f *filter) mayHave(id millrace.RecordID) bool {
	for n := segments(f.count); n > 0; n-- {
		if probe(id, f.bits[filterLen(n-1):filterLen(n)], func(b *byte, bit byte) bool { return *b&bit != 0 }) {
			return true
		}
	}
	return false
}

// probe visits an id's bits until visit says no.
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

func (f *filter) encode() []byte {
	b := append(make([]byte, 0, filterHeader+len(f.bits)), filterFormat)
	return append(binary.LittleEndian.AppendUint32(b, f.count), f.bits...)
}

// decodeFilter reads a row, which it keeps.
func decodeFilter(b []byte) (*filter, error) {
	if len(b) < filterHeader || b[0] != filterFormat {
		return nil, errFilter
	}
	f := &filter{binary.LittleEndian.Uint32(b[1:]), b[filterHeader:]}
	if len(f.bits) != filterLen(segments(f.count)) {
		return nil, errFilter
	}
	return f, nil
}
