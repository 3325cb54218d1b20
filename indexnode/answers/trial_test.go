package answers

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/schemas"
)

func modelOf(t *testing.T, n *node, id relevance.ID) *relevance.Model {
	t.Helper()
	m, err := n.models.Find(id)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// Among records of many entities in many partitions a version is tried, and those
// of no more than some.
func TestVersionsAreTriedOnRecordsOfTheNode(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	good, bad := admitBroken(t, n, "1", "2.0"), admitBroken(t, n, "2", none)
	if has, tried := n.condemned.try(t.Context(), good, modelOf(t, n, good)); has || tried {
		t.Errorf("of no records: %t, %t", has, tried)
	}
	for i := range 300 {
		e := millrace.Entity(fmt.Sprint("member:", i))
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r%d","actor":%q,"verb":"post","created_at":1700000000000,"object":"o1","likes":3}`, i, e))
		if err == nil {
			err = nodetest.Bring(t.Context(), h, []nodetest.Event{{Stream: kafka.Timeline, Entity: e, Schema: schemas.Activity(), Body: body}}, millrace.Offset(i+1))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	r := n.lookup.Resolve()
	defer r.Release()
	if err := r.Decode(n.someEntities(t.Context())); err != nil {
		t.Fatal(err)
	}
	if r.Affordable(trialEntities, trialEntities*trialEntities-1) == nil || r.Affordable(1, trialEntities+trialEach-1) != nil {
		t.Error("tried on fewer entities, or more")
	}
	if has, tried := n.condemned.try(t.Context(), good, modelOf(t, n, good)); !has || !tried {
		t.Errorf("a version with numbers: %t, %t", has, tried)
	}
	if has, tried := n.condemned.try(t.Context(), bad, modelOf(t, n, bad)); has || !tried {
		t.Errorf("one without: %t, %t", has, tried)
	}
}

// Of one partition a few entities are tried, each once, and of many partitions others each
// time.
func TestOnWhichEntitiesAVersionIsTried(t *testing.T) {
	n, _ := openNode(t, cache.Config{})
	const p = millrace.Partition(7)
	put := func(e millrace.Entity) {
		t.Helper()
		var b store.Batch
		for _, kind := range []millrace.ContentType{"a", "b", "c"} {
			b.Put(partition.Of(e), millrace.Timeline{Entity: e, Type: kind}, millrace.Record{ID: "r", Version: 1})
		}
		if _, err := n.store.Apply(&b, nil); err != nil {
			t.Fatal(err)
		}
	}
	tried := func() (all []string) {
		t.Helper()
		r := n.lookup.Resolve()
		defer r.Release()
		encoded := n.someEntities(t.Context())
		if err := r.Decode(encoded); err != nil {
			t.Fatal(err)
		}
		for at := 0; at < len(encoded); {
			_, e, size := entityAt(encoded[at:])
			all = append(all, e)
			at += size
		}
		return all
	}
	for i, have := 0, 0; have < trialEach+4; i++ {
		e := millrace.Entity(fmt.Sprint("some:", i))
		if partition.Of(e) != p {
			continue
		}
		put(e)
		have++
		if got := tried(); len(got) != min(have, trialEach) || len(slices.Compact(slices.Sorted(slices.Values(got)))) != len(got) {
			t.Fatalf("of %d entities of a partition %q are tried", have, got)
		}
	}
	for i := range 400 {
		put(millrace.Entity(fmt.Sprint("many:", i)))
	}
	first, then := tried(), tried()
	if n := len(first); n < trialEntities || n >= trialEntities+trialEach || slices.Equal(first, then) {
		t.Errorf("of many, %d entities are tried, and the same again: %t", n, slices.Equal(first, then))
	}
	gone, goes := context.WithCancel(t.Context())
	if goes(); len(n.someEntities(gone)) > 0 {
		t.Error("nobody waits, and it goes on to look for entities")
	}
}

// entityAt reads an entity of a request, its partition, and the bytes of both.
func entityAt(b []byte) (p millrace.Partition, e string, size int) {
	head := binary.LittleEndian.Uint32(b)
	size = partition.EntityHead + int(head>>16)
	return millrace.Partition(head & 0xffff), string(b[partition.EntityHead:size]), size
}

// TestUncoveredFeatures: of a pushed model, the features that no candidate of
// the newest question has.
func TestUncoveredFeatures(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	likes, err := nodetest.Likes(t).Admit(n.models, "a", relevance.ShippedSchemas())
	if err != nil {
		t.Fatal(err)
	}
	if missing, candidates, err := n.uncovered(t.Context(), likes); len(missing) > 0 || candidates > 0 || err != nil {
		t.Errorf("before any question: %v of %d, %v", missing, candidates, err)
	}
	w := nodetest.NewWorld(1)
	e := w.Entities[0]
	body, err := schemas.Activity().EncodeJSON([]byte(`{"id":"r1","actor":"` + string(e) + `","verb":"post","created_at":5,"likes":3}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := nodetest.Bring(t.Context(), h, []nodetest.Event{{Stream: kafka.Timeline, Entity: e, Schema: schemas.Activity(), Body: body}}, 1); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Query(t.Context(), &nodev1.QueryRequest{Entities: nodetest.Pack(string(e)), ToMs: math.MaxInt64, Model: "recency", Limit: 5}); err != nil {
		t.Fatal(err)
	}
	if n.Newest() == nil || n.Newest().Model != "recency" {
		t.Errorf("the newest question is %v", n.Newest())
	}
	var log strings.Builder
	n.log = slog.New(slog.NewTextHandler(&log, nil))
	n.TellUncovered(t.Context(), relevance.ID{Name: "recency"})
	if log.Len() > 0 {
		t.Errorf("nothing is uncovered, and it says %s", &log)
	}
	n.TellUncovered(t.Context(), likes)
	n.TellUncovered(t.Context(), relevance.ID{Name: "none", Version: "1"})
	if text := log.String(); strings.Count(text, "\n") != 2 || !strings.Contains(text, `features="[followers taste]" candidates=1`) || !strings.Contains(text, "what features candidates have is not known") {
		t.Errorf("it says %s", text)
	}
	missing, candidates, err := n.uncovered(t.Context(), likes)
	if want := []string{"followers", "taste"}; err != nil || candidates != 1 || !slices.Equal(missing, want) {
		t.Errorf("%v of %d candidates, %v; want %v of 1", missing, candidates, err, want)
	}
}
