//go:build !linux

package query

import "time"

var began = time.Now()

// threadTime is the time that has passed, where that of a processor is not to be
// had.
func threadTime() time.Duration { return time.Since(began) }
