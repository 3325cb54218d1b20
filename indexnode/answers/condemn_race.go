//go:build race

package answers

// slower is how many times as long as without it code takes with the race
// detector, at most.
const slower = 20
