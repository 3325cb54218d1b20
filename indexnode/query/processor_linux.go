package query

import (
	"time"

	"golang.org/x/sys/unix"
)

// threadTime is the time of a processor that this thread has had.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // which every Linux has
	return time.Duration(t.Nano())
}
