package clitest

import (
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// freeNames are the keys of objects within which keys need not be in snake_case: they
	// are names that users chose, or numbers.
	freeNames = []string{"definition", "carries", "did", "record", "forced", "contexts", "has", "backups", "groups"}
	// nullable are the keys whose value may be null.
	nullable = []string{"plan", "leader", "split_p", "items", "millis", "value", "low", "high", "p", "delta", "tau", "served", "shadow", "shift", "receipt", "coverage", "explain", "record"}
	snake    = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
)

// JSON decodes the values in text, which the command path wrote, and returns them. It
// checks that keys are in snake_case, and that only nullable keys are null, so that a
// list without elements is [].
func JSON(t *testing.T, path, text string) (all []any) {
	t.Helper()
	var check func(at string, v any, free bool)
	check = func(at string, v any, free bool) {
		if v == nil && !slices.Contains(nullable, at) {
			t.Errorf("%q: %s is null:\n%s", path, at, text)
		}
		switch v := v.(type) {
		case []any:
			for _, x := range v {
				check(at, x, free)
			}
		case map[string]any:
			free = free || slices.Contains(freeNames, at)
			for key, x := range v {
				if !free && !snake.MatchString(key) {
					t.Errorf("%q: %s of %s is no name in snake_case", path, key, at)
				}
				check(key, x, free)
			}
		}
	}
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var v any
		err := d.Decode(&v)
		if err == io.EOF {
			return all
		}
		if err != nil {
			t.Fatalf("%q writes no JSON: %v\n%s", path, err, text)
		}
		all = append(all, v)
		check("", v, false)
	}
}
