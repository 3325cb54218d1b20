//go:build !race

// Package race tells builds with Go's race detector from others.
package race

const (
	// Enabled is whether the race detector watches: all takes many times as long, memory of
	// the arena is of the Go heap, and pools forget at random.
	Enabled = false
	// Slower is how many times as long code takes as without it, at most.
	Slower = 1
)
