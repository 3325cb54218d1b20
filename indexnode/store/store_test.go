package store

import (
	"errors"
	"slices"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

func openMem(t testing.TB, o Options) *Store {
	t.Helper()
	if o.FS == nil {
		o.FS = vfs.NewMem()
	}
	if o.FlushEvery == 0 {
		o.FlushEvery = -1
	}
	s, err := Open("db", o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func apply(t testing.TB, s *Store, b *Batch) []Change {
	t.Helper()
	c, err := s.Apply(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// checkpoint takes a checkpoint of one partition.
func checkpoint(t testing.TB, s *Store, p millrace.Partition, dir string) Checkpoint {
	t.Helper()
	all, err := s.Checkpoint([]millrace.Partition{p}, dir)
	if err != nil || len(all) != 1 {
		t.Fatalf("%d checkpoints, %v", len(all), err)
	}
	return all[0]
}

func TestRegistrySurvivesReopen(t *testing.T) {
	fs := vfs.NewMem()
	s := openMem(t, Options{FS: fs})
	var b Batch
	b.PutSchema(7, []byte(`"int"`))
	b.Put(3, millrace.Timeline{Entity: "member:1", Type: "post"}, millrace.Record{ID: "a", Time: 1, Schema: 7})
	b.Put(3, millrace.Timeline{Entity: "member:1", Type: "like"}, millrace.Record{ID: "a", Time: 1, Schema: 7})
	b.SetApplied(3, Content, 12)
	b.PutFeatures(4, "member:2", Features{Subject: "post:1", Version: 2, Body: []byte("f")})
	b.SetApplied(4, FeatureStream, 5)
	apply(t, s, &b)
	for range 2 {
		if got, all := s.Types(); !all || len(got) != 2 || got[0] != "like" || got[1] != "post" {
			t.Errorf("types %v", got)
		}
		if got, err := s.Schemas(); err != nil || string(got[7]) != `"int"` || len(got) != 1 {
			t.Errorf("schemas %v", got)
		}
		if got := s.Applied(3); got != (Offsets{12, -1}) {
			t.Errorf("partition 3 at %v", got)
		}
		if got := s.Applied(4); got != (Offsets{-1, 5}) {
			t.Errorf("partition 4 at %v", got)
		}
		if f, err := s.Features(4, "member:2"); err != nil || len(f) != 1 || string(f[0].Body) != "f" {
			t.Errorf("features %v, %v", f, err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		s = openMem(t, Options{FS: fs})
	}
	if err := s.DropPartition(3); err != nil {
		t.Fatal(err)
	}
	if got := s.Applied(3); got != (Offsets{-1, -1}) {
		t.Errorf("dropped partition at %v", got)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Apply(&b, nil); !errors.Is(err, ErrClosed) {
		t.Errorf("apply after close: %v", err)
	}
}

// TestOneBatchHoldsEverything looks into the batch of a flush: what must not be
// torn apart by a crash is all in it. Whether a crash comes in between two
// writes is a matter of luck, so the crash tests may miss it.
func TestOneBatchHoldsEverything(t *testing.T) {
	s := openMem(t, Options{MaxBlobBytes: 100})
	defer s.Close()
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	var b Batch
	for i := range 4 {
		b.Put(5, name, millrace.Record{ID: millrace.RecordID([]byte{'a' + byte(i)}), Time: millrace.Time(i), Body: make([]byte, 60)})
	}
	b.PutFeatures(5, name.Entity, Features{Subject: "s"})
	b.SetApplied(5, Content, 7)
	b.SetApplied(5, FeatureStream, 3)
	apply(t, s, &b)
	batch := s.db.NewBatch()
	defer batch.Close()
	if err := s.parts[5].fill(batch); err != nil {
		t.Fatal(err)
	}
	got := map[string][]byte{}
	for r := batch.Reader(); ; {
		_, k, v, ok, err := r.Next()
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		got[string(k)] = v
	}
	prefix := slices.Clip(timeline.Prefix(5, name))
	for what, key := range map[string][]byte{
		"head": timeline.HeadKey(prefix), "chain": timeline.ChainKey(prefix), "older blob": timeline.OlderKey(prefix, 0),
		"filter": append(prefix, timeline.PartFilter), "id row": append(prefix, timeline.PartID, 'a'),
		"features": append(featuresPrefix(5, name.Entity), 's'),
	} {
		if _, ok := got[string(key)]; !ok {
			t.Errorf("no %s in the batch", what)
		}
	}
	row, err := decodePartRow(got[string(partitionKey(5, kindPart))])
	if err != nil || row.applied != (Offsets{7, 3}) || row.digest != s.Digest(5) {
		t.Errorf("row %+v, %v", row, err)
	}
}

// readNewest is [Store.ReadNewestInto] memory of its own.
func readNewest(s *Store, n millrace.Partition, name millrace.Timeline, max int) (Newest, error) {
	var out Newest
	err := s.ReadNewestInto(&out, n, name, max)
	return out, err
}

// durable returns the offsets from which a restart would replay.
func durable(s *Store, p millrace.Partition) Offsets {
	q, err := s.part(p)
	if err != nil {
		return Offsets{-1, -1}
	}
	q.mu.RLock()
	defer q.mu.RUnlock()
	return q.durable
}
