//go:build !race

package answers

// slower is how many times as long as usual code takes: 1 without the race detector.
const slower = 1
