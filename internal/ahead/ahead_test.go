package ahead

import (
	"testing"
	"unsafe"
)

// Prefetching reads no memory: it may be asked for what is not there.
func TestLinesOfAnything(t *testing.T) {
	x := [4]uint64{1, 2, 3, 4}
	Lines(unsafe.Pointer(&x), 1)
	Lines(unsafe.Pointer(&x), 100)
	Lines(unsafe.Pointer(&x), 0)
	Lines(nil, 3)
	if x != [4]uint64{1, 2, 3, 4} {
		t.Error(x)
	}
}
