package exposure

import (
	"encoding/binary"
	"math"
)

// appendLong appends a long; also an int, the index of a union's branch, or the
// number of items in a block of an array, which ends in a block of 0.
func appendLong(dst []byte, x int64) []byte { return binary.AppendVarint(dst, x) }

// appendBoolean appends a boolean.
func appendBoolean(dst []byte, x bool) []byte {
	if x {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// appendDouble appends a double. One that is not finite is refused by who reads
// it.
func appendDouble(dst []byte, x float64) []byte {
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(x))
}

// appendString appends a string, or bytes. One that is not UTF-8 is refused by
// who reads it as a string.
func appendString[S ~string | ~[]byte](dst []byte, s S) []byte {
	return append(appendLong(dst, int64(len(s))), s...)
}
