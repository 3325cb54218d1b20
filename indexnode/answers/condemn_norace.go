//go:build !race

package answers

// slower is how many times as long code takes as in a build without the race detector, at
// most. This is such a build.
const slower = 1
