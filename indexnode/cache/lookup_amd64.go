//go:build !race

package cache

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// prefetch asks the processor for buckets. Unlike a load it waits for nothing.
//
//go:noescape
func prefetch(buckets []*bucket)

// locate is locatePortably, and asks for the buckets as it goes.
func (t *table) locate(b *batch, names *[batchKeys]id, typ id) {
	locate(b, names, typ, unsafe.SliceData(t.buckets), t.mask)
}

// match is matchPortably, four words at a time.
func (b *batch) match(values, odd *[batchKeys]uint64) {
	if cpu.X86.HasAVX2 {
		matchAVX2(b, values, odd)
	} else {
		b.matchPortably(values, odd)
	}
}

//go:noescape
func locate(b *batch, names *[batchKeys]id, typ id, buckets *bucket, mask uint64)

//go:noescape
func matchAVX2(b *batch, values, odd *[batchKeys]uint64)
