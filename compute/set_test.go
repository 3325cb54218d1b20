package compute

import (
	"math/rand/v2"
	"slices"
	"strings"
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

// A set of texts has its texts and no others, few or many, also those of their lengths, and of
// lengths that 256 divides alike.
func TestTexts(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	draw := func() string {
		return strings.Repeat(string(rune('a'+r.IntN(3))), 25*r.IntN(12)+256*r.IntN(3))
	}
	for n := range 100 {
		texts := make([]string, n%20)
		for i := range texts {
			texts[i] = draw()
		}
		s := NewTexts(texts...)
		for range 300 {
			if x := draw(); s.Contains(x) != slices.Contains(texts, x) {
				t.Fatalf("%d bytes of %.1q among %d: %v", len(x), x, len(texts), s.Contains(x))
			}
		}
	}
	few := lengths{}
	few.add(10)
	few.add(267)
	for n, want := range map[int]bool{10: true, 11: true, 267: true, 266: true, 12: false, 268: false, 523: false} {
		if few.may(n) != want {
			t.Errorf("of %d bytes: %v", n, !want)
		}
	}
}
