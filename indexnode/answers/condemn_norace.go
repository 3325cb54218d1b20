//go:build !race

package answers

// slower is 1, without the race detector.
const slower = 1
