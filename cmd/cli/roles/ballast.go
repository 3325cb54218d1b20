package roles

import "runtime"

// ballastBytes is how much the collector counts of every role's heap besides
// what is in it. What a broker keeps is a few megabytes, so that without it a
// few requests would be enough for the next collection: a fifth of the
// broker's CPU time, and most of its p99. A request leaves it about 100 KB, so
// that at a thousand a second it runs a few times a second still.
const ballastBytes = 128 << 20

// ballast is never touched, and so takes no memory but addresses.
//
//lint:ignore U1000 it is held, and never read
var ballast []byte

// SpareCollector takes the ballast on. The heap of the process may grow to
// twice its size before the collector runs.
func SpareCollector() {
	ballast = make([]byte, ballastBytes)
	runtime.GC() // the next goal counts it
}
