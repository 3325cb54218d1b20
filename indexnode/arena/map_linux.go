//go:build linux && !race

package arena

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// hugeBytes is the usual size of a huge page.
const hugeBytes = 2 << 20

// rounded returns how many bytes are mapped for n: whole huge pages.
func rounded(n int) int { return (n + hugeBytes - 1) &^ (hugeBytes - 1) }

// mapped returns rounded(n) bytes from the system, and panics if it has none. Pages that
// nobody has written to take no memory.
func mapped(n int) []byte {
	n = rounded(n)
	b, err := unix.MmapPtr(-1, 0, nil, uintptr(n+hugeBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		panic(fmt.Sprintf("arena: mapping %d bytes: %v", n, err)) // the runtime ends the process, too, if the Go heap cannot grow
	}
	// A huge page begins at a multiple of its size. So one more than needed was mapped, and
	// the bytes before the first and after the last whole page go back.
	skip := int(-uintptr(b) & (hugeBytes - 1))
	at := unsafe.Add(b, skip)
	if skip > 0 {
		_ = unix.MunmapPtr(b, uintptr(skip))
	}
	if behind := hugeBytes - skip; behind > 0 {
		_ = unix.MunmapPtr(unsafe.Add(at, n), uintptr(behind))
	}
	all := unsafe.Slice((*byte)(at), n)
	_ = unix.Madvise(all, unix.MADV_HUGEPAGE) // a system without huge pages uses small ones
	return all
}

func unmap(b []byte) { _ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(b)), uintptr(len(b))) }
