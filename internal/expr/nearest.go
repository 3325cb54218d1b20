package expr

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/hint"
)

// didYouMean returns a hint with the name that is nearest to a mistyped one. If no name
// is near enough, it returns otherwise.
func didYouMean(name string, names []string, otherwise string) string {
	best, bestDistance := "", min(max(2, len(name)/3)+1, len(name))
	slices.Sort(names)
	for _, n := range names {
		if d := hint.Distance(name, n, bestDistance-1); d < bestDistance {
			best, bestDistance = n, d
		}
	}
	if i := slices.IndexFunc(names, func(n string) bool { return strings.HasPrefix(n, name) }); best == "" && i >= 0 && len(name) >= 3 {
		best = names[i]
	}
	if best == "" {
		return otherwise
	}
	return hint.Meant(best)
}

// maxListed is how many fields a hint lists at most.
const maxListed = 20

// listed returns a hint that names the fields there are.
func listed(names []string) string {
	switch {
	case len(names) == 0:
		return "there are none"
	case len(names) > maxListed:
		return "the fields are " + strings.Join(names[:maxListed], ", ") + ", ..."
	}
	return "the fields are " + strings.Join(names, ", ")
}
