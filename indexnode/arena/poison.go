//go:build !race

package arena

// poison is true in builds with the race detector: see poison_race.go.
const poison = false
