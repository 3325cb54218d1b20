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
	switch {
	case width == 8 && of == products:
		productsDouble(sums, lists, items, n)
	case width == 8:
		squaresDouble(sums, lists, n)
	case width == 4 && of == products:
		productsFloat(sums, lists, items, n)
	case width == 4:
		squaresFloat(sums, lists, n)
	case of == products:
		productsInt8(sums, lists, items, n)
	default:
		panic("column: squares of small whole numbers are not summed as doubles")
	}
}

//go:noescape
func productsDouble(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)

//go:noescape
func productsFloat(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)

//go:noescape
func productsInt8(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n int)

//go:noescape
func squaresDouble(sums *[groupLists]float64, lists *[groupLists]List, n int)

//go:noescape
func squaresFloat(sums *[groupLists]float64, lists *[groupLists]List, n int)
