//go:build !amd64

package trees

// canSweep is false, since a sweep in plain Go is slower than the walk.
const canSweep = false

func sweep(moves []move, ranks []uint8, leaves *[Batch]uint8) { sweepPortably(moves, ranks, leaves) }
