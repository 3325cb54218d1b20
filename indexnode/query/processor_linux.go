package query

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime returns the CPU time that this thread has had.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // every Linux has this clock
	return time.Duration(t.Nano())
}
