package partition

import "testing"

// The golden vectors pin the function for the life of every cluster: a change
// here orphans every record ever indexed. The hashes behind them are
// xxHash64's own test vectors for "" and "a" (xxhash.com).
func TestOfIsPinned(t *testing.T) {
	for entity, want := range map[string]uint64{
		"":                  0xef46db3751d8e999 % Count,
		"a":                 0xd24ec4f1a98c6e5b % Count,
		"member:1":          644,
		"member:42":         251,
		"company:acme":      464,
		"länge:größer":      612,
		"tag:a/b\x00c":      230,
		"member:9007199254": 634,
	} {
		if got := OfBytes([]byte(entity)); uint64(got) != want {
			t.Errorf("OfBytes(%q) = %d, want %d", entity, got, want)
		}
	}
}
