//go:build race

package cache

// inRace: the arena is memory of the Go heap.
const inRace = true
