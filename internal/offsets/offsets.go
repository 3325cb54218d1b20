// Package offsets reads and writes the part of a receipt that says how much of the log an
// answer includes: for each partition the offsets of two topics, packed or as lists.
//
// The packed form begins with the number of partitions, as a uvarint. Then come
// three columns with a number for each partition: how far the partition's number
// is above the one before it, counted from -1; its offset in the timeline topic;
// and its offset in the features topic. A column begins with its least number, as
// a uvarint, and a byte that says how many bits the greatest difference from that
// takes. Then come the differences of all its numbers from the least one, in so
// many bits each, the lowest bit first; the last byte is filled up with zeros.
package offsets

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/partition"
)

// Next are the offsets, in the timeline and the features topic, of the first entries of a
// partition that an answer does not include.
type Next struct{ Content, Features int64 }

// Part is a partition in an answer.
type Part struct {
	Partition millrace.Partition
	Next
}

// Compare orders parts by partition.
func (p Part) Compare(q Part) int { return int(p.Partition) - int(q.Partition) }

// columns is how many numbers the packed form has for each partition.
const columns = 3

// Pack returns parts in the packed form. They must be sorted by partition, each once.
func Pack(parts []Part) []byte {
	b := make([]byte, 0, 64+3*len(parts))
	b = binary.AppendUvarint(b, uint64(len(parts)))
	column := make([]uint64, len(parts))
	for c := range columns {
		before := -1
		for i, p := range parts {
			column[i] = [columns]uint64{uint64(int(p.Partition) - before), uint64(p.Content), uint64(p.Features)}[c]
			before = int(p.Partition)
		}
		b = appendColumn(b, column)
	}
	return b
}

// appendColumn appends a column in the packed form.
func appendColumn(b []byte, column []uint64) []byte {
	if len(column) == 0 {
		return b
	}
	least, most := column[0], column[0]
	for _, x := range column {
		least, most = min(least, x), max(most, x)
	}
	width := bits.Len64(most - least)
	b = append(binary.AppendUvarint(b, least), byte(width))
	var word uint64 // the bits that are not written yet, the lowest first
	full := 0       // how many bits of word are used
	for _, x := range column {
		x -= least
		word |= x << full
		if full += width; full >= 64 {
			b = binary.LittleEndian.AppendUint64(b, word)
			full -= 64
			word = x >> (width - full) // 0 if all of x was written, also for a shift by 64
		}
	}
	for ; full > 0; full -= 8 {
		b = append(b, byte(word))
		word >>= 8
	}
	return b
}

var errMalformed = errors.New("offsets: the packed offsets are malformed")

// unpack returns the parts of the packed form. It returns errMalformed for anything else.
func unpack(b []byte) ([]Part, error) {
	n, size := binary.Uvarint(b)
	if size <= 0 || n > partition.Count {
		return nil, errMalformed
	}
	b = b[size:]
	var read [columns][]uint64
	for c := range read {
		var err error
		if read[c], b, err = readColumn(b, int(n)); err != nil {
			return nil, err
		}
	}
	if len(b) > 0 {
		return nil, errMalformed
	}
	parts := make([]Part, n)
	at := uint64(0) // 1 + the partition before
	for i := range parts {
		gap := read[0][i]
		if gap == 0 || gap > partition.Count-at {
			return nil, errMalformed
		}
		at += gap
		parts[i] = Part{millrace.Partition(at - 1), Next{int64(read[1][i]), int64(read[2][i])}}
	}
	return parts, nil
}

// readColumn reads a column of n numbers, and returns the bytes that follow it.
func readColumn(b []byte, n int) (column []uint64, rest []byte, err error) {
	if n == 0 {
		return nil, b, nil
	}
	least, size := binary.Uvarint(b)
	if size <= 0 || size == len(b) || b[size] > 64 {
		return nil, nil, errMalformed
	}
	width := int(b[size])
	b = b[size+1:]
	bytes := (n*width + 7) / 8
	if bytes > len(b) {
		return nil, nil, errMalformed
	}
	column = make([]uint64, n)
	at := 0
	for i := range column {
		for got := 0; got < width; {
			n := min(width-got, 8-at%8)
			column[i] |= uint64(b[at/8]>>(at%8)&(1<<n-1)) << got
			got, at = got+n, at+n
		}
		column[i] += least
	}
	return column, b[bytes:], nil
}

// Parts returns the partitions of a node's part of an answer, packed or as
// lists.
func Parts(a *feedv1.Applied) ([]Part, error) {
	if len(a.GetPacked()) > 0 {
		return unpack(a.Packed)
	}
	if len(a.GetPartitions()) != len(a.GetContent()) || len(a.GetPartitions()) != len(a.GetFeatures()) {
		return nil, errors.New("offsets: the lists of a node differ in length")
	}
	parts := make([]Part, len(a.GetPartitions()))
	for i, p := range a.GetPartitions() {
		parts[i] = Part{millrace.Partition(p), Next{a.Content[i], a.Features[i]}}
	}
	return parts, nil
}

// Read returns what an answer includes of each partition, whichever form its
// receipt has.
func Read(r *feedv1.Receipt) (map[millrace.Partition]Next, error) {
	all := map[millrace.Partition]Next{}
	for _, a := range r.GetApplied() {
		parts, err := Parts(a)
		if err != nil {
			return nil, err
		}
		for _, p := range parts {
			if _, twice := all[p.Partition]; twice {
				return nil, fmt.Errorf("offsets: partition %d is there twice", p.Partition)
			}
			all[p.Partition] = p.Next
		}
	}
	return all, nil
}

// Digest is a checksum of partitions and their offsets that does not depend on their order.
// Answers with the same digest include the same part of the log.
type Digest uint64

// Add adds a partition: XXH64 of its number in 4 bytes and its offsets in 8
// each, little-endian.
func (d *Digest) Add(p Part) {
	var b [20]byte
	binary.LittleEndian.PutUint32(b[:], uint32(p.Partition))
	binary.LittleEndian.PutUint64(b[4:], uint64(p.Content))
	binary.LittleEndian.PutUint64(b[12:], uint64(p.Features))
	*d += Digest(xxhash.Sum64(b[:]))
}

// String returns 16 hexadecimal digits.
func (d Digest) String() string { return fmt.Sprintf("%016x", uint64(d)) }
