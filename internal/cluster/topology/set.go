package topology

import (
	"encoding/binary"
	"fmt"
	"iter"
	"math/bits"
	"strconv"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// Set is a set of partitions, with a bit for each. The zero Set is empty.
type Set [(partition.Count + 63) / 64]uint64

// All returns the set of all partitions.
func All() Set {
	var s Set
	for p := range millrace.Partition(partition.Count) {
		s.Add(p)
	}
	return s
}

// Add puts p into the set.
func (s *Set) Add(p millrace.Partition) { s[p/64] |= 1 << (p % 64) }

// Remove takes p out of the set.
func (s *Set) Remove(p millrace.Partition) { s[p/64] &^= 1 << (p % 64) }

// Has reports whether p is in the set.
func (s *Set) Has(p millrace.Partition) bool { return s[p/64]&(1<<(p%64)) != 0 }

// Len returns the number of partitions in the set.
func (s *Set) Len() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// And returns what is in both sets.
func (s *Set) And(o Set) Set {
	for i := range o {
		o[i] &= s[i]
	}
	return o
}

// Or returns what is in either set.
func (s *Set) Or(o Set) Set {
	for i := range o {
		o[i] |= s[i]
	}
	return o
}

// Minus returns what is in s and not in o.
func (s *Set) Minus(o Set) Set {
	for i := range o {
		o[i] = s[i] &^ o[i]
	}
	return o
}

// All yields the partitions of the set, lowest first.
func (s *Set) All() iter.Seq[millrace.Partition] {
	return func(yield func(millrace.Partition) bool) {
		for i, w := range s {
			for ; w != 0; w &= w - 1 {
				if !yield(millrace.Partition(i*64 + bits.TrailingZeros64(w))) {
					return
				}
			}
		}
	}
}

// String returns the partitions of the set as ranges, such as "0-3,7": the
// first ten of them.
func (s *Set) String() string {
	ranges := s.ranges()
	if len(ranges) > maxRanges {
		ranges = append(ranges[:maxRanges], "...")
	}
	return strings.Join(ranges, ",")
}

// maxRanges is how many ranges String shows.
const maxRanges = 10

// Ranges returns all partitions of the set as ranges, such as "0-3,7".
func (s *Set) Ranges() string { return strings.Join(s.ranges(), ",") }

// MarshalText writes the set as [ParseSet] reads it.
func (s Set) MarshalText() ([]byte, error) { return []byte(s.Ranges()), nil }

// UnmarshalText reads what MarshalText wrote. An empty text is the empty set.
func (s *Set) UnmarshalText(text []byte) (err error) {
	*s = Set{}
	if len(text) > 0 {
		*s, err = ParseSet(string(text))
	}
	return err
}

func (s *Set) ranges() (all []string) {
	from, to := -1, -1
	end := func() {
		switch {
		case from == to && from >= 0:
			all = append(all, strconv.Itoa(from))
		case from >= 0:
			all = append(all, fmt.Sprintf("%d-%d", from, to))
		}
	}
	for p := range s.All() {
		if int(p) != to+1 || from < 0 {
			end()
			from = int(p)
		}
		to = int(p)
	}
	end()
	return all
}

// ParseSet reads partitions and ranges of them, such as "0-3,7". An empty text is an error.
func ParseSet(text string) (s Set, err error) {
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil || from < 0 || to < from || to >= partition.Count {
			return s, &millrace.Error{
				Reason: millrace.ReasonInvalid, Field: "partitions", Detail: fmt.Sprintf("%.40q is neither a partition nor a range of them", part),
				WayOut: fmt.Sprintf("write such as 0-3,7; the last is %d", partition.Count-1),
			}
		}
		for p := from; p <= to; p++ {
			s.Add(millrace.Partition(p))
		}
	}
	return s, nil
}

// setBytes is the length of an encoded set.
const setBytes = partition.Count / 8

// Encode returns the set as etcd holds it: 90 bytes, partition p in bit p%8 of
// byte p/8.
func (s *Set) Encode() []byte {
	var b []byte
	for _, w := range s {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b[:setBytes]
}

func decodeSet(b []byte) (s Set, err error) {
	if len(b) != setBytes {
		return s, fmt.Errorf("a partition set has %d bytes, not %d", setBytes, len(b))
	}
	var padded [len(s) * 8]byte
	copy(padded[:], b)
	for i := range s {
		s[i] = binary.LittleEndian.Uint64(padded[i*8:])
	}
	return s, nil
}
