package hint

import (
	"strings"
	"testing"
)

func TestNearest(t *testing.T) {
	known := []string{"likes", "language", "text"}
	many := strings.Fields(strings.Repeat("a ", 13))
	for _, c := range []struct {
		name  string
		known []string
		want  string
	}{
		{"liks", known, "did you mean likes?"},
		{"ilkes", known, "did you mean likes?"},
		{"lang", known, "known are likes, language, text"},
		{"stars", nil, ""},
		{"stars", many, "known are a, a, a, a, a, a, a, a, a, a, a, a and more"},
	} {
		if got := Nearest(c.name, c.known); got != c.want {
			t.Errorf("%s among %v: %q, want %q", c.name, c.known, got, c.want)
		}
	}
}
