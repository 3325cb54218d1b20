package compute

import (
	"strings"
	"testing"
)

// A text that is longer than every key of a table is not looked up: what that would
// find is not found.
func TestLongTextsAreNotLookedUp(t *testing.T) {
	keys := map[string]float64{}
	for i := range 20 {
		keys[strings.Repeat("key", 4+i)] = 1
	}
	table, text := StringTable(keys, 7), strings.Repeat("key", 24)
	table.long[text] = 1 // past what puts keys in
	for text, want := range map[string]float64{text: 7, "keykeykeykey": 1, strings.Repeat("key", 23): 1} {
		if got := table.String(text); got != want {
			t.Errorf("%.20s: %v", text, got)
		}
	}
}
