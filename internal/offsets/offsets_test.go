package offsets

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/partition"
)

// random returns parts of some partitions in order, with offsets of a spread.
func random(r *rand.Rand) (parts []Part) {
	share, spread := r.Float64(), r.Uint64()>>r.IntN(64)
	for p := range partition.Count {
		if r.Float64() < share {
			parts = append(parts, Part{millrace.Partition(p), Next{int64(r.Uint64() & spread), int64(r.Uint64() & spread >> r.IntN(64))}})
		}
	}
	return parts
}

// What was packed is read as it was, and so is the same in lists. The order does
// not count for the digest.
func TestBothFormsSayTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		want := random(r)
		shuffled, lists := slices.Clone(want), &feedv1.Applied{}
		r.Shuffle(len(shuffled), func(i, j int) { shuffled[i], shuffled[j] = shuffled[j], shuffled[i] })
		var one, other Digest
		for i := range want {
			one.Add(want[i])
			other.Add(shuffled[i])
		}
		packed := &feedv1.Applied{Packed: Pack(want)}
		for _, p := range want {
			lists.Partitions, lists.Content, lists.Features = append(lists.Partitions, int32(p.Partition)), append(lists.Content, p.Content), append(lists.Features, p.Features)
		}
		for what, a := range map[string]*feedv1.Applied{"packed": packed, "lists": lists} {
			if got, err := Parts(a); err != nil || !slices.Equal(got, want) {
				t.Fatalf("%s: %v, %v; want %v", what, got, err, want)
			}
		}
		if one != other {
			t.Errorf("digests of one thing in two orders: %s, %s", one, other)
		}
	}
	got, err := Read(&feedv1.Receipt{Applied: []*feedv1.Applied{{Packed: Pack([]Part{{5, Next{7, 8}}})}, {Partitions: []int32{9}, Content: []int64{3}, Features: []int64{4}}}})
	if err != nil || len(got) != 2 || got[5] != (Next{7, 8}) || got[9] != (Next{3, 4}) {
		t.Errorf("%v, %v", got, err)
	}
}

// The offsets of 307 partitions of a log of a few million records take a tenth
// of what lists of numbers take in JSON.
func TestPackedIsSmall(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var parts []Part
	for p := range partition.Count {
		if len(parts) < 307 && r.IntN(720) < 330 {
			parts = append(parts, Part{millrace.Partition(p), Next{Content: 3000 + r.Int64N(1000)}})
		}
	}
	if n := len(Pack(parts)); n > 600 {
		t.Errorf("%d partitions take %d bytes", len(parts), n)
	}
}

// Each fault is refused: a partition twice, lists of two lengths, bytes too few
// or too many.
func TestMalformed(t *testing.T) {
	good := Pack([]Part{{1, Next{100, 0}}, {4, Next{3, 0}}})
	for what, a := range map[string][]*feedv1.Applied{
		"short":                {{Packed: good[:len(good)-3]}},
		"long":                 {{Packed: append(slices.Clone(good), 0)}},
		"too many":             {{Packed: []byte{0xd1, 0x05, 1, 0, 1, 0, 1, 0}}},
		"beyond the last":      {{Packed: Pack([]Part{{partition.Count, Next{}}})}},
		"a partition twice":    {{Packed: Pack([]Part{{3, Next{}}, {3, Next{}}})}},
		"twice, by two nodes":  {{Packed: good}, {Partitions: []int32{4}, Content: []int64{1}, Features: []int64{1}}},
		"lists of two lengths": {{Partitions: []int32{4}, Content: []int64{1}}},
	} {
		if got, err := Read(&feedv1.Receipt{Applied: a}); err == nil {
			t.Errorf("%s: %v", what, got)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 5 {
		f.Add(Pack(random(r)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		parts, err := unpack(b)
		if err != nil {
			return
		}
		again, err := unpack(Pack(parts))
		if err != nil || !slices.Equal(again, parts) {
			t.Errorf("%v becomes %v, %v", parts, again, err)
		}
	})
}
