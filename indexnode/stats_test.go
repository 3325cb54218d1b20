package indexnode

import (
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// A node tells of each partition what it takes on disk, what was applied, and
// how fast records come in and are read.
func TestStats(t *testing.T) {
	n, replicas := openNode(t, cache.Config{})
	o := &observer{node: n}
	began := time.Now()
	first := o.look(began, topology.Set{})
	if len(first.Partitions) != partition.Count {
		t.Fatalf("stats of %d partitions", len(first.Partitions))
	}
	if kept := n.store.MinFree(); first.KeptBytes != kept || kept == 0 {
		t.Errorf("%d bytes stay free, and it tells %d", kept, first.KeptBytes)
	}
	names := entities(t, n, replicas, 8, 100)
	if err := n.store.Flush(); err != nil {
		t.Fatal(err)
	}
	const asked = 64 // of which one in 16 is counted
	for range asked {
		if _, err := n.Query(t.Context(), nodetest.OfAll(names)); err != nil {
			t.Fatal(err)
		}
	}
	at := map[millrace.Partition]int{}
	for _, name := range names {
		at[partition.Of(millrace.Entity(name))]++
	}
	s := o.look(began.Add(10*lately), topology.Set{}) // so late that what was before does not count
	for p, of := range s.Partitions {
		want := int64(100 * at[p])
		if of.Records != want || (of.Bytes > 0) != (want > 0) {
			t.Errorf("partition %d: %+v, want %d records", p, of, want)
		}
		seconds := (10 * lately).Seconds()
		if near := func(got, want float64) bool { return got > 0.99*want-1e-9 && got < 1.01*want+1e-9 }; !near(of.Ingest, float64(want)/seconds) || !near(of.Load, float64(asked*want)/seconds) {
			t.Errorf("partition %d: %.4f records came in and %.4f were read a second", p, of.Ingest, of.Load)
		}
	}
	if first.Near(&s) || !s.Near(&s) {
		t.Error("what has changed is not worth telling, or what has not is")
	}
	soon, full := o.at.Add(heldEvery), s
	full.FreeBytes = 2*s.FreeBytes + 1<<30 // so what is free now is less than half of it
	if o.due(soon, topology.Set{}, &s) || !o.due(soon, topology.Set{}, &full) || !o.due(o.at.Add(statsEvery), topology.Set{}, &s) {
		t.Error("it does not look again when there is reason to, and only then")
	}
}

// BenchmarkStats is one look at a node that hosts every partition.
func BenchmarkStats(b *testing.B) {
	n, replicas := openNode(b, cache.Config{})
	entities(b, n, replicas, 2000, 2)
	if err := n.store.Flush(); err != nil {
		b.Fatal(err)
	}
	o := &observer{node: n}
	for b.Loop() {
		o.look(time.Now(), topology.Set{})
	}
}

// A node gathers more where there is more memory, within bounds.
func TestUnflushedBytes(t *testing.T) {
	for memory, want := range map[int64]int64{0: 128 << 20, 1 << 30: 128 << 20, 8 << 30: 256 << 20, 1 << 40: 512 << 20} {
		if got := unflushedBytes(memory); got != want {
			t.Errorf("%d bytes of memory: %d, want %d", memory, got, want)
		}
	}
}
