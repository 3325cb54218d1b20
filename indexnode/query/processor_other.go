//go:build !linux

package query

import "time"

// began is about when the process began.
var began = time.Now()

// threadTime returns the time since the process began, in place of the CPU time of the
// thread, which this system does not tell.
func threadTime() time.Duration { return time.Since(began) }
