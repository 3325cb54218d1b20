//go:build amd64 || arm64

package ahead

import "unsafe"

// Lines asks for n cache lines of 64 bytes from p on. They go into the second-level
// cache, since the first-level cache is full of data in use. p may be any address.
//
//go:noescape
func Lines(p unsafe.Pointer, n int)
