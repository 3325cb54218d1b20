//go:build race

package answers

func init() { raceEnabled = true }
