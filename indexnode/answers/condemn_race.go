//go:build race

package answers

// slower is how many times as long code takes as in a build without the race detector, at
// most.
const slower = 20
