package store

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store/timeline"
)

// quarantine quarantines a partition as a reader does that finds it corrupt.
func quarantine(t *testing.T, s *Store, p millrace.Partition) {
	t.Helper()
	if err := s.failed(&s.parts[p], s.parts[p].epoch, timeline.ErrDigest); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
	if err := s.Quarantined(p); !errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
}

// DropPartition and Restore lift a quarantine on disk: a crash right behind them
// does not bring it back.
func TestAQuarantineIsLiftedOnDisk(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := openMem(t, Options{FS: fs})
	apply(t, s, mendBatch(3, 0, 40))
	c := checkpoint(t, s, 3, "checkpoint")
	for what, lift := range map[string]func() error{
		"drop":    func() error { return s.DropPartition(3) },
		"restore": func() error { return s.Restore(context.Background(), "checkpoint", c) },
	} {
		quarantine(t, s, 3)
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		crashed := openMem(t, Options{FS: fs.CrashClone(vfs.CrashCloneCfg{})})
		if !errors.Is(crashed.Quarantined(3), ErrCorrupt) {
			t.Errorf("before %s: the quarantine is not on disk: the test shows nothing", what)
		}
		if err := errors.Join(crashed.Close(), lift()); err != nil {
			t.Fatal(err)
		}
		crashed = openMem(t, Options{FS: fs.CrashClone(vfs.CrashCloneCfg{})})
		if err := crashed.Quarantined(3); err != nil || s.Quarantined(3) != nil {
			t.Errorf("after %s: %v, %v", what, err, s.Quarantined(3))
		}
		if err := crashed.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Restore refuses files that hold rows of another partition, before it touches
// anything.
func TestRestoreRefusesAnotherPartition(t *testing.T) {
	s := openMem(t, Options{})
	for _, p := range []millrace.Partition{3, 4, 5} {
		apply(t, s, mendBatch(p, 0, 40))
	}
	for _, from := range []millrace.Partition{3, 5} {
		c := checkpoint(t, s, from, "checkpoint")
		c.Partition = 4
		if err := s.Restore(context.Background(), "checkpoint", c); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "another partition") {
			t.Errorf("from partition %d: %v", from, err)
		}
		for _, p := range []millrace.Partition{3, 4, 5} {
			if got, err := s.Read(nil, p, mendName, 0, millrace.MaxTime); err != nil || len(got) != 40 {
				t.Errorf("partition %d: %d records, %v", p, len(got), err)
			}
		}
		if err := s.opts.FS.RemoveAll("checkpoint"); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// What a reader found corrupt in a state that was replaced meanwhile does not
// quarantine what took its place.
func TestAnOldReaderDoesNotQuarantine(t *testing.T) {
	s := openMem(t, Options{})
	apply(t, s, mendBatch(3, 0, 40))
	c := checkpoint(t, s, 3, "checkpoint")
	for what, replace := range map[string]func() error{
		"drop":    func() error { return s.DropPartition(3) },
		"restore": func() error { return s.Restore(context.Background(), "checkpoint", c) },
	} {
		snap, err := s.snapshot(3)
		if err != nil {
			t.Fatal(err)
		}
		if err := replace(); err != nil {
			t.Fatal(err)
		}
		if err := snap.failed(timeline.ErrDigest); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: the reader hears %v", what, err)
		}
		if err := errors.Join(s.Quarantined(3), snap.Close()); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Durable tells nothing before it is on disk: not with Apply, and not while a
// flush is still writing.
func TestDurableIsNotToldEarly(t *testing.T) {
	var armed atomic.Bool
	inside, goOn := make(chan struct{}), make(chan struct{})
	fs := errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData || op.Kind == errorfs.OpFileClose) && strings.HasSuffix(op.Path, ".sst") && armed.CompareAndSwap(true, false) {
			close(inside)
			<-goOn
		}
		return nil
	}))
	s := openMem(t, Options{FS: fs})
	apply(t, s, mendBatch(3, 0, 40))
	if at := durable(s, 3); at != nothingApplied {
		t.Errorf("durable to %v before a flush", at)
	}
	armed.Store(true)
	end := make(chan error, 1)
	go func() { end <- s.Flush() }()
	<-inside
	if at := durable(s, 3); at != nothingApplied {
		t.Errorf("durable to %v while it is written", at)
	}
	close(goOn)
	if err := <-end; err != nil {
		t.Fatal(err)
	}
	if at := durable(s, 3).Content; at != 40 {
		t.Errorf("durable to %d after the flush", at)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A window ends before its end: in the head, in older blobs and in what is not
// flushed.
func TestAWindowEndsBeforeItsEnd(t *testing.T) {
	s := openMem(t, Options{MaxBlobBytes: 300})
	apply(t, s, mendBatch(3, 0, 40))
	for _, when := range []string{"applied", "flushed"} {
		for from := range millrace.Time(41) {
			for _, to := range []millrace.Time{from, from + 1, from + 7, 39, 40} {
				got, err := s.Read(nil, 3, mendName, from, to)
				if err != nil || len(got) != int(max(0, min(to, 40)-from)) {
					t.Fatalf("%s: %d records from %d to %d, %v", when, len(got), from, to, err)
				}
			}
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// What a floor keeps out is in no window, although the head still has it.
func TestAFloorHoldsInEveryWindow(t *testing.T) {
	s := openMem(t, Options{Retention: map[millrace.ContentType]Retention{"post": {MaxCount: 3}}})
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	for i, id := range []millrace.RecordID{"a", "b", "c", "d", "e", "d"} {
		at := millrace.Time(i * 10)
		if i == 5 {
			at = 5 // below what is kept: c is the floor
		}
		var b Batch
		b.Put(3, name, millrace.Record{ID: id, Time: at, Version: int64(i)})
		apply(t, s, &b)
	}
	for range 2 {
		for from := range millrace.Time(60) {
			for to := from; to < 60; to++ {
				got, err := s.Read(nil, 3, name, from, to)
				want := ""
				for _, r := range []struct {
					at millrace.Time
					id string
				}{{40, "e"}, {20, "c"}} {
					if from <= r.at && r.at < to {
						want += r.id
					}
				}
				ids := ""
				for _, r := range got {
					ids += string(r.ID)
				}
				if err != nil || ids != want {
					t.Fatalf("from %d to %d: %s, %v; want %s", from, to, ids, err, want)
				}
			}
		}
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := readNewest(s, 3, name, 5); err != nil || len(got.Records) != 2 {
		t.Errorf("%+v, %v", got, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
