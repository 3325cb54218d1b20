package trees

import "golang.org/x/sys/cpu"

// canSweep tells whether the processor compares 32 bytes at once.
var canSweep = cpu.X86.HasAVX2

// sweep takes the rows of a batch through a tree: see [sweepPortably]. The assembly checks
// no bounds: every move.column+Batch lies within ranks, as layMoves and Forest.rank see to.
//
//go:noescape
func sweep(moves []move, ranks []uint8, leaves *[Batch]uint8)
