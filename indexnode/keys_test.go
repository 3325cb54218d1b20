package indexnode

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/partition"
)

func pack(entities ...string) (b []byte) {
	for _, e := range entities {
		b = append(binary.AppendUvarint(b, uint64(len(e))), e...)
	}
	return b
}

// packAsBrokers packs entities by partition, lowest first.
func packAsBrokers(entities ...string) []byte {
	entities = slices.Clone(entities)
	slices.SortStableFunc(entities, func(a, b string) int {
		return int(partition.Of(millrace.Entity(a))) - int(partition.Of(millrace.Entity(b)))
	})
	return pack(entities...)
}

func TestKeysAreGroupedByPartition(t *testing.T) {
	var names []string
	for i := range 3000 {
		names = append(names, fmt.Sprint("member:", i))
	}
	names = append(names, "", strings.Repeat("x", millrace.MaxEntityBytes), "member:7")
	var k keys
	for _, c := range []struct {
		name  string
		pack  func(...string) []byte
		names []string
	}{
		{"as brokers", packAsBrokers, names}, {"none", pack, nil}, {"in any order", pack, names},
		{"fewer", packAsBrokers, names[:300]}, {"fewer in any order", pack, names[1:300]}, {"one", pack, names[:1]},
	} { // each after the first in used memory
		if err := k.decode(c.pack(c.names...)); err != nil {
			t.Fatal(err)
		}
		var got []string
		at := 0
		for i, g := range k.groups {
			if g.lo != at || g.hi <= g.lo || i > 0 && g.partition <= k.groups[i-1].partition {
				t.Fatalf("%s: group %d is %+v, after %d", c.name, i, g, at)
			}
			for at = g.lo; at < g.hi; at++ {
				if partition.Of(k.entities[at]) != g.partition {
					t.Fatalf("%s: %q is in partition %d", c.name, k.entities[at], g.partition)
				}
				got = append(got, string(k.entities[at]))
			}
		}
		slices.Sort(got)
		if want := slices.Sorted(slices.Values(c.names)); at != len(k.entities) || !slices.Equal(got, want) {
			t.Fatalf("%s: %d entities of %d", c.name, len(got), len(want))
		}
	}
}

func FuzzKeys(f *testing.F) {
	f.Add(pack("member:1", "", "member:2"))
	f.Add([]byte{0x80})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Add([]byte{5, 'a'})
	f.Add([]byte{2, 'a'}) // a byte is missing
	f.Add(append([]byte{0x81, 0x04}, make([]byte, 600)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		names, ok := split(nil, b)
		var k keys
		if err := k.decode(b); ok != (err == nil) {
			t.Fatalf("%q: %v", b, err)
		}
		if !ok {
			return
		}
		// What is not refused reads the same again, but for long-winded lengths.
		var texts []string
		for _, e := range names {
			texts = append(texts, string(e))
		}
		again := pack(texts...)
		if same, ok := split(nil, again); !ok || len(again) > len(b) || !slices.Equal(same, names) {
			t.Fatalf("%q became %q", b, names)
		}
		// No entity is lost or changed when they are grouped.
		slices.Sort(names)
		if slices.Sort(k.entities); !slices.Equal(k.entities, names) {
			t.Fatalf("%q became %q", names, k.entities)
		}
	})
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
		packed[i] = packAsBrokers(names...)
		var err error
		if messages[i], err = proto.Marshal(&nodev1.QueryRequest{Entities: packed[i], Types: []string{"post"}}); err != nil {
			b.Fatal(err)
		}
	}
	decode := func(entities []byte) {
		r := resolutions.Get().(*resolution)
		defer r.release()
		if err := r.decode(entities); err != nil {
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
	figure.Print("decode_keys_us", usEach(keys), "us", 10)
	figure.Tell("decode_request_us", usEach(request), "us")
}

// usEach returns the microseconds of processor time that f takes: the median of
// nine times 128.
func usEach(f func(i int)) float64 {
	const passes = 128
	var took []time.Duration
	for range 9 {
		began := cpuTime()
		for i := range passes {
			f(i)
		}
		took = append(took, (cpuTime()-began)/passes)
	}
	slices.Sort(took)
	return float64(took[len(took)/2].Nanoseconds()) / 1000
}

// cpuTime is what the process used, since a busy machine stretches any other
// time.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
