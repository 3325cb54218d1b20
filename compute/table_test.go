package compute

import (
	"math"
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

// What shared a slot by the number that keys were multiplied by before, and what has
// its low bits in common, needs few probes: nobody can choose keys that need many.
func TestKeysThatWereChosenDoNotCollide(t *testing.T) {
	const before, n = 0x9e3779b97f4a7c15, 10_000
	inverse := uint64(before)
	for range 6 {
		inverse *= 2 - before*inverse // of twice as many bits
	}
	for name, key := range map[string]func(i int) uint64{
		"by the bits that a table took": func(i int) uint64 { return uint64(i+1) << 48 * inverse },
		"by the bits that a set took":   func(i int) uint64 { return uint64(i+1) * inverse },
		"whole numbers":                 func(i int) uint64 { return numberKey(float64(i + 5)) },
		"low bits in common":            func(i int) uint64 { return uint64(i+1) << 48 },
	} {
		keys, numbers := make([]uint64, n), make([]float64, 0, n)
		for i := range keys {
			keys[i] = key(i)
			numbers = append(numbers, math.Float64frombits(keys[i]))
		}
		var table Table
		probes := [2]int{math.MaxInt, math.MaxInt}
		for range 3 { // one number in some hundred suits keys at equal distances badly
			var of [2]int
			table.SetNumbers(numbers)
			s := NewSet(keys...)
			for _, k := range keys {
				if x := math.Float64frombits(k); x == x && table.Number(x) != 1 {
					t.Fatalf("%s: %x is not in the table", name, k)
				}
				for at := table.home(k); table.slots[at].used && table.slots[at].key != k; at = (at + 1) & (len(table.slots) - 1) {
					of[0]++
				}
				home := k * s.multiplier >> s.shift
				of[1] += int((s.slot(k) - home) & uint64(len(s.table)-1))
			}
			probes[0], probes[1] = min(probes[0], of[0]), min(probes[1], of[1])
		}
		if probes[0] > 100*n || probes[1] > 100*n { // of n/2 each, if all share a slot
			t.Errorf("%s: %d keys need %d probes of a table more, and of a set %d", name, n, probes[0], probes[1])
		}
	}
}
