package compute

import (
	"math"

	"github.com/millrace/millrace/internal/column"
)

// Dots sets dst[i] to [Dot] of lists[i] and the probe, a list of the request, with the
// same bits.
func Dots(dst []float64, lists []column.List, probe *column.Probe) { probe.Dots(dst, lists) }

// L2s sets dst[i] to [L2] of lists[i] and the probe, with the same bits.
func L2s(dst []float64, lists []column.List, probe *column.Probe) {
	probe.Differences(dst, lists)
	for i, x := range dst[:len(lists)] {
		dst[i] = math.Sqrt(x)
	}
}

// Cosines sets dst[i] to [Cosine] of lists[i] and the probe, with the same bits.
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
