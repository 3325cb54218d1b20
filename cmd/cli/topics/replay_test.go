package topics

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// Letters are replayed a few hundred at a time, or fewer where those are too large, up to
// the first call that fails: what is done is said, and how to go on.
func TestReplayInCalls(t *testing.T) {
	var offsets []int64
	for i := range int64(728) {
		offsets = append(offsets, 2*i)
	}
	large := &millrace.Error{Reason: millrace.ReasonTooLarge, Field: "OFFSET", Detail: "too many bytes", WayOut: "replay fewer at a time"}
	for name, c := range map[string]struct {
		fails func(next []int64) error
		calls []int // their lengths
		says  []string
	}{
		"all":       {func([]int64) error { return nil }, []int{250, 250, 228}, nil},
		"the first": {func([]int64) error { return errors.New("gone") }, []int{250}, []string{"gone"}},
		"the third": {func(next []int64) error {
			if next[0] == 1000 {
				return errors.New("gone")
			}
			return nil
		}, []int{250, 250, 228}, []string{"500 dead letters, those up to offset 998, are done", "--after 998", "gone"}},
		"large": {func(next []int64) error {
			if len(next) > 200 {
				return large
			}
			return nil
		}, []int{250, 125, 125, 125, 125, 125, 103}, nil},
		"one too large": {func(next []int64) error { return large }, []int{250, 125, 62, 31, 15, 7, 3, 1}, []string{"too many bytes"}},
	} {
		var calls []int
		err := inCalls(offsets, func(next []int64) error {
			calls = append(calls, len(next))
			return c.fails(next)
		})
		if !slices.Equal(calls, c.calls) || (err != nil) != (c.says != nil) {
			t.Errorf("%s: calls of %v, %v", name, calls, err)
		}
		for _, want := range c.says {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, which lacks %q", name, err, want)
			}
		}
	}
}
