package store

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
)

// A disk that fails while Pebble writes its manifest, or syncs the directory,
// ends nothing: reads go on, ingest is told, and all goes on with the disk.
func TestAFailingManifestEndsNothing(t *testing.T) {
	for what, fails := range map[string]func(errorfs.Op) bool{
		"write": func(op errorfs.Op) bool {
			return op.Kind == errorfs.OpFileWrite && strings.Contains(op.Path, "MANIFEST-")
		},
		"sync": func(op errorfs.Op) bool {
			return (op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData) && strings.Contains(op.Path, "MANIFEST-")
		},
		"directory": func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSync && strings.HasSuffix(op.Path, "/db") },
		"all": func(op errorfs.Op) bool {
			return op.Kind.ReadOrWrite() == errorfs.OpIsWrite && !strings.HasSuffix(op.Path, ".sst")
		},
	} {
		t.Run(what, func(t *testing.T) { testFailingManifest(t, fails, what != "all") })
	}
}

// testFailingManifest also opens the store while the disk fails, if opens says
// that what fails then is only what Pebble cannot do without.
func testFailingManifest(t *testing.T, fails func(errorfs.Op) bool, opens bool) {
	var on atomic.Bool
	var met atomic.Int32
	mem := vfs.NewMem()
	disk := errorfs.Wrap(mem, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if on.Load() && fails(op) {
			met.Add(1)
			return fmt.Errorf("%s: %w", op.Path, syscall.EIO)
		}
		return nil
	}))
	fatal := func(msg string) { panic("Pebble ends the process: " + msg) }
	open := func() *Store {
		s, err := Open("/db", Options{FS: disk, FlushEvery: -1, fatal: fatal})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	batch := func(n int) *Batch {
		var b Batch
		b.Put(3, name, millrace.Record{ID: millrace.RecordID(fmt.Sprint(n)), Time: millrace.Time(n)})
		b.SetApplied(3, Content, millrace.Offset(n))
		return &b
	}
	s := open()
	apply(t, s, batch(1))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	apply(t, s, batch(2))
	on.Store(true)
	if err := onlyFailed(s.Flush()); err != nil {
		t.Error(err)
	}
	if got, err := readNewest(s, 3, name, 5); err != nil || len(got.Records) != 2 {
		t.Errorf("while the disk fails: %v, %v", got.Records, err)
	}
	if err := onlyFailed(s.Admit()); err != nil {
		t.Error(err)
	}
	on.Store(false)
	for end := time.Now().Add(5 * time.Minute); s.Admit() != nil; {
		if time.Now().After(end) {
			t.Fatal("it never goes on")
		}
		time.Sleep(time.Millisecond)
	}
	apply(t, s, batch(3))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if opens {
		on.Store(true) // Pebble moves its marker, which is a file and the directory
		met.Store(0)
		opened := make(chan *Store)
		go func() { opened <- open() }()
		for met.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		on.Store(false)
		s = <-opened
	} else {
		s = open()
	}
	if got, err := readNewest(s, 3, name, 5); err != nil || len(got.Records) != 3 || s.Applied(3).Content != 3 {
		t.Errorf("opened again: %v, %v, at %v", got.Records, err, s.Applied(3))
	}
	if _, err := s.Check(t.Context(), 3); err != nil {
		t.Error(err)
	}
	apply(t, s, batch(4))
	on.Store(true)
	if err := onlyFailed(s.Flush()); err != nil {
		t.Error(err)
	}
	if err := s.Close(); !errors.Is(err, ErrFailed) {
		t.Errorf("closed while the disk fails: %v", err)
	}
}
