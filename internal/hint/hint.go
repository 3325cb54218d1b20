// Package hint finds the known name that somebody meant who mistyped it.
package hint

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// maxKnown is how many known names a wrong one is compared with at most, so that a wrong
// name costs little.
const maxKnown = 256

// Nearest returns a sentence for people: which of the first [maxKnown] known names they
// probably meant by a wrong name, or else which names are known. It is empty if none are
// known.
func Nearest(name string, known []string) string {
	if best := nearest(name, known[:min(len(known), maxKnown)]); best != "" {
		return Meant(best)
	}
	return listed(known)
}

// nearest returns the known name that was probably meant by a wrong one, or "" if none is
// near enough.
func nearest(name string, known []string) string {
	best, distance := "", min(utf8.RuneCountInString(name)/3+1, maxDistance)
	for _, k := range known {
		if d := Distance(name, k, distance); d < distance || d == distance && best == "" {
			best, distance = k, d
		}
	}
	return best
}

// Meant returns the sentence that suggests a name.
func Meant(name string) string { return "did you mean " + name + "?" }

// maxListed is how many names are listed, so that the sentence stays short.
const maxListed = 12

// listed returns the sentence that lists the known names, the first maxListed of them.
func listed(known []string) string {
	switch {
	case len(known) == 0:
		return ""
	case len(known) > maxListed:
		return "known are " + strings.Join(known[:maxListed], ", ") + " and more"
	}
	return "known are " + strings.Join(known, ", ")
}

const (
	// maxCompared is how many characters a name may have to be compared.
	maxCompared = 64
	// maxDistance is how many edits there may be between a name and the one meant.
	maxDistance = 5
)

// Distance returns the least number of edits that turn a into b: insertions, deletions,
// replacements and swaps of neighbours. If that is more than most, or a name has more than
// maxCompared characters, it returns some number above most.
func Distance(a, b string, most int) int {
	if len(a) > 4*maxCompared || len(b) > 4*maxCompared {
		return most + 1
	}
	n, m := utf8.RuneCountInString(a), utf8.RuneCountInString(b)
	if n > maxCompared || m > maxCompared || n-m > most || m-n > most {
		return most + 1
	}
	x, y := []rune(a), []rune(b)
	var rows [3][maxCompared + 1]int // a ring: for the character of a before the last one, the last one, and this one
	for j := range m + 1 {
		rows[1][j] = j
	}
	for i := 1; i <= n; i++ {
		before, last, row := &rows[(i-1)%3], &rows[i%3], &rows[(i+1)%3]
		row[0] = i
		least := i
		for j := 1; j <= m; j++ {
			swap := 1
			if x[i-1] == y[j-1] {
				swap = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+swap)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
			least = min(least, row[j])
		}
		if least > most && slices.Min(last[:m+1]) > most { // the row before counts too, since a swap looks back two rows
			return most + 1
		}
	}
	return rows[(n+1)%3][m]
}
