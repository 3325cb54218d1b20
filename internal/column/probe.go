package column

import (
	"math"
	"runtime"
	"unsafe"

	"github.com/millrace/millrace/internal/ahead"
)

// Probe is a list that is compared with the lists of many rows, such as a viewer's taste.
//
// The sum of products of two lists is defined as a sum of float64s from the first item
// on. It begins with 0, and each product is rounded before it is added. So nothing here
// adds in another order or without that rounding. Two ways are faster all the same:
//
//   - Sums of several rows side by side: an addition waits for the one before it only
//     within its row.
//   - Whole numbers, where an item of the row is one from -128 to 127 and an item of the
//     probe is an int16. A product is at most 2^22 then, and a list has less than 2^31
//     items, so that each sum on the way is a whole number below 2^53: float64 holds it
//     and rounds nothing, and the sum of integers, in any order, is the same number. It
//     has the same bits, since neither sum is -0: a sum that begins with 0 becomes -0 by
//     no addition, whatever zeros are added.
type Probe struct {
	items   []float64
	whole   []int16 // the items if all are int16s, and perhaps a block for the assembly, see Set; else empty
	square  float64 // see Square
	squared bool    // square is known
}

// A block is how many small whole numbers the assembly multiplies at once. It adds in
// int32s: a product is at most 2^22, so the sum over a list of up to mostWhole items is
// below 2^31.
const (
	block     = 16
	mostWhole = 1<<31/(1<<22) - 1
)

// Set gives the probe a copy of items.
func (p *Probe) Set(items []float64) {
	p.items, p.whole, p.squared = append(p.items[:0], items...), p.whole[:0], false
	for _, x := range items {
		if !(x >= math.MinInt16 && x <= math.MaxInt16) || float64(int16(x)) != x { // -0 is as good as 0
			p.whole = p.whole[:0]
			return
		}
		p.whole = append(p.whole, int16(x))
	}
	if n := len(items); n >= block {
		// The assembly reads the items behind the last whole block as part of the block
		// that ends with the last item. In the copy of that block that follows here, the
		// items that were counted already are 0.
		p.whole = append(p.whole, p.whole[n-block:]...)
		clear(p.whole[n : n+block-n%block])
	}
}

// Bytes returns the memory the probe holds.
func (p *Probe) Bytes() int { return 8*cap(p.items) + 2*cap(p.whole) }

// Square returns the sum of the squares of the probe's items.
func (p *Probe) Square() float64 {
	if !p.squared {
		p.square, p.squared = 0, true
		for _, x := range p.items {
			p.square += float64(x * x)
		}
	}
	return p.square
}

// Dots writes the sum of the products of each list's items and the probe's. It is NaN
// for lists of another length, and if the probe has no items.
func (p *Probe) Dots(dst []float64, lists []List) { p.sum(dst, lists, products) }

// Squares writes the sum of the squares of each list's items. It is NaN for lists of
// another length than the probe's, and if the probe has no items.
func (p *Probe) Squares(dst []float64, lists []List) { p.sum(dst, lists, squares) }

// Differences writes the sum of the squares of the differences between each list's items
// and the probe's. It is NaN for lists of another length, and if the probe has no items.
func (p *Probe) Differences(dst []float64, lists []List) { p.sum(dst, lists, differences) }

// summed says what a sum is of.
type summed uint8

const (
	products summed = iota
	squares
	differences // squared
)

// group is lists of one width that are summed side by side.
type group struct {
	lists [groupLists]List
	at    [groupLists]int // where the sums go in dst
	n     int             // how many lists there are
}

// groupLists is how many lists a group has room for.
const groupLists = 8

// sum writes the sum of each list to dst; len(dst) is at least len(lists).
func (p *Probe) sum(dst []float64, lists []List, of summed) {
	n := len(p.items)
	whole := of == squares || len(p.whole) > 0 && (of == products || n <= mostDifferent)
	var groups [3]group // of small whole numbers, float32s and doubles
	for at := 0; at < len(lists); at++ {
		l := lists[at]
		switch {
		case int(l.n) != n || n == 0:
			dst[at] = math.NaN()
		case l.width == 1 && whole:
			at += p.wholes(dst[at:], lists[at:], of) - 1
		default:
			if at+groupLists < len(lists) {
				lists[at+groupLists].ahead()
			}
			g := &groups[l.width/4]
			g.lists[g.n], g.at[g.n] = l, at
			if g.n++; g.n == groupLists {
				p.sumGroup(dst, g, of)
			}
		}
	}
	for i := range groups {
		if groups[i].n > 0 {
			p.sumGroup(dst, &groups[i], of)
		}
	}
}

// mostDifferent is how many items lists of small whole numbers may have so that their
// squared differences are summed as integers: each is below 2^32, and so many of them
// come to less than 2^53.
const mostDifferent = 1 << 20

// wholes is sumWhole for differences, too. It works them out as sums of a², -2ab and b²:
// with whole numbers that is exact.
func (p *Probe) wholes(dst []float64, lists []List, of summed) int {
	if of != differences {
		return p.sumWhole(dst, lists, of)
	}
	var squared [runRows]float64
	n := min(len(lists), len(squared))
	n = p.sumWhole(dst[:n], lists[:n], products)
	p.sumWhole(squared[:n], lists[:n], squares)
	for i, x := range squared[:n] {
		dst[i] = x - float64(2*dst[i]) + p.Square()
	}
	return n
}

