package compute

import (
	"strings"
	"testing"
	"time"
)

// A text that is longer than every key of a table is not hashed.
func TestLongTextsAreNotLookedUp(t *testing.T) {
	keys := map[string]float64{}
	for i := range 20 {
		keys[strings.Repeat("key", 4+i)] = 1
	}
	table, text := StringTable(keys, 7), strings.Repeat("ж", 1<<20)
	library, own := fastest(func() { _ = keys[text] }), fastest(func() { table.String(text) })
	if own > library/4 {
		t.Errorf("%v, where a map takes %v", own, library)
	}
	for text, want := range map[string]float64{text: 7, "keykeykeykey": 1, strings.Repeat("key", 23): 1, strings.Repeat("key", 24): 7} {
		if got := table.String(text); got != want {
			t.Errorf("%.20s: %v", text, got)
		}
	}
}

func fastest(f func()) time.Duration {
	least := time.Hour
	for range 5 {
		began := time.Now()
		f()
		least = min(least, time.Since(began))
	}
	return least
}
