//go:build race

package answers

// slower is how many times as long as usual code takes under the race detector, at most.
const slower = 20
