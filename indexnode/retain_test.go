package indexnode

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
)

// TestReadersSeeWhatRetentionKeeps asks while the log's clock goes on and
// timelines outgrow their count: what the cache shows is what the store keeps.
func TestReadersSeeWhatRetentionKeeps(t *testing.T) {
	n, h := openRetaining(t, cache.Config{}, map[millrace.ContentType]store.Retention{
		"post": {MaxAge: 150 * time.Millisecond}, "like": {MaxCount: 4}, "comment": {MaxAge: 300 * time.Millisecond, MaxCount: 5},
	})
	n.maxCached = 6
	w := newWorld(seed(t))
	next := map[streamPartition]millrace.Offset{}
	hidden, longest := 0, map[string]int{}
	for i := range 900 {
		e := w.draw(t)
		if e.stream != kafka.Timeline {
			continue
		}
		e.at = millrace.Time(w.at)
		sp := streamPartition{e.stream, partition.Of(e.entity)}
		next[sp]++
		if err := bring(t.Context(), h, []event{e}, next[sp]); err != nil {
			t.Fatal(err)
		}
		if i%3 > 0 {
			continue
		}
		q := oracle.Question{Entities: w.entities, To: millrace.MaxTime, From: millrace.MinTime, AsOf: millrace.Time(w.at), Model: "recency", Limit: maxLimit, Viewer: millrace.Viewer{ID: "v"}}
		resp, err := n.query(t.Context(), request(&q))
		if err != nil {
			t.Fatal(err)
		}
		var got, want []string
		for _, it := range resp.Items {
			got = append(got, fmt.Sprint(it.Entity, it.Type, it.Id))
		}
		for _, entity := range w.entities {
			for _, typ := range verbs {
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
