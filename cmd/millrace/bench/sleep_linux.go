package bench

import (
	"syscall"
	"time"
)

// sleepUntil sleeps in the kernel: the runtime's timers wake an idle process
// up to a millisecond late, which would be taken for latency.
func sleepUntil(t time.Time) {
	for d := time.Until(t); d > 0; d = time.Until(t) {
		ts := syscall.NsecToTimespec(d.Nanoseconds())
		_ = syscall.Nanosleep(&ts, nil) // a signal wakes it early
	}
}
