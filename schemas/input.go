package schemas

import (
	"encoding/binary"
	"math"
	"unicode/utf8"

	"github.com/millrace/millrace"
)

// input reads the primitives of a body strictly. After a fault every read
// returns a zero, so that callers can make several reads and look at fault once.
type input struct {
	b     []byte
	at    int    // the next byte
	fault Reason // the first fault; empty: none
}

// fail keeps the first fault and ends the input.
func (in *input) fail(r Reason) {
	if in.fault == "" {
		in.fault = r
	}
	in.at = len(in.b)
}

func (in *input) long() int64 {
	if in.at < len(in.b) && in.b[in.at] < 0x80 {
		u := in.b[in.at]
		in.at++
		return int64(u>>1) ^ -int64(u&1)
	}
	return in.longVarint()
}

// longVarint reads a varint of any length. It must be the shortest one for
// its value, and its value must fit 64 bits.
func (in *input) longVarint() int64 {
	var u uint64
	for i := 0; i < binary.MaxVarintLen64; i++ {
		if in.at+i >= len(in.b) {
			in.fail(Truncated)
			return 0
		}
		c := in.b[in.at+i]
		u |= uint64(c&0x7f) << (7 * i)
		if c >= 0x80 {
			continue
		}
		if c == 0 && i > 0 || c > 1 && i == binary.MaxVarintLen64-1 {
			break
		}
		in.at += i + 1
		return int64(u>>1) ^ -int64(u&1)
	}
	in.fail(BadVarint)
	return 0
}

func (in *input) int() int64 {
	x := in.long()
	if x != int64(int32(x)) {
		in.fail(BadVarint)
		return 0
	}
	return x
}

func (in *input) boolean() bool {
	b := in.take(1)
	if b == nil {
		return false
	}
	if b[0] > 1 {
		in.fail(BadBoolean)
	}
	return b[0] == 1
}

func (in *input) float() float64 {
	b := in.take(4)
	if b == nil {
		return 0
	}
	return in.finite(float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
}

func (in *input) double() float64 {
	b := in.take(8)
	if b == nil {
		return 0
	}
	return in.finite(math.Float64frombits(binary.LittleEndian.Uint64(b)))
}

func (in *input) finite(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		in.fail(NotFinite)
		return 0
	}
	return x
}

func (in *input) bytes() []byte {
	if in.at < len(in.b) && in.b[in.at]&0x81 == 0 { // the usual: a length of one byte
		from, n := in.at+1, int(in.b[in.at]>>1)
		if n <= len(in.b)-from {
			in.at = from + n
			return in.b[from:in.at:in.at]
		}
	}
	n := in.length(in.long())
	return in.take(n)
}

func (in *input) string() []byte {
	b := in.bytes()
	if !utf8.Valid(b) {
		in.fail(InvalidUTF8)
		return nil
	}
	return b
}

// index reads the index of one of n branches or symbols. An index out of range is the
// fault that is given.
func (in *input) index(n int, fault Reason) int {
	i := in.long()
	if i < 0 || i >= int64(n) {
		in.fail(fault)
		return 0
	}
	return int(i)
}

// take returns the next n bytes, which share the body's memory, or nil if there are not as
// many. It returns a slice of length 0, not nil, for n = 0.
func (in *input) take(n int) []byte {
	if n > len(in.b)-in.at {
		in.fail(Truncated)
		return nil
	}
	b := in.b[in.at : in.at+n : in.at+n]
	in.at += n
	return b
}

// length checks a length in bytes, or a count of items of at least one byte
// each, against the bytes that the body has left. It returns 0 after a fault.
func (in *input) length(n int64) int {
	switch {
	case n < 0 || n > millrace.MaxBodyBytes:
		in.fail(BadCount)
	case n > int64(len(in.b)-in.at):
		in.fail(Truncated)
	default:
		return int(n)
	}
	return 0
}

// block reads the head of an array's or a map's next block. count is the number of its
// items; 0 is the end of the array or map, or a fault. end is where the block must end, or
// -1 if its head does not say.
func (in *input) block() (count, end int) {
	n := in.long()
	if n >= 0 {
		return in.length(n), -1
	}
	if n == math.MinInt64 {
		in.fail(BadCount)
		return 0, -1
	}
	size := in.length(in.long())
	end = in.at + size
	return in.length(-n), end
}

// endBlock checks that a block ended where its head said.
func (in *input) endBlock(end int) {
	if end >= 0 && end != in.at {
		in.fail(BadCount)
	}
}
