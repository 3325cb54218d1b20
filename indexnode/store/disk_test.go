package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
)

// smallDisk has so many bytes: what exceeds them fails as a full disk does.
type smallDisk struct {
	*vfs.MemFS
	size  atomic.Int64
	taken atomic.Int64 // by others
}

func (d *smallDisk) used(dir string) (n int64) {
	names, err := d.MemFS.List(dir)
	if err != nil {
		return 0
	}
	for _, name := range names {
		if info, err := d.MemFS.Stat(d.PathJoin(dir, name)); err == nil {
			n += info.Size()
		}
	}
	return n
}

// GetDiskUsage tells the free space.
func (d *smallDisk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	free := max(0, d.size.Load()-d.taken.Load()-d.used("db"))
	return vfs.DiskUsage{AvailBytes: uint64(free), TotalBytes: uint64(d.size.Load())}, nil
}

func (d *smallDisk) fs() vfs.FS {
	return &fullFS{errorfs.Wrap(d.MemFS, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && d.used("db") >= d.size.Load() {
			return fmt.Errorf("write %s: %w", op.Path, syscall.ENOSPC)
		}
		return nil
	})), d}
}

type fullFS struct {
	vfs.FS
	disk *smallDisk
}

// GetDiskUsage tells the free space.
func (f *fullFS) GetDiskUsage(dir string) (vfs.DiskUsage, error) { return f.disk.GetDiskUsage(dir) }

// TestFullDisk fills the disk: ingest is refused before Pebble dies of it,
// reads go on, and ingest goes on when there is space again.
func TestFullDisk(t *testing.T) {
	disk := &smallDisk{MemFS: vfs.NewMem()}
	disk.size.Store(24 << 20)
	var died atomic.Bool
	s := openMem(t, Options{FS: disk.fs(), MinFreeBytes: 4 << 20, MaxDirtyBytes: 256 << 10, CacheBytes: 1 << 20,
		fatal: func(string) { died.Store(true); select {} }})
	name := millrace.Timeline{Entity: "member:1", Type: "post"}
	put := func(i int) error {
		var b Batch
		for k := range 64 {
			body := make([]byte, 1000)
			for j := range body {
				body[j] = byte(i*j*j + j>>3 + k*7)
			}
			b.Put(9, name, millrace.Record{ID: millrace.RecordID(fmt.Sprintf("%d-%d", i, k)), Time: millrace.Time(i), Body: body})
		}
		b.SetApplied(9, Content, millrace.Offset(i+1))
		_, err := s.Apply(&b, nil)
		return err
	}
	n := 0
	for ; n < 10_000; n++ {
		if err := put(n); err != nil {
			if !errors.Is(err, ErrDiskFull) {
				t.Fatal(err)
			}
			break
		}
	}
	if n == 0 || n == 10_000 {
		t.Fatalf("refused after %d batches", n)
	}
	check := func(want int) {
		t.Helper()
		if got := s.Applied(9).Content; got != millrace.Offset(want) {
			t.Errorf("applied %d, want %d", got, want)
		}
		recs, err := s.Read(nil, 9, name, 0, millrace.MaxTime)
		if err != nil || len(recs) != 64*want {
			t.Errorf("%d records, %v; want %d", len(recs), err, 64*want)
		}
	}
	check(n)
	disk.taken.Store(24 << 20) // whatever compactions give back meanwhile
	if err := s.Flush(); !errors.Is(err, ErrDiskFull) {
		t.Errorf("flush on a full disk: %v", err)
	}
	if err := put(n); !errors.Is(err, ErrDiskFull) {
		t.Errorf("still full: %v", err)
	}
	disk.taken.Store(0)
	disk.size.Store(64 << 20)
	for i := range 20 {
		if err := put(n + i); err != nil {
			t.Fatalf("with space again: %v", err)
		}
	}
	check(n + 20)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if died.Load() {
		t.Error("Pebble ended the process")
	}
	t.Logf("refused after %d batches", n)
}

// Nothing is admitted on a full disk, also where little waits to be flushed.
func TestNothingIsAdmittedOnAFullDisk(t *testing.T) {
	disk := &smallDisk{MemFS: vfs.NewMem()}
	disk.size.Store(24 << 20)
	s := openMem(t, Options{FS: disk.fs(), MinFreeBytes: 4 << 20})
	disk.taken.Store(21 << 20)
	b := mendBatch(3, 0, 1)
	if _, err := s.Apply(b, nil); !errors.Is(err, ErrDiskFull) || s.Applied(3) != nothingApplied {
		t.Errorf("%v, and it is at %v", err, s.Applied(3))
	}
	if err := s.Admit(); !errors.Is(err, ErrDiskFull) {
		t.Errorf("it admits: %v", err)
	}
	disk.taken.Store(0)
	apply(t, s, b)
	c := checkpoint(t, s, 3, "checkpoint")
	// With even less space nothing is written for other reasons either.
	disk.taken.Store(24<<20 - 4<<20/4)
	_, checkpointErr := s.Checkpoint([]millrace.Partition{3}, "none")
	cause := errors.New("by order")
	for what, err := range map[string]error{"checkpoint": checkpointErr, "restore": s.Restore(ctx, "checkpoint", c), "drop": s.DropPartition(3), "quarantine": s.Quarantine(4, cause)} {
		if !errors.Is(err, ErrDiskFull) || onlyFailed(err) != nil || errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if names, err := disk.List("none"); err == nil {
		t.Errorf("a checkpoint has %v", names)
	}
	if s.Applied(3).Content != 1 || s.Quarantined(3) != nil || !errors.Is(s.Quarantined(4), cause) {
		t.Errorf("it is at %v; quarantined: %v, %v", s.Applied(3), s.Quarantined(3), s.Quarantined(4))
	}
	disk.taken.Store(0)
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A full disk is told when it begins, once a minute while it lasts, and when it
// ends.
func TestAFullDiskIsToldOnceAMinute(t *testing.T) {
	var r repeated
	start := time.Now()
	told, times := 0, 0
	for i := range 150 { // a try a second
		if n := r.again("", start.Add(time.Duration(i)*time.Second)); n > 0 {
			told++
			times += n
		}
	}
	if told != 3 || times != 121 {
		t.Errorf("told %d times of %d refusals; want 3 of 121", told, times)
	}
	if !r.over() || r.over() {
		t.Error("its end is told other than once")
	}
	if r.again("", start) != 1 {
		t.Error("its next beginning is not told")
	}
}

// The store tells a full disk itself, however often it is asked.
func TestTheStoreTellsAFullDisk(t *testing.T) {
	disk := &smallDisk{MemFS: vfs.NewMem()}
	disk.size.Store(24 << 20)
	var log bytes.Buffer
	s := openMem(t, Options{FS: disk.fs(), MinFreeBytes: 4 << 20, Log: slog.New(slog.NewTextHandler(&log, nil))})
	disk.taken.Store(24 << 20)
	for range 50 {
		if err := s.Admit(); !errors.Is(err, ErrDiskFull) || onlyFailed(err) != nil {
			t.Fatal(err)
		}
	}
	disk.taken.Store(0)
	for range 50 {
		if err := s.Admit(); err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(log.String(), "ingest waits"); n != 1 {
		t.Errorf("told %d times:\n%s", n, &log)
	}
	if n := strings.Count(log.String(), "space on the disk again"); n != 1 {
		t.Errorf("the end is told %d times:\n%s", n, &log)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