// ahead asks the processor to fetch the items, which are read soon.
func (l *List) ahead() {
	const line, mostLines = 64, 32
	ahead.Lines(l.at, min(int(l.n)*int(l.width)/line+1, mostLines))
}

// sumWhole sums as integers the lists up to the first that is not of small whole numbers,
// or not as long as the probe. It returns how many it summed.
func (p *Probe) sumWhole(dst []float64, lists []List, of summed) int {
	switch n := len(p.items); {
	case !hasAVX2 || n < block || n > mostWhole:
		return p.sumWholePortably(dst, lists, of)
	case of == squares:
		return wholeSquares(unsafe.SliceData(dst), unsafe.SliceData(lists), len(lists), &behind[n%block], n)
	default:
		return wholeProducts(unsafe.SliceData(dst), unsafe.SliceData(lists), len(lists), unsafe.SliceData(p.whole), n)
	}
}

// behind[n:] is the mask of a block of which only the last n items count.
var behind = [2 * block]int16{block: -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1}

func (p *Probe) sumWholePortably(dst []float64, lists []List, of summed) int {
	n := len(p.items)
	for i, l := range lists {
		if l.width != 1 || int(l.n) != n {
			return i
		}
		items := unsafe.Slice((*int8)(l.at), n)
		if of == squares {
			dst[i] = float64(multiplied(items, items))
		} else {
			dst[i] = float64(multiplied(items, p.whole[:n]))
		}
	}
	return len(lists)
}

// multiplied returns the sum of the products of two lists of one length.
func multiplied[T int8 | int16](a []int8, b []T) (sum int64) {
	b = b[:len(a)]
	for i, x := range a {
		sum += int64(x) * int64(b[i])
	}
	return sum
}

// sumGroup sums the lists of a group, and empties it.
func (p *Probe) sumGroup(dst []float64, g *group, of summed) {
	for i := g.n; i < groupLists; i++ {
		g.lists[i] = g.lists[0]
	}
	var sums [groupLists]float64
	done := 0
	if hasAVX2 && len(p.items) >= 4 {
		done = len(p.items) &^ 3
		sumEight(&sums, &g.lists, unsafe.SliceData(p.items), done, int(g.lists[0].width), of)
	}
	if done < len(p.items) {
		g.sumPortably(&sums, p.items, done, of)
	}
	for i, at := range g.at[:g.n] {
		dst[at] = sums[i]
	}
	*g = group{} // so that it keeps no rows alive
}

// canSlide tells whether the processor reads numbers at any address: lists are not aligned.
// Tests set it to false, to test the code for other processors.
var canSlide = runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64"

// sumPortably adds to sums what the items from index from on contribute.
func (g *group) sumPortably(sums *[groupLists]float64, items []float64, from int, of summed) {
	for half := 0; half < g.n; half += 4 {
		four, lists := (*[4]float64)(sums[half:]), (*[4]List)(g.lists[half:])
		switch width := lists[0].width; {
		case !canSlide:
			sumSlowly(four, lists, items, from, of)
		case width == 8:
			sumFour[float64](four, lists, items, from, of)
		case width == 4:
			sumFour[float32](four, lists, items, from, of)
		default:
			sumFour[int8](four, lists, items, from, of)
		}
	}
}

func sumFour[T int8 | float32 | float64](sums *[4]float64, lists *[4]List, items []float64, from int, of summed) {
	a, b, c, d := lists[0].at, lists[1].at, lists[2].at, lists[3].at
	s0, s1, s2, s3 := sums[0], sums[1], sums[2], sums[3]
	switch of {
	case squares:
		for i := from; i < len(items); i++ {
			x0, x1, x2, x3 := float64(at[T](a, i)), float64(at[T](b, i)), float64(at[T](c, i)), float64(at[T](d, i))
			s0 += float64(x0 * x0)
			s1 += float64(x1 * x1)
			s2 += float64(x2 * x2)
			s3 += float64(x3 * x3)
		}
	case differences:
		for i := from; i < len(items); i++ {
			x := items[i]
			x0, x1, x2, x3 := float64(at[T](a, i))-x, float64(at[T](b, i))-x, float64(at[T](c, i))-x, float64(at[T](d, i))-x
			s0 += float64(x0 * x0)
			s1 += float64(x1 * x1)
			s2 += float64(x2 * x2)
			s3 += float64(x3 * x3)
		}
	default:
		for i := from; i < len(items); i++ {
			x := items[i]
			s0 += float64(float64(at[T](a, i)) * x)
			s1 += float64(float64(at[T](b, i)) * x)
			s2 += float64(float64(at[T](c, i)) * x)
			s3 += float64(float64(at[T](d, i)) * x)
		}
	}
	*sums = [4]float64{s0, s1, s2, s3}
}

func sumSlowly(sums *[4]float64, lists *[4]List, items []float64, from int, of summed) {
	for k := range lists {
		for i := from; i < len(items); i++ {
			x := lists[k].item(i)
			y := items[i]
			switch of {
			case squares:
				y = x
			case differences:
				x -= y
				y = x
			}
			sums[k] += float64(x * y)
		}
	}
}
