package hint

import (
	"slices"
	"strings"
)

// Index does what the function [Nearest] does for any number of names, and compares a name
// with no more than [maxKnown] of them. If there are more, these are the neighbours of the
// name in two orders: by how names begin, and by how they end. So it misses a name that was
// mistyped at both ends.
type Index struct{ names, turned []string } // the names in the two orders

// NewIndex returns an index of names. It copies names.
func NewIndex(names []string) *Index {
	x := &Index{slices.Sorted(slices.Values(names)), slices.Clone(names)}
	slices.SortFunc(x.turned, compareTurned)
	return x
}

// Nearest is the function [Nearest] for the names of the index.
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

// around returns the neighbours of a name in names, which are sorted by order: up to
// maxKnown/4 on each side. With two orders that is maxKnown in all.
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
