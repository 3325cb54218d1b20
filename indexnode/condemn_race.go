//go:build race

package indexnode

// slower is how many times as long as without it code takes with the race
// detector, at most.
const slower = 20
