package cache

import (
	"fmt"
	"math/bits"
	"strings"
	"testing"

	"github.com/millrace/millrace"
)

// Names that hardly differ, of all lengths, have ids that share nothing.
func TestIDsAreSpread(t *testing.T) {
	s := newSeeds()
	var keys []millrace.Timeline
	for i := range 100_000 {
		keys = append(keys, millrace.Timeline{Entity: millrace.Entity(fmt.Sprint("member:", i)), Type: "post"})
	}
	for n := range 300 {
		keys = append(keys,
			millrace.Timeline{Entity: millrace.Entity(strings.Repeat("a", n)), Type: "post"},
			millrace.Timeline{Entity: millrace.Entity(strings.Repeat("a", n)), Type: "like"},
			millrace.Timeline{Entity: millrace.Entity(strings.Repeat("a", n) + "b"), Type: "post"},
			millrace.Timeline{Entity: millrace.Entity("c" + strings.Repeat("a", n)), Type: "post"},
			millrace.Timeline{Entity: millrace.Entity(strings.Repeat("\x00", n+1)), Type: "post"})
	}
	tags, checks := map[uint64]bool{}, map[uint64]bool{}
	const buckets = 1 << 17
	var filled [2][buckets / 64]uint64
	for _, k := range keys {
		x := s.id(k)
		tags[x.tag], checks[x.check] = true, true
		for i, w := range [2]uint64{home(x.tag) % buckets, x.check >> 47} {
			filled[i][w/64] |= 1 << (w % 64)
		}
	}
	if len(tags) != len(keys) || len(checks) != len(keys) {
		t.Errorf("%d tags and %d checks of %d keys", len(tags), len(checks), len(keys))
	}
	for _, f := range filled {
		n := 0
		for _, w := range f {
			n += bits.OnesCount64(w)
		}
		// 1 - e^(-101500/131072) of the buckets, 70,654, and ten deviations.
		if n < 69_700 || n > 71_600 {
			t.Errorf("%d buckets filled", n)
		}
	}
}

// What is hashed in batches has the id that one key has.
func TestBatchesHaveTheSameIDs(t *testing.T) {
	s := newSeeds()
	var got [batchKeys]id
	for first := 0; first < 40; first += batchKeys {
		var names []millrace.Entity
		for n := first; n < first+batchKeys; n++ {
			names = append(names, millrace.Entity("abcdefghijklmnopqrstuvwxyz0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:n]))
		}
		s.parts(&got, names)
		for i, name := range names {
			if want := s.part(string(name)); got[i] != want {
				t.Errorf("%q: %x, want %x", name, got[i], want)
			}
		}
	}
}

// An entity may have the name of a content type, and the other's: the halves of
// a key do not stand for each other.
func TestIDsTellTheHalvesApart(t *testing.T) {
	s := newSeeds()
	names := []string{"", "\x00", "post", "like", "share", "a name of more than sixteen bytes"}
	of := map[id]millrace.Timeline{}
	for _, e := range names {
		for _, typ := range names {
			k := millrace.Timeline{Entity: millrace.Entity(e), Type: millrace.ContentType(typ)}
			if other, taken := of[s.id(k)]; taken {
				t.Errorf("%q and %q have one id", k, other)
			}
			of[s.id(k)] = k
		}
	}
}

// A changed bit of a name changes about half of the bits of either word.
func TestIDsAvalanche(t *testing.T) {
	s := newSeeds()
	for _, n := range []int{1, 3, 4, 7, 8, 12, 16, 17, 31, 32, 33, 100} {
		name := []byte(strings.Repeat("member:", 20)[:n])
		was := s.id(millrace.Timeline{Entity: millrace.Entity(name), Type: "post"})
		var tag, check int
		for bit := range 8 * n {
			name[bit/8] ^= 1 << (bit % 8)
			is := s.id(millrace.Timeline{Entity: millrace.Entity(name), Type: "post"})
			name[bit/8] ^= 1 << (bit % 8)
			tag += bits.OnesCount64(is.tag ^ was.tag)
			check += bits.OnesCount64(is.check ^ was.check)
		}
		for _, flipped := range []int{tag, check} {
			if mean := float64(flipped) / float64(8*n); mean < 24 || mean > 40 {
				t.Errorf("%d bytes: %.1f bits flip", n, mean)
			}
		}
	}
}
