package topics

import (
	"strings"
	"testing"
	"time"
)

// A group that has proven nothing yet has no age, in years or otherwise.
func TestAGroupThatHasProvenNothing(t *testing.T) {
	through := time.Now().Add(-time.Minute)
	for want, g := range map[string]groupShown{
		"ago; nothing is proven to be partitioned yet\n": {Group: "g", Instance: "one", At: time.Now()},
		"ago; everything from before 1m0":                {Group: "g", Instance: "one", At: time.Now(), Through: &through},
	} {
		var out strings.Builder
		if err := (&topicsShown{Groups: []groupShown{g}}).write(&out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) {
			t.Errorf("printed %q, which lacks %q", out.String(), want)
		}
	}
}
