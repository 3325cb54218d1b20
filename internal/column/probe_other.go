//go:build !amd64

package column

// hasAVX2 is false: sums are in plain Go.
const hasAVX2 = false

func wholeProducts(dst *float64, lists *List, rows int, whole *int16, n int) int {
	panic("column: no AVX2")
}

func wholeSquares(dst *float64, lists *List, rows int, behind *int16, n int) int {
	panic("column: no AVX2")
}

func sumEight(sums *[groupLists]float64, lists *[groupLists]List, items *float64, n, width int, of summed) {
	panic("column: no AVX2")
}
