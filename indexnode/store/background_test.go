package store

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
)

// logged is what a store logs.
type logged struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logged) times(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), text)
}

// until waits until something is so. Nothing else than a test that hangs tells that it never is.
func until(so func() bool) {
	for !so() {
		time.Sleep(time.Millisecond)
	}
}

// Nobody calls for what happens in the background: a flush when enough is not flushed, or when
// it is old, and a look at a file that Pebble found corrupt.
func TestTheFlusherWakes(t *testing.T) {
	for what, o := range map[string]Options{
		"much is not flushed": {MaxDirtyBytes: 4 << 10, FlushEvery: -1},
		"it is old":           {FlushEvery: time.Millisecond},
	} {
		t.Run(what, func(t *testing.T) {
			s := openMem(t, o)
			apply(t, s, mendBatch(3, 0, 40))
			until(func() bool { return durable(s, 3).Content == 40 })
			if err := errors.Join(mended(s, 3), s.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	s := openMem(t, Options{FS: mendStore(t), MaxBlobBytes: 500})
	tables, err := s.tables()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range tables {
		if parts, _ := holders(f.Smallest.UserKey, f.Largest.UserKey); len(parts) == 1 && parts[0] == 3 {
			s.suspect(Damage{File: s.tablePath(f), Partitions: parts, Cause: pebble.ErrCorruption})
		}
	}
	until(func() bool { return s.Quarantined(3) != nil })
	s.suspect(Damage{File: "db/none.sst", Partitions: []millrace.Partition{4}, Cause: pebble.ErrCorruption}) // is not in use any more
	s.checkSuspects()
	if n := len(s.Damage()); n < 2 {
		t.Errorf("%d files are told", n)
	}
	until(func() bool { size, err := s.Bytes(3); return size == 0 && err == nil }) // it is cut out
	if err := errors.Join(s.Quarantined(4), mended(s, 4), mendedNode(s), s.Close()); err != nil {
		t.Error(err)
	}
}

// A store flushes neither because little is not flushed nor for what it has flushed.
func TestTheFlusherSleeps(t *testing.T) {
	s := openMem(t, Options{MaxDirtyBytes: 1 << 20})
	for i := range 4 {
		apply(t, s, mendBatch(3, i*10, i*10+10))
		if n := len(s.wake); n > 0 || s.dirty.Load() == 0 {
			t.Errorf("the flusher is woken %d times for %d bytes", n, s.dirty.Load())
		}
	}
	for range 100 {
		if at := s.flushAt.Load(); at < 3<<18 || at > 1<<20 {
			t.Errorf("a flush begins at %d bytes", at)
		}
		s.stagger()
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// What goes wrong in the background, or is mended without a word to who calls, is logged.
func TestWhatIsLogged(t *testing.T) {
	var broken, unremoved atomic.Bool
	var log logged
	fs := errorfs.Wrap(mendStore(t), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if unremoved.Load() && op.Kind == errorfs.OpRemove && strings.HasPrefix(op.Path, "db/restore/") {
			return syscall.EIO
		}
		return nil
	}))
	s := openMem(t, Options{FS: fs, MaxBlobBytes: 500, Log: slog.New(slog.NewTextHandler(&log, nil)), unwritable: func(p millrace.Partition) error {
		if broken.Load() {
			return syscall.EIO
		}
		return nil
	}})
	for _, c := range []struct {
		text string
		do   func() error
	}{
		{"partition quarantined\" partition=719 err=\"for a test\"", func() error { return s.Quarantine(719, errors.New("for a test")) }},
		{"counts were wrong and are mended\" partition=3 types=1", func() error {
			s.parts[3].tally.Of("post").Records++
			r, err := s.Check(ctx, 3)
			return cmpLen(r.Miscounted, 1, 0, err)
		}},
		{"store: damage\" file=db/x.sst partitions=[4] aside=\"\" err=\"for a test\"", func() error {
			for range 2 { // once for each file
				s.found(Damage{File: "db/x.sst", Partitions: []millrace.Partition{4}, Cause: errors.New("for a test")})
			}
			return nil
		}},
		{"background work failed\" times=1", func() error {
			for range 2 { // once a minute
				s.backgroundError(syscall.EIO)
			}
			return nil
		}},
		{"err=\"store: failed: disk full", func() error { s.backgroundError(syscall.ENOSPC); return nil }},
		{"store: a word of Pebble's 7", func() error {
			s.dbo.Logger.Infof("nothing")
			s.dbo.Logger.Errorf("a word of Pebble's %d", 7)
			return nil
		}},
		{"too many content types: requests for all types are refused from now on\" known=256 further=", func() error {
			for i := range 300 {
				if err := s.putType(typed(i).Type); err != nil {
					return err
				}
			}
			return nil
		}},
		{"store: files of a restore are left\" dir=db/restore err=", func() error {
			c := checkpoint(t, s, 0, "checkpoint")
			c.Digest.Content++ // so that it is refused when its files are there
			unremoved.Store(true)
			defer unremoved.Store(false)
			if err := s.Restore(ctx, "checkpoint", c); !errors.Is(err, ErrRefused) {
				return fmt.Errorf("it is restored: %v", err)
			}
			return nil
		}},
		{"store: flush failed\" err=\"store: failed: rewound: partition 3 to offset 40", func() error {
			apply(t, s, mendBatch(3, 40, 50))
			broken.Store(true)
			s.opts.MaxDirtyBytes = 0
			err := s.Admit()
			s.opts.MaxDirtyBytes = 1 << 20
			return err
		}},
		{"store: flush failed\" err=\"store: failed: rewound: partition 4 to offset 40", func() error {
			broken.Store(false)
			apply(t, s, mendBatch(4, 40, 50))
			broken.Store(true)
			s.wakeFlusher()
			until(func() bool { return log.times("partition 4 to offset 40") > 0 })
			return nil
		}},
	} {
		if n := log.times(c.text); n != 0 {
			t.Errorf("%q is told before", c.text)
		}
		if err := c.do(); err != nil {
			t.Errorf("%s: %v", c.text, err)
		}
		if n := log.times(c.text); n != 1 {
			t.Errorf("%q is told %d times", c.text, n)
		}
	}
	broken.Store(false)
	if n := log.times("nothing"); n > 0 {
		t.Error("what Pebble says for information is told")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// A checkpoint links the files of its partitions, and no others; those that are neighbours too.
func TestACheckpointLinksWhatItNeeds(t *testing.T) {
	var links atomic.Int64
	fs := errorfs.Wrap(mendStore(t), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpLink {
			links.Add(1)
		}
		return nil
	}))
	s := openMem(t, Options{FS: fs, MaxBlobBytes: 500})
	for _, set := range [][]millrace.Partition{{3}, {3, 4}, {4, 0}, {0, 3, 4, 719}, {7}} {
		links.Store(0)
		all, err := s.Checkpoint(set, fmt.Sprint("checkpoint", set))
		if err != nil || len(all) != len(set) {
			t.Fatalf("%d checkpoints, %v", len(all), err)
		}
		files := 0
		for _, c := range all {
			files += len(c.Files)
		}
		if got := links.Load(); got != int64(files) {
			t.Errorf("of partitions %v, which have %d files, %d are linked", set, files, got)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Figures of the engine are those of what it has done.
func TestEngine(t *testing.T) {
	s := openMem(t, Options{CacheBytes: 1 << 20})
	for i := range 3 {
		apply(t, s, mendBatch(3, i*10, i*10+10))
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	before, ok := s.Engine()
	if !ok || before.Flushes < 3 || before.FlushedBytes < 1000 || before.Tables < 3 || before.DiskBytes < before.FlushedBytes || before.ReadAmplification < 1 || before.Memtables < 1 || before.MemtableBytes < 1 {
		t.Errorf("after flushes: %+v, %t", before, ok)
	}
	if err := s.db.Compact(ctx, []byte{0}, []byte{0xff}, false); err != nil {
		t.Fatal(err)
	}
	if err := mended(s, 3); err == nil {
		t.Fatal("40 records of 30")
	}
	after, ok := s.Engine()
	if !ok || after.Compactions < 1 || after.CompactedBytes < 1000 || after.Tables >= before.Tables || after.CacheHits+after.CacheMisses == 0 || after.CacheBytes == 0 || after.Failed != 0 {
		t.Errorf("after a compaction: %+v, %t", after, ok)
	}
	size, err := s.Bytes(3)
	if other, _ := s.Bytes(4); err != nil || size < 500 || size > after.DiskBytes || other != 0 {
		t.Errorf("partition 3 takes %d bytes, 4 %d: %v", size, other, err)
	}
	s.dbo.EventListener.WriteStallBegin(pebble.WriteStallBeginInfo{})
	if e, _ := s.Engine(); e.Stalls != 1 {
		t.Errorf("%d stalls of 1", e.Stalls)
	}
	if s.MinFree() != DefaultMinFreeBytes || (&Store{opts: Options{MinFreeBytes: -1}}).MinFree() != 0 {
		t.Errorf("%d bytes are kept free", s.MinFree())
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
