package kernel

import (
	"encoding/binary"
	"math"
)

// AppendLong appends a long; also an int, the index of a union's branch, or the
// number of items in a block of an array, which ends in a block of 0.
func AppendLong(dst []byte, x int64) []byte { return binary.AppendVarint(dst, x) }

// AppendBoolean appends a boolean.
func AppendBoolean(dst []byte, x bool) []byte {
	if x {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// AppendDouble appends a double. One that is not finite is refused by who reads
// it.
func AppendDouble(dst []byte, x float64) []byte {
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(x))
}

// AppendString appends a string, or bytes. One that is not UTF-8 is refused by
// who reads it as a string.
func AppendString[S ~string | ~[]byte](dst []byte, s S) []byte {
	return append(AppendLong(dst, int64(len(s))), s...)
}
