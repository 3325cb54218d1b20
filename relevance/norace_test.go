//go:build !race

package relevance

const underRace = false
