package rollouts

import (
	"slices"
	"strings"
	"testing"
)

// A definition whose lines stand in another order, or more than once, differs.
func TestDiffLines(t *testing.T) {
	for _, c := range []struct{ before, after, gone, come string }{
		{"a b c", "a b c", "", ""},
		{"a b c", "a x c", "b", "x"},
		{"a b c", "c b a", "a b", "b a"},
		{"a b", "a b b", "", "b"},
		{"a a", "a", "a", ""},
		{"", "a", "", "a"},
	} {
		lines := func(text string) string { return strings.ReplaceAll(text, " ", "\n") }
		gone, come := diffLines(lines(c.before), lines(c.after))
		gone = slices.DeleteFunc(gone, func(s string) bool { return s == "" }) // the one line of an empty text
		if strings.Join(gone, " ") != c.gone || strings.Join(come, " ") != c.come {
			t.Errorf("%q, %q: %q are gone, %q have come", c.before, c.after, gone, come)
		}
	}
}
