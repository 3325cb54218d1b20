package figure

import (
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode"
)

func TestMisses(t *testing.T) {
	for _, c := range []struct {
		g     goal
		value float64
		want  bool
	}{
		{most("", 2, 0.1), 2.2, false},
		{most("", 2, 0.1), 2.21, true},
		{most("", 0, 0.5), 0, false},
		{most("", 0, 0.5), 1, true},
		{least("", 10, 0.2), 8, false},
		{least("", 10, 0.2), 7.9, true},
		{least("", 10, 0), 10, false},
		{most("", 2, 0.1), math.NaN(), true},
		{least("", 2, 0.1), math.NaN(), true},
	} {
		if got := c.g.misses(c.value); got != c.want {
			t.Errorf("%v of %+v: missed %t", c.value, c.g, got)
		}
	}
}

// A figure has one goal, whatever is in place of the *.
func TestOneGoalAFigure(t *testing.T) {
	for i, g := range goals {
		name := strings.ReplaceAll(g.name, "*", "x")
		if got := goalOf(name); got != &goals[i] {
			t.Errorf("%s has the goal of %v", name, got)
		}
	}
	if g := goalOf("of_nothing"); g != nil {
		t.Errorf("what nobody measures has the goal %+v", g)
	}
}

// A goal whose figure nobody prints holds nothing: there is a package that prints
// figures and has all words of the name.
func TestEveryGoalHasItsFigure(t *testing.T) {
	code := map[string]string{} // by directory
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || filepath.Base(path) == "goals.go" {
			return err
		}
		b, err := os.ReadFile(path)
		code[filepath.Dir(path)] += string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(code, func(_, text string) bool { return !strings.Contains(text, "figure.Print(") })
	for _, g := range goals {
		words := strings.FieldsFunc(g.name, func(r rune) bool { return !unicode.IsLetter(r) })
		printed := false
		for _, text := range code {
			printed = printed || !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(text, w) })
		}
		if !printed {
			t.Errorf("nothing prints %s", g.name)
		}
	}
}
