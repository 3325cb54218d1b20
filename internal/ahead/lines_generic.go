//go:build !amd64 && !arm64

package ahead

import "unsafe"

// Lines does nothing on this processor; see lines_asm.go.
func Lines(p unsafe.Pointer, n int) {}
