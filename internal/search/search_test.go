package search

import (
	"bytes"
	"math/bits"
	"math/rand/v2"
	"strings"
	"testing"
)

// Contains says what strings.Contains does, of texts that nearly match in many places.
func TestContains(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 4))
	found := 0
	for range 20_000 {
		text := func(n int) string {
			b := bytes.Repeat([]byte("a"), n)
			for range r.IntN(4) {
				if n > 0 {
					b[r.IntN(n)] = "ab"[r.IntN(2)]
				}
			}
			return string(b)
		}
		s, part := text(r.IntN(600)), text(r.IntN(200))
		want := strings.Contains(s, part)
		if got := Contains(s, part); got != want {
			t.Fatalf("%q in %q: %v", part, s, got)
		}
		if got := rolling(s, part); got != want {
			t.Fatalf("%q in %q, by hashes: %v", part, s, got)
		}
		if want && len(part) > searchedWhole {
			found++
		}
	}
	if found < 100 {
		t.Errorf("%d are found", found)
	}
}

// Where the library compares a text in each place, it does not stand all the same.
func TestContainsInHostileTexts(t *testing.T) {
	s, part := colliding()
	if Contains(s, part) || !Contains(s+part, part) {
		t.Error("it is not told whether the part is there")
	}
}

// colliding is a text and a part that nearly stands in each place of it, and whose
// sums of products are equal: of Thue and Morse's sequence they are 0 modulo 2^32.
func colliding() (s, part string) {
	part = strings.Repeat("a", 15<<10)
	for i := range 1 << 10 {
		part += string("b`"[bits.OnesCount(uint(i))&1])
	}
	return strings.Repeat("a", 200_000), part
}

// BenchmarkContains tells what a search takes beside the library's.
func BenchmarkContains(b *testing.B) {
	for name, of := range map[string]func() (s, part string){
		"hostile": colliding,
		"short":   func() (string, string) { return strings.Repeat("an honest text ", 1000), "photo" },
		"long": func() (string, string) {
			return strings.Repeat("an honest text ", 1000), strings.Repeat("a photo in a text ", 10)
		},
	} {
		for by, contains := range map[string]func(s, part string) bool{"library": strings.Contains, "own": Contains} {
			b.Run(name+"/"+by, func(b *testing.B) {
				s, part := of()
				b.SetBytes(int64(len(s)))
				for b.Loop() {
					contains(s, part)
				}
			})
		}
	}
}
