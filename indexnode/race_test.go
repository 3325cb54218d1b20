//go:build race

package indexnode

func init() { raceEnabled = true }
