package expr

import (
	"slices"
	"strings"
)

// didYouMean suggests the name nearest to a mistyped one, or else says
// otherwise. Names that only share a few letters are not suggested.
func didYouMean(name string, names []string, otherwise string) string {
	best, bestDistance := "", min(max(2, len(name)/3)+1, len(name))
	slices.Sort(names)
	for _, n := range names {
		if d := distance(name, n, bestDistance); d < bestDistance {
			best, bestDistance = n, d
		}
	}
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, name) }); best == "" && i >= 0 && len(name) >= 3 {
		best = names[i]
	}
	if best == "" {
		return otherwise
	}
	return "did you mean " + best + "?"
}

// maxListed is how many fields a suggestion lists at most.
const maxListed = 20

func listed(names []string) string {
	switch {
	case len(names) == 0:
		return "there are none"
	case len(names) > maxListed:
		return "the fields are " + strings.Join(names[:maxListed], ", ") + ", ..."
	}
	return "the fields are " + strings.Join(names, ", ")
}

// distance is the number of insertions, deletions, replacements and swaps of
// neighbours that turn a into b, or limit if it is not less.
func distance(a, b string, limit int) int {
	if len(a)-len(b) >= limit || len(b)-len(a) >= limit {
		return limit
	}
	before, last, next := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		next[0] = i
		for j := 1; j <= len(b); j++ {
			change := last[j-1]
			if a[i-1] != b[j-1] {
				change++
			}
			next[j] = min(change, last[j]+1, next[j-1]+1)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				next[j] = min(next[j], before[j-2]+1)
			}
		}
		before, last, next = last, next, before
	}
	return min(last[len(b)], limit)
}
