package compute

import (
	"encoding/binary"
	"math"
	"math/bits"
	"unicode/utf8"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/column"
)

// highBits is the high bit of each of eight bytes. It is set in a byte that is not ASCII,
// and in a byte of a varint that is not its last.
const highBits = 0x8080808080808080

// ReadLong reads an Avro long, a zigzag varint, and returns it in two's complement. It
// gives up on a varint that is longer than its value needs.
func ReadLong(b []byte, at int) (uint64, int) {
	if uint(at) < uint(len(b)) && b[at] < 0x80 {
		u := uint64(b[at])
		return u>>1 ^ -(u & 1), at + 1
	}
	if uint(at+1) < uint(len(b)) && at >= 0 && b[at+1]-1 < 0x7f { // two bytes; the last is not 0
		u := uint64(b[at]&0x7f) | uint64(b[at+1])<<7
		return u>>1 ^ -(u & 1), at + 2
	}
	return longVarint(b, at)
}

// ReadLongRun reads len(to) longs, one after the other, into to.
func ReadLongRun(b []byte, at int, to []uint64) int {
	for i := range to {
		if uint(at) < uint(len(b)) && b[at] < 0x80 {
			u := uint64(b[at])
			to[i] = u>>1 ^ -(u & 1)
			at++
			continue
		}
		to[i], at = ReadLong(b, at)
	}
	return at
}

// longVarint reads a varint of up to 8 bytes out of one word of 8 bytes. Where it cannot,
// it calls lastVarint.
func longVarint(b []byte, at int) (uint64, int) {
	if at < 0 || len(b)-at < 8 {
		return lastVarint(b, at)
	}
	x := binary.LittleEndian.Uint64(b[at:])
	stop := ^x & highBits
	if stop == 0 {
		return lastVarint(b, at)
	}
	size := bits.TrailingZeros64(stop)/8 + 1
	x &= (stop ^ (stop - 1)) &^ highBits // 7 bits of each byte up to the last
	x = x&0x007f007f007f007f | x&0x7f007f007f007f00>>1
	x = x&0x00003fff00003fff | x&0x3fff00003fff0000>>2
	x = x&0x000000000fffffff | x&0x0fffffff00000000>>4
	if size > 1 && x>>(7*(size-1)) == 0 {
		return 0, -1 // not the shortest
	}
	return x>>1 ^ -(x & 1), at + size
}

// lastVarint reads a varint of any length, a byte at a time. It is for varints near the end
// of the body, and for those of more than 8 bytes.
func lastVarint(b []byte, at int) (uint64, int) {
	if at < 0 {
		return 0, -1
	}
	u, n := binary.Uvarint(b[at:])
	if n <= 0 || n > 1 && b[at+n-1] == 0 {
		return 0, -1
	}
	return u>>1 ^ -(u & 1), at + n
}

// ReadInt reads an Avro int: a long that fits into 32 bits.
func ReadInt(b []byte, at int) (uint64, int) {
	x, at := ReadLong(b, at)
	if int64(x) != int64(int32(x)) {
		return 0, -1
	}
	return x, at
}

// ReadTime reads a record's time: a long, in milliseconds since the epoch. It gives up on a
// time that is not from millrace.MinTime to before millrace.MaxTime.
func ReadTime(b []byte, at int) (uint64, int) {
	x, at := longVarint(b, at)
	if int64(x) < int64(millrace.MinTime) || int64(x) >= int64(millrace.MaxTime) {
		return 0, -1
	}
	return x, at
}

// ReadBoolean reads a boolean.
func ReadBoolean(b []byte, at int) (uint64, int) {
	if uint(at) >= uint(len(b)) || b[at] > 1 {
		return 0, -1
	}
	return uint64(b[at]), at + 1
}

// ReadFloat reads a float, and returns it as the bits of a double. It gives up on NaN and
// infinity.
func ReadFloat(b []byte, at int) (uint64, int) {
	if at < 0 || len(b)-at < 4 {
		return 0, -1
	}
	u := binary.LittleEndian.Uint32(b[at:])
	if u>>23&0xff == 0xff { // NaN or infinite
		return 0, -1
	}
	return math.Float64bits(float64(math.Float32frombits(u))), at + 4
}

// ReadDouble reads a double, and returns its bits. It gives up on NaN and infinity.
func ReadDouble(b []byte, at int) (uint64, int) {
	if at < 0 || len(b)-at < 8 {
		return 0, -1
	}
	u := binary.LittleEndian.Uint64(b[at:])
	if u>>52&0x7ff == 0x7ff { // NaN or infinite
		return 0, -1
	}
	return u, at + 8
}

// ReadIndex reads the index of one of n branches of a union, or of one of n symbols of an
// enum. It gives up on an index that is not below n.
func ReadIndex(b []byte, at, n int) (uint64, int) {
	x, at := ReadLong(b, at)
	if x >= uint64(n) {
		return 0, -1
	}
	return x, at
}

// SkipFixed passes over a value of n bytes.
func SkipFixed(b []byte, at, n int) int {
	if at < 0 || n > len(b)-at {
		return -1
	}
	return at + n
}

// SkipBytes passes over a value of Avro's types bytes or string, with its length.
func SkipBytes(b []byte, at int) int {
	n, at := ReadLong(b, at)
	if at < 0 || n > uint64(len(b)-at) {
		return -1
	}
	return at + int(n)
}

// ReadEmpty passes over an array or map without items. It gives up on one that has any.
func ReadEmpty(b []byte, at int) int {
	if uint(at) >= uint(len(b)) || b[at] != 0 {
		return -1
	}
	return at + 1
}

// ReadString reads a string, and returns its word in a row whose heap has b at the offset
// base. It gives up on a string that is not UTF-8.
func ReadString(b []byte, at, base int) (uint64, int) {
	var n int
	if uint(at) < uint(len(b)) && b[at]&0x81 == 0 { // the usual: a length of one byte
		n = int(b[at] >> 1)
		at++
	} else {
		var x uint64
		if x, at = ReadLong(b, at); at < 0 || x > millrace.MaxBodyBytes {
			return 0, -1
		}
		n = int(x)
	}
	rest := b[at:]
	if n > len(rest) {
		return 0, -1
	}
	if n <= 7 {
		if len(rest) >= 8 {
			x := binary.LittleEndian.Uint64(rest) & (1<<(8*n&63) - 1)
			if x&highBits == 0 {
				return column.ShortWord(x, n), at + n
			}
		}
		return short(rest[:n], at+n)
	}
	if x := binary.LittleEndian.Uint64(rest) | binary.LittleEndian.Uint64(rest[n-8:]); n <= 16 && x&highBits == 0 || valid(rest[:n]) {
		return column.LongWord(base+at, n), at + n
	}
	return 0, -1
}

// short returns the word of a string of up to 7 bytes, and next, the position after it.
// It gives up on a string that is not UTF-8.
func short(s []byte, next int) (uint64, int) {
	if !utf8.Valid(s) {
		return 0, -1
	}
	return shortWord(s), next
}

// shortWord returns the word of up to 7 bytes, which need not be UTF-8.
func shortWord(s []byte) uint64 {
	var x uint64
	for i, c := range s {
		x |= uint64(c) << (8 * i)
	}
	return column.ShortWord(x, len(s))
}

// valid reports whether a string of at least 8 bytes is UTF-8.
func valid(s []byte) bool {
	x := binary.LittleEndian.Uint64(s[len(s)-8:])
	for r := s; len(r) >= 8; r = r[8:] {
		x |= binary.LittleEndian.Uint64(r)
	}
	return x&highBits == 0 || utf8.Valid(s)
}
