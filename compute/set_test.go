package compute

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A set has its words and no others, few or many, 0 among them or not.
func TestSet(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 3))
	apart := 0
	for i := range 2000 {
		words := make([]uint64, r.IntN([]int{4, 12, 40, 400}[i%4]))
		for k := range words {
			words[k] = r.Uint64() >> (8 * r.IntN(8))
		}
		s := NewSet(words...)
		if s.apart {
			apart++
		}
		asked := make([]uint64, 64)
		for k := range asked {
			if asked[k] = uint64(r.IntN(3)); len(words) > 0 && r.IntN(3) > 0 {
				asked[k] = words[r.IntN(len(words))] ^ uint64(r.IntN(2))
			}
		}
		m := s.In(asked)
		for k, w := range asked {
			if got := m>>k&1 != 0; got != slices.Contains(words, w) {
				t.Fatalf("%x in %x: %v", w, words, got)
			}
		}
	}
	if apart < 1000 || apart > 1900 {
		t.Errorf("the words of %d sets are apart", apart)
	}
}
