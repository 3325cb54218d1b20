package questions

import (
	"hash/maphash"
	"testing"

	"github.com/millrace/millrace/broker/limits"
	"github.com/millrace/millrace/internal/oracle/collide"
)

// Names of one hash, as everyone can choose them, lie as far apart in the table
// as others: what a caller sends cannot make a request cost more.
func TestEntitiesAreFoundInFewProbes(t *testing.T) {
	names := collide.Names(0x1234567890abcdef, limits.MaxEntities)
	set := takeEntitySet(len(names))
	defer set.release()
	probes := func(name string, want bool) int {
		hash := maphash.String(tableSeed, name)
		slot, there := set.find(name, hash)
		if there != want {
			t.Fatalf("%q there: %t", name, there)
		}
		if !there {
			set.put(slot, name, hash)
		}
		return (slot-set.home(hash))&(len(set.slots)-1) + 1
	}
	all, most := 0, 0
	for _, there := range []bool{false, true} {
		for _, name := range names {
			n := probes(name, there)
			all, most = all+n, max(most, n)
		}
	}
	if all > 4*len(names) || most > 1000 {
		t.Errorf("%d names are put and found in %d probes, one in %d", len(names), all, most)
	}
}

// Entities are told apart by what they are, not by their hashes alone, and
// the memory for them is clean each time.
func TestEntitySet(t *testing.T) {
	for range 2 {
		s := takeEntitySet(3)
		for i, e := range []string{"a", "b", "a", "c"} {
			slot, there := s.find(e, 7) // all meet in one slot
			if want := i == 2; there != want {
				t.Errorf("%q is there: %v", e, there)
			}
			if !there {
				s.put(slot, e, 7)
			}
		}
		if len(s.distinct) != 3 {
			t.Errorf("%d are distinct, want 3", len(s.distinct))
		}
		s.release()
	}
}
