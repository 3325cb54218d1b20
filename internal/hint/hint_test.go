package hint

import (
	"fmt"
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

// Among many names the one that was meant is found by how it begins or ends, and
// is not missed for the number of the others.
func TestIndex(t *testing.T) {
	var names []string
	for i := range 5000 {
		names = append(names, fmt.Sprintf("%c%c_score_%d", 'a'+i%26, 'a'+i/26%26, i))
	}
	names = append(names, "zzz_published", "created_by")
	x := NewIndex(names)
	for name, want := range map[string]string{
		"zzz_publishd": "did you mean zzz_published?",
		"reated_by":    "did you mean created_by?",
		"creatde_by":   "did you mean created_by?",
		"qqqqqqqqqqqq": "known are aa_score_0, aa_score_1352, ",
	} {
		if got := x.Nearest(name); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	few := NewIndex([]string{"text", "likes"})
	if got, want := few.Nearest("liks"), "did you mean likes?"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// Distances beyond what is asked for are told as such, and those within it are
// what they are without a bound.
func TestDistancesAreCutOff(t *testing.T) {
	words := strings.Fields("likes ilkes liks language lang text txet a ab ba created_by reated_bv")
	for _, a := range words {
		for _, b := range words {
			whole := Distance(a, b, maxCompared)
			for most := range 8 {
				if got := Distance(a, b, most); whole <= most && got != whole || whole > most && got <= most {
					t.Errorf("%s, %s: %d up to %d, want %d", a, b, got, most, whole)
				}
			}
		}
	}
}
