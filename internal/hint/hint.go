// Package hint finds the name that somebody meant.
package hint

import (
	"strings"
	"unicode/utf8"
)

// Nearest suggests the known name that a wrong one was probably meant to be, or
// lists the known ones; empty if there are none.
func Nearest(name string, known []string) string {
	best, distance := "", utf8.RuneCountInString(name)/3+1
	for _, k := range known {
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

// editDistance counts insertions, deletions, replacements and swaps of
// neighbours that make b of a.
func editDistance(a, b string) int {
	x, y := []rune(a), []rune(b)
	if len(x) > 64 || len(y) > 64 {
		return max(len(x), len(y))
	}
	rows := make([][]int, len(x)+1)
	for i := range rows {
		rows[i] = make([]int, len(y)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(x); i++ {
		for j := 1; j <= len(y); j++ {
			swap := 1
			if x[i-1] == y[j-1] {
				swap = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+swap)
			if i > 1 && j > 1 && x[i-1] == y[j-2] && x[i-2] == y[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(x)][len(y)]
}
