package collide

import (
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

func TestNamesCollide(t *testing.T) {
	const hash = 0x1234567890abcdef
	met := map[string]bool{}
	for _, name := range Names(hash, 1000) {
		if got := partition.Hash(millrace.Entity(name)); got != hash || len(name) != 16 || met[name] {
			t.Fatalf("%q has the hash %x", name, got)
		}
		met[name] = true
	}
}

func TestEnd(t *testing.T) {
	const hash = 0xfedcba9876543210
	for _, n := range []int{0, 8, 16, 32, 40, 1008} {
		prefix := strings.Repeat("x", n)
		if got := partition.Hash(millrace.Entity(prefix + text(End(prefix, hash)))); got != hash {
			t.Errorf("behind %d bytes the hash is %x", n, got)
		}
	}
}
