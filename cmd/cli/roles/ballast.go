package roles

import "runtime"

// ballastBytes is the size of an unused allocation in every role's heap. The garbage
// collector runs when the heap has doubled. A broker keeps only a few megabytes, so
// without the ballast a few requests would start the next collection: collections took a
// fifth of the broker's CPU time, and caused most of its p99 latency. A request leaves about
// 100 KB of garbage, so with the ballast the collector runs about once a second at a
// thousand requests a second.
const ballastBytes = 128 << 20

// ballast is never written, so it takes addresses and no physical memory.
//
//lint:ignore U1000 it is held, and never read
var ballast []byte

// SpareCollector allocates the ballast. From then on the heap may grow to twice
// [ballastBytes] and more before the garbage collector runs.
func SpareCollector() {
	ballast = make([]byte, ballastBytes)
	runtime.GC() // so that the next heap goal includes the ballast
}
