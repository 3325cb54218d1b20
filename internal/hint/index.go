package hint

import (
	"slices"
	"strings"
)

// Index finds what [Nearest] does among any number of names, looking at no more
// of them than that: the neighbours of a name in two orders, by how names begin
// and by how they end. Of many names it so misses one that was mistyped at both
// ends.
type Index struct{ names, turned []string }

// NewIndex returns the index of names, of which it keeps a copy.
func NewIndex(names []string) *Index {
	x := &Index{slices.Sorted(slices.Values(names)), slices.Clone(names)}
	slices.SortFunc(x.turned, compareTurned)
	return x
}

// Nearest is as the function of this name says.
func (x *Index) Nearest(name string) string {
	if len(x.names) <= maxKnown {
		return Nearest(name, x.names)
	}
	near := slices.Concat(around(x.names, name, strings.Compare), around(x.turned, name, compareTurned))
	if best := nearest(name, near); best != "" {
		return Meant(best)
	}
	return listed(x.names)
}

// around returns the neighbours of a name in an order.
func around(names []string, name string, order func(a, b string) int) []string {
	at, _ := slices.BinarySearchFunc(names, name, order)
	return names[max(at-maxKnown/4, 0):min(at+maxKnown/4, len(names))]
}

// compareTurned compares names from their ends.
func compareTurned(a, b string) int {
	for i := 1; i <= min(len(a), len(b)); i++ {
		if x, y := a[len(a)-i], b[len(b)-i]; x != y {
			return int(x) - int(y)
		}
	}
	return len(a) - len(b)
}
