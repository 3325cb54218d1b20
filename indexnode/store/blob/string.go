package blob

import (
	"encoding/binary"
	"errors"
)

// ErrKey is the error for a key that no store writes.
var ErrKey = errors.New("key")

// ErrRow is the error for a row that cannot be read as what its key says it is.
var ErrRow = errors.New("row")

// AppendString appends the length of a string as uvarint, and then the string.
func AppendString[S ~string](dst []byte, s S) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// CutString reads what [AppendString] wrote at the beginning of b, and returns the rest of b.
// It refuses, with ErrKey, a length that is not written in as few bytes as possible.
func CutString(b []byte) (s string, rest []byte, err error) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) || w > 1 && b[w-1] == 0 {
		return "", nil, ErrKey
	}
	return string(b[w : w+int(n)]), b[w+int(n):], nil
}
