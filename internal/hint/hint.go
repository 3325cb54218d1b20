// Package hint finds the name that somebody meant.
package hint

import (
	"strings"
	"unicode/utf8"
)

// maxKnown is how many names a suggestion is looked for among.
const maxKnown = 256

// Nearest suggests the known name that a wrong one was probably meant to be, or
// lists the known ones; empty if there are none.
func Nearest(name string, known []string) string {
	best, distance := "", utf8.RuneCountInString(name)/3+1
	for _, k := range known[:min(len(known), maxKnown)] {
		if d := editDistance(name, k); d <= distance {
			if d < distance || best == "" {
				best, distance = k, d
			}
		}
	}
	switch {
	case best != "":
		return "did you mean " + best + "?"
	case len(known) == 0:
		return ""
	case len(known) > 12:
		return "known are " + strings.Join(known[:12], ", ") + " and more"
	}
	return "known are " + strings.Join(known, ", ")
}

// maxCompared is up to how many characters names are compared.
const maxCompared = 64

// editDistance counts insertions, deletions, replacements and swaps of
// neighbours that make b of a.
func editDistance(a, b string) int {
	n, m := utf8.RuneCountInString(a), utf8.RuneCountInString(b)
	if n > maxCompared || m > maxCompared {
		return max(n, m)
	}
	x, y := []rune(a), []rune(b)
	var rows [3][maxCompared + 1]int // of the character before the last, of the last, of this one
	for j := range m + 1 {
		rows[1][j] = j
	}
	for i := 1; i <= n; i++ {
		before, last, row := &rows[(i-1)%3], &rows[i%3], &rows[(i+1)%3]
		row[0] = i
		for j := 1; j <= m; j++ {
			swap := 1
			if x[i-1] == y[j-1] {
				swap = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+swap)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return rows[(n+1)%3][m]
}
