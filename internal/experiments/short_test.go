package experiments

import (
	"strings"
	"testing"
)

// A text that is too long ends behind a word, and says that there was more.
func TestShort(t *testing.T) {
	long := strings.Repeat("partition ", 30)
	for _, c := range [][2]string{
		{"all of it", "all of it"},
		{long, strings.Repeat("partition ", 18) + "partition ..."},
		{strings.Repeat("x", 201), strings.Repeat("x", 196) + " ..."},
		{strings.Repeat("ä", 101), strings.Repeat("ä", 98) + " ..."},
	} {
		if got := short(c[0]); got != c[1] {
			t.Errorf("%q", got)
		}
	}
}
