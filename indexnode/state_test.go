package indexnode

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/store"
)

// A partition of an earlier version's store, which has no counts, is told to be
// uncounted until the node has counted it.
func TestAPartitionWithoutCountsIsCounted(t *testing.T) {
	fs, dir := vfs.NewMem(), t.TempDir()
	s, err := store.Open(filepath.Join(dir, "store"), store.Options{FS: fs, FlushEvery: -1})
	if err != nil {
		t.Fatal(err)
	}
	var b store.Batch
	b.Put(7, millrace.Timeline{Entity: "e", Type: "post"}, millrace.Record{ID: "a", Time: 1})
	b.SetApplied(7, store.Content, 1)
	_, err = s.Apply(&b, nil)
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	db, err := pebble.Open(filepath.Join(dir, "store"), &pebble.Options{FS: fs, FormatMajorVersion: pebble.FormatNewest})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(db.Delete([]byte{0xff, 0xfe, 'c', 0, 7}, pebble.NoSync), db.Flush(), db.Close()); err != nil {
		t.Fatal(err)
	}
	n, _ := openIn(t, dir, cache.Config{Memory: 16 << 10}, store.Options{FS: fs, FlushEvery: -1})
	if c, err := n.store.Counts(7); err != nil || c.Known {
		t.Fatalf("%+v: %v", c, err)
	}
	if err := n.countPartition(t.Context(), 7); err != nil {
		t.Fatal(err)
	}
	if c, err := n.store.Counts(7); err != nil || !c.Known || c.Types["post"].Records != 1 {
		t.Errorf("%+v: %v", c, err)
	}
}
