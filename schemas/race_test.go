//go:build race

package schemas

// underRace: the race detector makes pools forget at random.
const underRace = true
