package indexnode

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

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

func TestKeysAreGroupedByPartition(t *testing.T) {
	var names []string
	for i := range 3000 {
		names = append(names, fmt.Sprint("member:", i))
	}
	names = append(names, "", strings.Repeat("x", millrace.MaxEntityBytes), "member:7")
	var k keys
	for range 2 { // the second time in used memory
		if err := k.decode(pack(names...)); err != nil {
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
		if want := slices.Sorted(slices.Values(names)); !slices.Equal(got, want) {
			t.Fatalf("%d entities of %d", len(got), len(want))
		}
	}
}

func FuzzKeys(f *testing.F) {
	f.Add(pack("member:1", "", "member:2"))
	f.Add([]byte{0x80})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01})
	f.Add([]byte{5, 'a'})
	f.Add(append([]byte{0x81, 0x04}, make([]byte, 600)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var k keys
		if k.decode(b) != nil {
			return
		}
		// What is not refused reads the same again, but for long-winded lengths.
		var names []string
		for _, s := range k.spans {
			names = append(names, string(b[s.at:][:s.size]))
		}
		again := pack(names...)
		if len(again) > len(b) || len(k.entities) != len(names) {
			t.Fatalf("%q became %q", b, names)
		}
		if err := k.decode(again); err != nil || len(k.spans) != len(names) {
			t.Fatalf("%q: %v", again, err)
		}
	})
}

// BenchmarkDecodeKeys gives the figure decode_keys_us: from the bytes of 1,000
// entities to entities grouped by partition.
func BenchmarkDecodeKeys(b *testing.B) {
	var names []string
	for i := range 1000 {
		names = append(names, fmt.Sprint("member:", i*7919))
	}
	packed := pack(names...)
	decode := func() {
		r := resolutions.Get().(*resolution)
		defer r.release()
		if err := r.decode(packed); err != nil {
			b.Fatal(err)
		}
	}
	// A node's heap is not so small that the collector never rests.
	ballast := make([]byte, 256<<20)
	defer runtime.KeepAlive(ballast)
	runtime.GC()
	decode()
	if n := testing.AllocsPerRun(20, decode); n > 10 {
		b.Errorf("%v allocations", n)
	}
	const passes = 100
	var took []time.Duration
	for range 9 {
		began := cpuTime()
		for range passes {
			decode()
		}
		took = append(took, (cpuTime()-began)/passes)
	}
	b.ReportAllocs()
	for b.Loop() {
		decode()
	}
	slices.Sort(took)
	figure.Print("decode_keys_us", float64(took[len(took)/2].Nanoseconds())/1000, "us", 10)
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
