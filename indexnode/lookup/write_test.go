package lookup

import (
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
)

// What a node forgets of a partition is all that the store has of it: its
// timelines, and the features that its entities have and route. The rest stays
// cached.
func TestForgetPartition(t *testing.T) {
	l, replicas := open(t)
	if l.Written(kafka.Features, nil, nil); l.features.Load() {
		t.Error("a commit that wrote no features has some")
	}
	w := nodetest.NewWorld(5)
	at := map[millrace.Partition][2]millrace.Offset{}
	known := map[millrace.Timeline]bool{}
	for range 400 {
		e := w.Draw(t)
		p := partition.Of(e.Entity)
		next := at[p]
		next[e.Stream]++
		at[p] = next
		if err := nodetest.Bring(t.Context(), replicas, []nodetest.Event{e}, next[e.Stream]); err != nil {
			t.Fatal(err)
		}
		if e.Stream == kafka.Features {
			known[millrace.Timeline{Entity: e.Entity, Type: cache.Features}] = true
			known[millrace.Timeline{Entity: e.Entity, Type: cache.Objects}] = true
		}
	}
	for p := range at {
		for tl, err := range l.store.Timelines(p) {
			if err != nil {
				t.Fatal(err)
			}
			known[tl] = true
		}
	}
	for tl := range known {
		l.cache.Fill(tl, cache.Empty)
	}
	var gone millrace.Partition
	for tl := range known {
		if tl.Type == cache.Features {
			gone = partition.Of(tl.Entity)
		}
	}
	if err := l.ForgetPartition(gone); err != nil {
		t.Fatal(err)
	}
	r := l.cache.Reader()
	defer r.Leave()
	kinds := map[bool]map[millrace.ContentType]bool{true: {}, false: {}}
	for tl := range known {
		of := partition.Of(tl.Entity) == gone
		if kinds[of][tl.Type] = true; (r.Peek(tl) == nil) != of {
			t.Errorf("%v of partition %d is cached: %v", tl, partition.Of(tl.Entity), !of)
		}
	}
	if len(kinds[true]) < 4 || len(kinds[false]) < 4 {
		t.Fatalf("the partition has no more than %v, the others %v", kinds[true], kinds[false])
	}
}
