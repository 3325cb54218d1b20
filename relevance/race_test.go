//go:build race

package relevance

// underRace: everything takes many times as long.
const underRace = true
