package compute

import (
	"math"

	"github.com/millrace/millrace/internal/column"
)

// Dots is [Dot] of each list and of the probe, to the bit.
func Dots(dst []float64, lists []column.List, probe *column.Probe) { probe.Dots(dst, lists) }

// L2s is [L2] of each list and of the probe, to the bit.
func L2s(dst []float64, lists []column.List, probe *column.Probe) {
	probe.Differences(dst, lists)
	for i, x := range dst[:len(lists)] {
		dst[i] = math.Sqrt(x)
	}
}

// Cosines is [Cosine] of each list and of the probe, to the bit.
func Cosines(dst []float64, lists []column.List, probe *column.Probe) {
	probe.Dots(dst, lists)
	length := math.Sqrt(probe.Square())
	var squares [MatrixRows]float64
	for len(lists) > 0 {
		n := min(len(lists), len(squares))
		probe.Squares(squares[:n], lists[:n])
		for i, x := range squares[:n] {
			dst[i] /= float64(math.Sqrt(x) * length)
		}
		dst, lists = dst[n:], lists[n:]
	}
}
