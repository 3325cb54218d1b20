//go:build !race

package cache

const inRace = false
