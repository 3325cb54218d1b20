//go:build !race

package schemas

const underRace = false
