package trees

import "golang.org/x/sys/cpu"

// canSweep reports whether the processor can compare 32 bytes at once.
var canSweep = cpu.X86.HasAVX2

// sweep takes the rows of a batch through a tree: see [sweepPortably]. The assembly checks
// no bounds: layMoves and Forest.rank make sure that every move.column+Batch is within
// ranks.
//
//go:noescape
func sweep(moves []move, ranks []uint8, leaves *[Batch]uint8)
