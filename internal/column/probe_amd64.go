package column

import "golang.org/x/sys/cpu"

// hasAVX2 tells whether the processor has what the kernels are made of. It is false in
// tests of plain Go.
var hasAVX2 = cpu.X86.HasAVX2

// wholeProducts writes the sums of the products of small whole numbers and those at
// whole, and returns how many lists come before the first that has another width than 1
// or other than n items, which are at least a block and at most mostWhole. Behind the
// items at whole is a block for those behind the last whole block; see [Probe.Set].
//
//go:noescape
func wholeProducts(dst *float64, lists *List, rows int, whole *int16, n int) int

// wholeSquares is wholeProducts of the lists and themselves. At mask is the mask of the
// block that ends with the last item.
//
//go:noescape
func wholeSquares(dst *float64, lists *List, rows int, mask *int16, n int) int

// sumEight adds up what is of the first n items, a multiple of 4.
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
	default: // of small whole numbers they are integers
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
