package blob

import (
	"encoding/binary"
	"errors"
)

// ErrKey is a key that no store writes.
var ErrKey = errors.New("key")

// ErrRow is a row that is none of its kind.
var ErrRow = errors.New("row")

// AppendString appends a string behind its length.
func AppendString[S ~string](dst []byte, s S) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// CutString takes a string behind its length off b. Lengths are minimal.
func CutString(b []byte) (s string, rest []byte, err error) {
	n, w := binary.Uvarint(b)
	if w <= 0 || n > uint64(len(b)-w) || w > 1 && b[w-1] == 0 {
		return "", nil, ErrKey
	}
	return string(b[w : w+int(n)]), b[w+int(n):], nil
}
