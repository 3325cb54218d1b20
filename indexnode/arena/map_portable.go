//go:build !linux || race

package arena

import "unsafe"

// rounded returns how many bytes are mapped for n.
func rounded(n int) int { return (n + Align - 1) &^ (Align - 1) }

// mapped returns rounded(n) bytes of the Go heap. The garbage collector marks them as one
// object and never looks into them. The race detector watches the Go heap alone, so builds
// with it use this file, too.
func mapped(n int) []byte {
	n = rounded(n)
	words := make([][Align / 8]uint64, n/Align+1)
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), len(words)*Align)
	skip := int(-address(b) & (Align - 1))
	return b[skip : skip+n]
}

// unmap does nothing: the garbage collector frees what nobody points to.
func unmap([]byte) {}
