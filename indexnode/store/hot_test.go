package store

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/blob"
	"github.com/millrace/millrace/indexnode/store/timeline"
	"github.com/millrace/millrace/internal/partition"
)

// checkHot wants of what is kept in memory that it is what is on disk, within the
// bound, and counted; and that what is not flushed is counted, too.
func checkHot(t *testing.T, s *Store) {
	t.Helper()
	s.flushing.Lock() // the flusher is at work beside the test
	defer s.flushing.Unlock()
	all, dirty := int64(0), int64(0)
	for i := range s.parts {
		p, held, waits := &s.parts[i], int64(0), int64(0)
		p.mu.RLock()
		for _, unflushed := range p.timelines {
			waits += int64(unflushed.Memory())
		}
		for entity, own := range p.features {
			waits += 300 + int64(len(entity))
			for subject, f := range own {
				waits += 120 + int64(len(subject)+len(f.Body))
			}
		}
		if waits != p.bytes || waits > 0 && !p.changed {
			t.Errorf("partition %d has %d bytes that are not flushed, counts %d, and has changes, %t", i, waits, p.bytes, p.changed)
		}
		dirty += waits
		for name, kept := range p.hot.timelines {
			held += int64(kept.Memory())
			if p.timelines[name] != nil || !kept.Clean() {
				t.Errorf("%v is kept and not flushed", name)
			}
			if err := sameOnDisk(s, p.p, kept); err != nil {
				t.Errorf("%v: %v", name, err)
			}
		}
		if held != p.hot.bytes {
			t.Errorf("partition %d keeps %d bytes and counts %d", i, held, p.hot.bytes)
		}
		all += held
		p.mu.RUnlock()
	}
	if got := s.dirty.Load(); got != dirty {
		t.Errorf("%d bytes are not flushed, %d counted", dirty, got)
	}
	if s.hot.Load() != all || all > max(0, s.opts.MaxHotBytes) {
		t.Errorf("%d bytes are kept, %d counted, at most %d allowed", all, s.hot.Load(), s.opts.MaxHotBytes)
	}
}

func sameOnDisk(s *Store, n millrace.Partition, kept *timeline.Timeline) error {
	disk, err := timeline.Open((*source)(s), n, kept.Name, s.opts.MaxBlobBytes)
	if err != nil {
		return err
	}
	if disk.Head == nil || !bytes.Equal(disk.Head.Buf, kept.Head.Buf) || newestOf(disk.Head) != newestOf(kept.Head) {
		return fmt.Errorf("another head is on disk")
	}
	if kept.Chain != nil {
		if err := disk.LoadChain(); err != nil || disk.Chain == nil || !bytes.Equal(disk.Chain.Encode(nil), kept.Chain.Encode(nil)) {
			return fmt.Errorf("another chain is on disk: %v", err)
		}
	}
	if kept.Seen != nil && kept.Head.HasChain() {
		if err := disk.LoadFilter(); err != nil || !bytes.Equal(disk.Seen.Encode(), kept.Seen.Encode()) {
			return fmt.Errorf("another filter is on disk: %v", err)
		}
	}
	return nil
}

// TestHotHeads: what was flushed lately is there without a read of the disk, within
// the bound; what is older gives way; nothing is left of a partition that is dropped.
func TestHotHeads(t *testing.T) {
	s, err := Open("db", Options{FS: vfs.NewMem(), FlushEvery: -1, MaxHotBytes: 50 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n := 0
	apply := func(entity millrace.Entity) {
		t.Helper()
		var b Batch
		n++
		b.Put(partition.Of(entity), millrace.Timeline{Entity: entity, Type: "post"}, millrace.Record{ID: millrace.RecordID(fmt.Sprint(n)), Time: millrace.Time(n), Body: make([]byte, 500)})
		if _, err := s.Apply(&b, nil); err != nil {
			t.Fatal(err)
		}
	}
	flush := func() {
		t.Helper()
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		checkHot(t, s)
	}
	hot := func(entity millrace.Entity) bool {
		return s.parts[partition.Of(entity)].hot.timelines[millrace.Timeline{Entity: entity, Type: "post"}] != nil
	}
	apply("often")
	flush()
	if !hot("often") {
		t.Fatal("what was flushed is not kept")
	}
	apply("often")
	if hot("often") {
		t.Fatal("what is not flushed counts as kept")
	}
	flush()
	if got, err := readNewest(s, partition.Of("often"), millrace.Timeline{Entity: "often", Type: "post"}, 9); err != nil || len(got.Records) != 2 {
		t.Errorf("%d records, %v", len(got.Records), err)
	}
	for i := range 300 { // far more than there is room for
		apply(millrace.Entity(fmt.Sprintf("once:%d", i)))
		if i%50 == 0 {
			flush()
		}
	}
	flush()
	if kept := s.hot.Load(); kept < s.opts.MaxHotBytes/2 {
		t.Errorf("%d bytes are kept of %d allowed", kept, s.opts.MaxHotBytes)
	}
	last := 0
	for i := 251; i < 300; i++ {
		if hot(millrace.Entity(fmt.Sprintf("once:%d", i))) {
			last++
		}
	}
	if last < 25 {
		t.Errorf("of the last 49 timelines %d are kept", last)
	}
	for p := range partition.All() {
		if err := s.DropPartition(p); err != nil {
			t.Fatal(err)
		}
	}
	if checkHot(t, s); s.hot.Load() != 0 {
		t.Errorf("%d bytes are kept of partitions that are not there", s.hot.Load())
	}
}

func newestOf(b *blob.Blob) millrace.RecordID {
	_, id := b.Newest()
	return id
}
