package lookup

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/partition"
)

func TestKeysAreGroupedByPartition(t *testing.T) {
	var names []string
	for i := range 3000 {
		names = append(names, fmt.Sprint("member:", i))
	}
	names = append(names, "", strings.Repeat("x", millrace.MaxEntityBytes), "member:7")
	var k keys
	for _, names := range [][]string{names, nil, names[:300], names[:1]} { // each after the first in used memory
		if err := k.Decode(nodetest.Pack(names...)); err != nil {
			t.Fatal(err)
		}
		var got []string
		at := 0
		for i, g := range k.groups {
			if g.lo != at || g.hi <= g.lo || i > 0 && g.partition <= k.groups[i-1].partition {
				t.Fatalf("group %d is %+v, after %d", i, g, at)
			}
			for at = g.lo; at < g.hi; at++ {
				if partition.Of(k.entities[at]) != g.partition {
					t.Fatalf("%q is in partition %d", k.entities[at], g.partition)
				}
				got = append(got, string(k.entities[at]))
			}
		}
		slices.Sort(got)
		if want := slices.Sorted(slices.Values(names)); at != len(k.entities) || !slices.Equal(got, want) {
			t.Fatalf("%d entities of %d", len(got), len(want))
		}
	}
}

// A broker for which entities live elsewhere is told so.
func TestABrokerThatPartitionsOtherwiseIsRefused(t *testing.T) {
	for n := range 50 {
		var b []byte
		for p := range n + 1 {
			b = partition.AppendEntity(b, millrace.Partition(p), "member:42") // which is in 251
		}
		var k keys
		bad, ok := k.Decode(b).(*millrace.Error)
		if !ok || bad.Field != "entities" || bad.WayOut == "" || !strings.Contains(bad.Detail, `"member:42" is in partition 251, not in `) {
			t.Errorf("%d entities: %v", n+1, bad)
		}
	}
}

func TestARequestHasSoManyEntities(t *testing.T) {
	var k keys
	all := bytes.Repeat(nodetest.Pack("member:42"), maxEntities)
	if err := k.Decode(all); err != nil || len(k.entities) != maxEntities {
		t.Errorf("%d entities, %v", len(k.entities), err)
	}
	if bad, ok := k.Decode(append(all, nodetest.Pack("member:42")...)).(*millrace.Error); !ok || bad.Field != "entities" {
		t.Errorf("%v, want a refusal of one more", bad)
	}
}

func FuzzKeys(f *testing.F) {
	entity := func(b []byte, p millrace.Partition, e string) []byte {
		return partition.AppendEntity(b, p, millrace.Entity(e))
	}
	f.Add([]byte(nil))
	f.Add(nodetest.Pack("member:1", "", "member:2", "member:1"))
	f.Add(nodetest.Pack(strings.Repeat("x", millrace.MaxEntityBytes)))
	f.Add(nodetest.Pack(strings.Repeat("x", millrace.MaxEntityBytes+1)))
	f.Add(entity(entity(nil, 5, "a"), 5, "b"))                // two of a partition
	f.Add(entity(entity(nil, 6, "a"), 5, "b"))                // which descend
	f.Add(entity(nil, partition.Count-1, "a"))                // the last
	f.Add(entity(nil, partition.Count, "a"))                  // none
	f.Add(entity(nil, 1<<16-1, "a"))                          // none
	f.Add(nodetest.Pack("member:1")[:partition.EntityHead-1]) // half a head
	f.Add(nodetest.Pack("member:1")[:partition.EntityHead+7]) // a byte is missing
	f.Add(append(nodetest.Pack("member:1"), 0))               // a byte too many
	f.Fuzz(func(t *testing.T, b []byte) {
		var k keys
		ok := k.split(b)
		// What is not refused reads the same again, and so nothing is lost or
		// changed and no partition is without entities.
		var again []byte
		for i, g := range k.groups {
			if g.hi <= g.lo || i > 0 && g.partition <= k.groups[i-1].partition || g.partition >= partition.Count {
				t.Fatalf("%q: group %d is %+v", b, i, g)
			}
			for _, e := range k.entities[g.lo:g.hi] {
				again = partition.AppendEntity(again, g.partition, e)
			}
		}
		if ok && !bytes.Equal(again, b) || !bytes.HasPrefix(b, again) {
			t.Fatalf("%q became %q in %+v", b, k.entities, k.groups)
		}
		if err := k.Decode(b); !ok && err == nil {
			t.Fatalf("%q is decoded", b)
		}
		// What is refused is the end of it: no more of b is entities.
		if rest := b[len(again):]; !ok && readable(rest, k.groups) && len(k.entities) < maxEntities {
			t.Fatalf("%q is refused at %q", b, rest)
		}
	})
}

// readable reports whether b begins with an entity that may follow groups.
func readable(b []byte, groups []group) bool {
	if len(b) < partition.EntityHead {
		return false
	}
	p, size := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
	follows := len(groups) == 0 || millrace.Partition(p) >= groups[len(groups)-1].partition
	return follows && p < partition.Count && size <= millrace.MaxEntityBytes && partition.EntityHead+size <= len(b)
}

// BenchmarkDecodeKeys gives two figures of a request for 1,000 entities, packed
// as brokers do: decode_keys_us, from the bytes of the entities to entities
// grouped by partition, and decode_request_us, from those of the whole message,
// of which protobuf copies the entities' out. No request comes again before 31
// others, so that the processor cannot know the names.
func BenchmarkDecodeKeys(b *testing.B) {
	r := rand.New(rand.NewPCG(3, 3))
	var packed, messages [32][]byte
	for i := range packed {
		var names []string
		for range 1000 {
			names = append(names, fmt.Sprint("member:", r.IntN(8_000_000)))
		}
		packed[i] = nodetest.Pack(names...)
		var err error
		if messages[i], err = proto.Marshal(&nodev1.QueryRequest{Entities: packed[i], Types: []string{"post"}}); err != nil {
			b.Fatal(err)
		}
	}
	decode := func(entities []byte) {
		r := resolutions.Get().(*Resolution)
		r.loan = memory.New(1, "nobody").Borrow()
		defer r.Release()
		if err := r.Decode(entities); err != nil {
			b.Fatal(err)
		}
	}
	keys := func(i int) { decode(packed[i%len(packed)]) }
	request := func(i int) {
		var req nodev1.QueryRequest
		if err := proto.Unmarshal(messages[i%len(messages)], &req); err != nil {
			b.Fatal(err)
		}
		decode(req.Entities)
	}
	// A node's heap is not so small that the collector never rests.
	ballast := make([]byte, 64<<20)
	defer runtime.KeepAlive(ballast)
	runtime.GC()
	for i := range 10_000 { // until the heap has its size, and its pages are there
		request(i)
	}
	for name, f := range map[string]func(int){"keys": keys, "request": request} {
		if n := testing.AllocsPerRun(20, func() { f(0) }); n > 10 {
			b.Errorf("%s: %v allocations", name, n)
		}
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		keys(i)
		i++
	}
	figure.Print("decode_keys_us", usEach(keys), "us")
	figure.Print("decode_request_us", usEach(request), "us")
}

// usEach returns the microseconds of processor time that f takes: the median of
// nine times 128.
func usEach(f func(i int)) float64 {
	const passes = 128
	var took []time.Duration
	for range 9 {
		began := nodetest.CPUTime()
		for i := range passes {
			f(i)
		}
		took = append(took, (nodetest.CPUTime()-began)/passes)
	}
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 1000
}
