// Package hint finds the name that somebody meant.
package hint

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// maxKnown is how many names a suggestion is looked for among.
const maxKnown = 256

// Nearest suggests the known name that a wrong one was probably meant to be, or
// lists the known ones; empty if there are none.
func Nearest(name string, known []string) string {
	if best := nearest(name, known[:min(len(known), maxKnown)]); best != "" {
		return Meant(best)
	}
	return listed(known)
}

// nearest returns the known name that a wrong one was probably meant to be, or
// nothing.
func nearest(name string, known []string) string {
	best, distance := "", min(utf8.RuneCountInString(name)/3+1, maxDistance)
	for _, k := range known {
		if d := Distance(name, k, distance); d < distance || d == distance && best == "" {
			best, distance = k, d
		}
	}
	return best
}

// Meant suggests a name.
func Meant(name string) string { return "did you mean " + name + "?" }

// maxListed is how many names are listed.
const maxListed = 12

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
	// maxCompared is up to how many characters names are compared.
	maxCompared = 64
	// maxDistance is how many edits at most may lie between a name and the one meant.
	maxDistance = 5
)

// Distance returns how few insertions, deletions, replacements and swaps of neighbours
// make b of a. As soon as it knows that these are more than most, it returns some number
// above most.
func Distance(a, b string, most int) int {
	if len(a) > 4*maxCompared || len(b) > 4*maxCompared {
		return most + 1
	}
	n, m := utf8.RuneCountInString(a), utf8.RuneCountInString(b)
	if n > maxCompared || m > maxCompared || n-m > most || m-n > most {
		return most + 1
	}
	x, y := []rune(a), []rune(b)
	var rows [3][maxCompared + 1]int // of the character before the last, of the last, of this one
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
		if least > most && slices.Min(last[:m+1]) > most { // a swap looks back two rows
			return most + 1
		}
	}
	return rows[(n+1)%3][m]
}
