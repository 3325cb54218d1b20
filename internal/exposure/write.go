package exposure

import (
	"encoding/binary"
	"math"
)

// appendLong appends a long of Avro. An int, the index of a union's branch, and the number
// of items in a block of an array are written the same way. An array ends with a block of
// 0 items.
func appendLong(dst []byte, x int64) []byte { return binary.AppendVarint(dst, x) }

// appendBoolean appends a boolean.
func appendBoolean(dst []byte, x bool) []byte {
	if x {
		return append(dst, 1)
	}
	return append(dst, 0)
}

// appendDouble appends a double. Readers refuse one that is not finite.
func appendDouble(dst []byte, x float64) []byte {
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(x))
}

// appendString appends a string, or bytes. Readers refuse a string that is not UTF-8.
func appendString[S ~string | ~[]byte](dst []byte, s S) []byte {
	return append(appendLong(dst, int64(len(s))), s...)
}
