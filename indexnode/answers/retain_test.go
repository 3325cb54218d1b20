package answers

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestReadersSeeWhatRetentionKeeps asks while the log's clock goes on and
// timelines outgrow their count: what the cache shows is what the store keeps.
func TestReadersSeeWhatRetentionKeeps(t *testing.T) {
	n, h := openCaching(t, cache.Config{}, store.Options{FS: vfs.NewMem(), MaxBlobBytes: 600, FlushEvery: -1, Retention: map[millrace.ContentType]store.Retention{
		"post": {MaxAge: 150 * time.Millisecond}, "like": {MaxCount: 4}, "comment": {MaxAge: 300 * time.Millisecond, MaxCount: 5},
	}}, lookup.Config{Cached: 6})
	w := nodetest.NewWorld(seed(t))
	next := map[streamPartition]millrace.Offset{}
	hidden, longest := 0, map[string]int{}
	for i := range 900 {
		e := w.Draw(t)
		if e.Stream != kafka.Timeline {
			continue
		}
		e.At = millrace.Time(w.At)
		sp := streamPartition{e.Stream, partition.Of(e.Entity)}
		next[sp]++
		if err := nodetest.Bring(t.Context(), h, []nodetest.Event{e}, next[sp]); err != nil {
			t.Fatal(err)
		}
		if i%3 > 0 {
			continue
		}
		q := oracle.Question{Entities: w.Entities, To: millrace.MaxTime, From: millrace.MinTime, AsOf: millrace.Time(w.At), Model: "recency", Limit: maxLimit, Viewer: millrace.Viewer{ID: "v"}}
		resp, err := n.query(t.Context(), request(&q))
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for _, it := range resp.Items {
			got = append(got, fmt.Sprint(it.Entity, it.Type, it.Id))
		}
		for _, entity := range w.Entities {
			for _, typ := range nodetest.Verbs {
				key := millrace.Timeline{Entity: entity, Type: millrace.ContentType(typ)}
				kept, err := n.store.Read(nil, partition.Of(entity), key, millrace.MinTime, millrace.MaxTime)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range kept {
					want = append(want, fmt.Sprint(entity, typ, r.ID))
				}
				longest[typ] = max(longest[typ], len(kept))
				r := n.cache.Reader()
				if tl := r.Peek(key); tl != nil && tl.Len() > len(kept) {
					hidden++
				}
				r.Leave()
			}
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("after event %d: %d records\n%v\nwant %d\n%v", i, len(got), got, len(want), want)
		}
	}
	if hidden == 0 || longest["like"] != 4 || longest["share"] <= 5 {
		t.Errorf("%d timelines hid what is too old; the longest are %v", hidden, longest)
	}
}
