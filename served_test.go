package millrace_test

import (
	"strings"
	"testing"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
)

// What a page served is told apart by each of its parts, and by the key.
func TestServedHash(t *testing.T) {
	key := millrace.ServedKey{1}
	at := func(entity, contentType string) millrace.Timeline {
		return millrace.Timeline{Entity: millrace.Entity(entity), Type: millrace.ContentType(contentType)}
	}
	long := strings.Repeat("x", 600)
	met := map[uint64]string{}
	for name, hash := range map[string]uint64{
		"a record":          millrace.ServedHash(key, false, "o", at("ab", "cd"), "ef"),
		"another key":       millrace.ServedHash(millrace.ServedKey{15: 1}, false, "o", at("ab", "cd"), "ef"),
		"another entity":    millrace.ServedHash(key, false, "o", at("a", "bcd"), "ef"),
		"a NUL":             millrace.ServedHash(key, false, "o", at("ab\x00cd", ""), "ef"),
		"another type":      millrace.ServedHash(key, false, "o", at("ab", "cde"), "f"),
		"another record":    millrace.ServedHash(key, false, "o", at("ab", "cd"), "e"),
		"an object":         millrace.ServedHash(key, true, "o", at("ab", "cd"), "ef"),
		"a long object":     millrace.ServedHash(key, true, millrace.Object(long), at("ab", "cd"), "ef"),
		"a longer one":      millrace.ServedHash(key, true, millrace.Object(long+"x"), at("ab", "cd"), "ef"),
		"an object's xxh64": xxhash.Sum64String("o"),
	} {
		if other, ok := met[hash]; ok {
			t.Errorf("%s has the hash of %s", name, other)
		}
		met[hash] = name
	}
	// Without a key it is what versions before keys made it, for good.
	if got := millrace.ServedHash(millrace.ServedKey{}, false, "o", at("ab", "cd"), "ef"); got != xxhash.Sum64String("ab\x00cd\x00ef") {
		t.Errorf("a record without a key: %x", got)
	}
	if got := millrace.ServedHash(millrace.ServedKey{}, true, "o", at("ab", "cd"), "ef"); got != xxhash.Sum64String("o") {
		t.Errorf("an object without a key: %x", got)
	}
	if millrace.ServedHash(key, true, "o", at("a", "b"), "c") != millrace.ServedHash(key, true, "o", at("x", "y"), "z") {
		t.Error("an object is another in another timeline")
	}
}

// BenchmarkServedHash says how many times as long as xxHash64 without a key the
// hash of what a page served takes.
func BenchmarkServedHash(b *testing.B) {
	t := millrace.Timeline{Entity: "member:123456", Type: "post"}
	b.Run("xxhash", func(b *testing.B) {
		for b.Loop() {
			var d xxhash.Digest
			d.Reset()
			_, _ = d.WriteString(string(t.Entity))
			_, _ = d.Write([]byte{0})
			_, _ = d.WriteString(string(t.Type))
			_, _ = d.Write([]byte{0})
			_, _ = d.WriteString("post:1234567890")
			_ = d.Sum64()
		}
	})
	b.Run("siphash", func(b *testing.B) {
		for b.Loop() {
			_ = millrace.ServedHash(millrace.ServedKey{1}, false, "", t, "post:1234567890")
		}
	})
}
