//go:build !race

package modelpack

const underRace = false
