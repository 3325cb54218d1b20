//go:build race

package race

const (
	// Enabled is whether the race detector watches.
	Enabled = true
	// Slower is how many times as long code takes as without it, at most.
	Slower = 20
)
