package indexnode

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/replica"
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

// What is found of a partition that was replaced meanwhile is not held against
// what took its place.
func TestWhatWasReplacedMeanwhileIsNotCondemned(t *testing.T) {
	for what, check := range map[string]func(n *Node) error{
		"counting": func(n *Node) error { return n.countPartition(t.Context(), 7) },
		"checking": func(n *Node) error {
			_, err := n.CheckPartition(t.Context(), &nodev1.CheckPartitionRequest{Partition: 7})
			return err
		},
	} {
		tries := 0
		for !replacedMeanwhile(t, what, check) { // work of the store in the background read the damage before
			if tries++; tries == 100 {
				t.Fatalf("%s: the damage was not read: the test shows nothing", what)
			}
		}
	}
}

// replacedMeanwhile replaces a partition while a check reads damage of it, and reports whether
// the check has met it.
func replacedMeanwhile(t *testing.T, what string, check func(n *Node) error) bool {
	t.Helper()
	var armed atomic.Bool
	reads, goesOn := make(chan struct{}), make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind != errorfs.OpFileReadAt || !strings.HasSuffix(op.Path, ".sst") || !armed.CompareAndSwap(true, false) {
			return nil
		}
		close(reads)
		<-goesOn
		return fmt.Errorf("%w: a flipped bit", pebble.ErrCorruption)
	}))
	o := store.Options{FS: fs, FlushEvery: -1, CacheBytes: 1}
	dir := t.TempDir()
	s, err := store.Open(filepath.Join(dir, "store"), o)
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
	n, _ := openIn(t, dir, cache.Config{Memory: 16 << 10}, o)
	n.replicas.Serve(7, time.Now())
	armed.Store(true)
	done := make(chan error, 1)
	go func() { done <- check(n) }()
	<-reads
	if err := n.store.DropPartition(7); err != nil {
		t.Fatal(err)
	}
	close(goesOn)
	if err = <-done; err != nil {
		if s := n.replicas.Of(7).State(); s != replica.Ready {
			t.Errorf("%s: what took its place is %s", what, s)
		}
	}
	return err != nil
}

// What retention dropped is reclaimed every hour; a partition that cannot be read is told, and
// keeps no other from its turn.
func TestWhatRetentionDroppedIsReclaimed(t *testing.T) {
	var broken atomic.Bool
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileReadAt && strings.HasSuffix(op.Path, ".sst") && broken.Load() {
			return errors.New("the disk does not answer")
		}
		return nil
	}))
	o := store.Options{FS: fs, FlushEvery: -1, CacheBytes: 1, Retention: map[millrace.ContentType]store.Retention{"post": {MaxCount: 1}}}
	dir := t.TempDir()
	s, err := store.Open(filepath.Join(dir, "store"), o)
	if err != nil {
		t.Fatal(err)
	}
	var b store.Batch
	for p := range millrace.Partition(3) {
		b.Put(p, millrace.Timeline{Entity: "e", Type: "post"}, millrace.Record{ID: "a", Time: 1})
		b.SetApplied(p, store.Content, 1)
	}
	_, err = s.Apply(&b, nil)
	if err := errors.Join(err, s.Close()); err != nil {
		t.Fatal(err)
	}
	n, _ := openIn(t, dir, cache.Config{Memory: 16 << 10}, o)
	n.cfg.Store = o
	var log strings.Builder
	n.log = slog.New(slog.NewTextHandler(&log, nil))
	synctest.Test(t, func(t *testing.T) {
		said := func(what string, during time.Duration) int {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), during)
			defer cancel()
			log.Reset()
			if err := (&hosting{node: n}).sweep(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("it ends with %v", err)
			}
			return strings.Count(log.String(), what)
		}
		const sweeping = "reclaiming what retention dropped"
		if got := said(sweeping, 90*time.Minute); got > 0 {
			t.Errorf("it could read all, and says %s", &log)
		}
		broken.Store(true)
		if before, got := said(sweeping, sweepEvery-1), said(sweeping, 150*time.Minute); before != 0 || got != 6 {
			t.Errorf("nothing can be read, and in the first hour it says so %d times, and %d times in two: %s", before, got, &log)
		}
		n.cfg.Store.Retention = nil
		if err := (&hosting{node: n}).sweep(t.Context()); err != nil {
			t.Errorf("without retention: %v", err)
		}
	})
}
