package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"github.com/millrace/millrace"
)

// smallMount returns a directory on a disk of its own.
func smallMount(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		if os.Geteuid() != 0 && os.Getenv("CI") == "" {
			t.Skip("mounting a small disk needs root")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil { // a store that ended keeps its files open
			t.Error(err)
		}
	})
	return dir
}

// fill takes every byte that is left.
func fill(t *testing.T, dir string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, "filler"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func noise(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// A store opens on a disk without a free byte, again and again, and reads;
// compactions fail and ingest waits; with space it goes on where it was. Nothing
// of it ends the process.
func TestOpenOnAFullDisk(t *testing.T) {
	dir := smallMount(t, 32<<20)
	o := Options{FlushEvery: -1, MinFreeBytes: 4 << 20, MaxDirtyBytes: 1 << 20, CacheBytes: 1,
		fatal: func(msg string) { panic("Pebble ends the process: " + msg) }}
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	batch := func(n int) *Batch {
		var b Batch
		for k := range 20 {
			b.Put(3, name, millrace.Record{ID: millrace.RecordID(fmt.Sprintf("%d-%d", n, k)), Time: millrace.Time(n), Body: noise(2000)})
		}
		b.SetApplied(3, Content, millrace.Offset(n))
		return &b
	}
	open := func() *Store {
		t.Helper()
		s, err := Open(filepath.Join(dir, "db"), o)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	const batches = 100
	for n := range batches {
		apply(t, s, batch(n+1))
		if n%20 == 0 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check := func(want int) {
		t.Helper()
		got, err := s.Read(nil, 3, name, 0, millrace.MaxTime)
		if err != nil || len(got) != 20*want || s.Applied(3).Content != millrace.Offset(want) {
			t.Errorf("%d records at %v: %v", len(got), s.Applied(3), err)
		}
	}
	for range 5 {
		fill(t, dir)
		s = open()
		check(batches)
		if err := s.Admit(); !errors.Is(err, ErrDiskFull) {
			t.Errorf("admit: %v", err)
		}
		if _, err := s.Apply(batch(batches+1), nil); !errors.Is(err, ErrDiskFull) {
			t.Errorf("apply: %v", err)
		}
		if err := s.Flush(); err != nil && !errors.Is(err, ErrDiskFull) {
			t.Errorf("flush: %v", err)
		}
		// One that Pebble began itself fails and begins again, and this one may
		// wait behind it for as long as there is no room.
		short, cancel := context.WithTimeout(ctx, time.Second)
		if err := s.db.Compact(short, []byte{0}, []byte{1}, false); err != nil && !errors.Is(here(err), ErrDiskFull) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("compaction: %v", err)
		}
		cancel()
		if err := s.DropPartition(9); !errors.Is(err, ErrDiskFull) {
			t.Errorf("drop: %v", err)
		}
		check(batches)
		if err := s.Close(); err != nil && !errors.Is(err, ErrFailed) {
			t.Errorf("close: %v", err)
		}
	}
	fill(t, dir)
	s = open()
	if err := s.Admit(); !errors.Is(err, ErrDiskFull) {
		t.Errorf("admit: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	for n := batches; n < batches+20; n++ {
		apply(t, s, batch(n+1))
	}
	check(batches + 20)
	if err := s.Flush(); err != nil {
		t.Error(err)
	}
	if _, err := s.Check(ctx, 3); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Others take the space while the store is open and writes: a manifest that
// meets ENOSPC gets the ballast, and the process lives.
func TestTheManifestGetsTheBallast(t *testing.T) {
	dir := smallMount(t, 32<<20)
	s, err := Open(filepath.Join(dir, "db"), Options{FlushEvery: -1, MinFreeBytes: 4 << 20,
		fatal: func(msg string) { panic("Pebble ends the process: " + msg) }})
	if err != nil {
		t.Fatal(err)
	}
	var b Batch
	b.Put(3, millrace.Timeline{Entity: "member:1", Type: "post"}, millrace.Record{ID: "a", Time: 1})
	b.SetApplied(3, Content, 1)
	apply(t, s, &b)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	fill(t, dir)
	// Edits of the manifest alone, more of them than fit into the pages it has.
	before := ballastBytes(t, s)
	for i := range 2000 {
		start, end := partitionSpan(millrace.Partition(i%700 + 10))
		if err := s.db.Excise(ctx, pebble.KeyRange{Start: start, End: end}); err != nil {
			t.Fatal(err)
		}
	}
	if after := ballastBytes(t, s); after >= before || after == 0 {
		t.Errorf("the ballast has %d bytes, it had %d: the test shows nothing", after, before)
	}
	if err := os.Remove(filepath.Join(dir, "filler")); err != nil {
		t.Fatal(err)
	}
	apply(t, s, &b)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// An offline store whose disk is full ends with an error, whatever it is at, and
// the process goes on.
func TestAnOfflineStoreEndsOnAFullDisk(t *testing.T) {
	ended := 0
	for bytes := 8 << 10; bytes <= 128<<10; bytes += 4 << 10 {
		dir := smallMount(t, bytes)
		s, err := Open(filepath.Join(dir, "db"), Options{FlushEvery: -1, MinFreeBytes: -1, Offline: true})
		if err == nil {
			var b Batch
			b.Put(3, millrace.Timeline{Entity: "member:1", Type: "post"}, millrace.Record{ID: "a", Time: 1, Body: noise(20 << 10)})
			b.SetApplied(3, Content, 1)
			apply(t, s, &b)
			err = errors.Join(s.Flush(), s.DropPartition(3))
			if closed := s.Close(); closed != nil && err == nil {
				err = closed
			}
		}
		if err != nil {
			ended++
			if !errors.Is(err, ErrDiskFull) {
				t.Errorf("%d bytes: %v", bytes, err)
			}
		}
	}
	if ended == 0 {
		t.Error("no disk was full: the test shows nothing")
	}
}

// What Pebble cannot go on from ends the store: writes say so, reads go on, and
// so does the process.
func TestFatalEndsTheStoreAlone(t *testing.T) {
	dir, err := os.MkdirTemp("", "millrace-store-") // what ended may write into it for a moment yet
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s, err := Open(dir, Options{FlushEvery: -1, MinFreeBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	var b Batch
	b.Put(3, name, millrace.Record{ID: "a", Time: 1})
	b.SetApplied(3, Content, 1)
	apply(t, s, &b)
	go s.dbo.Logger.Fatalf("a test of %s", "the end")
	<-s.disk.Ended()
	if got, err := readNewest(s, 3, name, 5); err != nil || len(got.Records) != 1 {
		t.Errorf("reads: %v, %v", got.Records, err)
	}
	for what, err := range map[string]error{"admit": s.Admit(), "flush": s.Flush(), "drop": s.DropPartition(3), "close": s.Close()} {
		if err := onlyFailed(err); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func ballastBytes(t *testing.T, s *Store) int64 {
	t.Helper()
	info, err := s.opts.FS.Stat(s.opts.FS.PathJoin(s.dir, "BALLAST"))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
