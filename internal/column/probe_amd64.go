package column

import "golang.org/x/sys/cpu"

// hasAVX2 tells whether the processor has AVX2, which the assembly needs. Tests of the
// plain Go code set it to false.
var hasAVX2 = cpu.X86.HasAVX2

// wholeProducts writes, for each list of small whole numbers, the sum of its products
// with the numbers at whole. It stops at the first list whose width is not 1 or that has
// not n items, and returns how many come before it. n is at least a block and at most
// mostWhole. One more block follows the n numbers at whole, for the items behind the last
// whole block; see [Probe.Set].
//
//go:noescape
func wholeProducts(dst *float64, lists *List, rows int, whole *int16, n int) int

// wholeSquares is wholeProducts of the lists with themselves. mask points to the mask of
// the block that ends with the last item, see behind.
//
//go:noescape
func wholeSquares(dst *float64, lists *List, rows int, mask *int16, n int) int

// sumEight adds to sums what the first n items contribute; n is a multiple of 4. width is
// that of the lists, and items are the probe's.
func sumEight(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n, width int, of summed) {
	switch of {
	case products:
		switch width {
		case 8:
			productsDouble(sums, lists, items, n)
		case 4:
			productsFloat(sums, lists, items, n)
		default:
			productsInt8(sums, lists, items, n)
		}
	case differences:
		switch width {
		case 8:
			differencesDouble(sums, lists, items, n)
		case 4:
			differencesFloat(sums, lists, items, n)
		default:
			differencesInt8(sums, lists, items, n)
		}
	default: // squares of small whole numbers are summed as integers, by wholeSquares
		if width == 8 {
			squaresDouble(sums, lists, n)
		} else {
			squaresFloat(sums, lists, n)
		}
	}
}

//go:noescape
func productsDouble(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)

//go:noescape
func productsFloat(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)

//go:noescape
func productsInt8(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)

//go:noescape
func differencesDouble(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)

//go:noescape
func differencesFloat(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)

//go:noescape
func differencesInt8(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)

//go:noescape
func squaresDouble(sums *[groupLists]float64, lists *[groupLists]List, n int)

//go:noescape
func squaresFloat(sums *[groupLists]float64, lists *[groupLists]List, n int)
