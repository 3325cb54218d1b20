package oracle

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/millrace/millrace"
)

// Diff describes how got differs from want in items, order, scores, objects
// and also, or returns "" when they are equal. Scores are equal when their
// bits are, or both are NaN; zeros of either sign are equal.
func Diff(want, got []Item) string {
	var b strings.Builder
	if len(want) != len(got) {
		fmt.Fprintf(&b, "want %d items, got %d\n", len(want), len(got))
	}
	shown := 0
	for i := range max(len(want), len(got)) {
		w, g := line(want, i), line(got, i)
		if w == g {
			continue
		}
		if shown++; shown > maxShown {
			fmt.Fprintf(&b, "...\n")
			break
		}
		fmt.Fprintf(&b, "item %d\n  want %s%s\n  got  %s%s\n", i, w, elsewhere(got, want, i), g, elsewhere(want, got, i))
	}
	return b.String()
}

// maxShown is how many differing items a diff prints.
const maxShown = 5

// line prints the i-th item so that items print the same exactly if they are equal.
func line(items []Item, i int) string {
	if i >= len(items) {
		return "nothing"
	}
	it := &items[i]
	s := fmt.Sprintf("%s object %q", rankLine(it.Rank), it.Object)
	for _, a := range it.Also {
		s += "\n         also " + rankLine(a)
	}
	return s
}

func rankLine(r millrace.Rank) string {
	return fmt.Sprintf("%q %q/%q at %s score %s", r.ID, r.Entity, r.Type, r.Time, scoreText(r.Score))
}

func scoreText(x float64) string {
	switch {
	case math.IsNaN(x):
		return "NaN"
	case x == 0:
		return "0"
	}
	return fmt.Sprintf("%v (%016x)", x, math.Float64bits(x))
}

// elsewhere returns where the other answer has the candidate of items[i], in words; empty
// if it has it in the same place.
func elsewhere(other, items []Item, i int) string {
	if i >= len(items) {
		return ""
	}
	same := func(o Item) bool { return o.ID == items[i].ID && o.Timeline == items[i].Timeline }
	at := slices.IndexFunc(other, same)
	switch at {
	case -1:
		return "  (missing on the other side)"
	case i:
		return ""
	}
	return fmt.Sprintf("  (item %d on the other side)", at)
}
