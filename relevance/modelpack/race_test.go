//go:build race

package modelpack

// underRace: everything takes many times as long.
const underRace = true
