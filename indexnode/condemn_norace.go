//go:build !race

package indexnode

// slower is 1, without the race detector.
const slower = 1
