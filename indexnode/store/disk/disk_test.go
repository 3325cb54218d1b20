package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// small is a file system in memory that tells of free space what a test says, and fails as it says.
type small struct {
	vfs.FS
	free  atomic.Uint64
	fails func(errorfs.Op) error // nil: nothing does
	usage error
}

func newSmall() *small {
	s := new(small)
	s.FS = errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if s.fails == nil {
			return nil
		}
		return s.fails(op)
	}))
	return s
}

// GetDiskUsage tells the free space.
func (s *small) GetDiskUsage(string) (vfs.DiskUsage, error) {
	return vfs.DiskUsage{AvailBytes: s.free.Load(), TotalBytes: math.MaxUint64}, s.usage
}

var errFull = errors.New("full")

// of returns a disk, and what it logs.
func (s *small) of(c Config) (*Disk, *bytes.Buffer) {
	var log bytes.Buffer
	c.FS, c.Dir, c.Full, c.Log = s, "db", errFull, slog.New(slog.NewTextHandler(&log, nil))
	if c.Stalls == nil {
		c.Stalls = func(error) {}
	}
	if err := s.MkdirAll("db", 0o700); err != nil {
		panic(err)
	}
	return New(c), &log
}

// There is room for what is needed if so many bytes are free, and not if one is missing.
func TestRoom(t *testing.T) {
	fs := newSmall()
	fs.free.Store(100)
	d, _ := fs.of(Config{MinFree: 1000})
	for least, room := range map[int64]bool{0: true, 99: true, 100: true, 101: false} {
		if err := d.Room(least); room != (err == nil) || !room && !errors.Is(err, errFull) {
			t.Errorf("for %d bytes of 100: %v", least, err)
		}
	}
	if size, free := d.Usage(); size != math.MaxInt64 || free != 100 {
		t.Errorf("%d bytes of %d are free", free, size)
	}
	fs.free.Store(math.MaxUint64)
	if _, free := d.Usage(); free != math.MaxInt64 {
		t.Errorf("%d bytes are free", free)
	}
	fs.free.Store(0)
	if d, _ := fs.of(Config{MinFree: -1}); d.Room(1) != nil {
		t.Error("there is a limit where there is none")
	}
	if d, _ := fs.of(Config{}); !errors.Is(d.Room(1), errFull) {
		t.Error("there is none where there is one")
	}
	fs.usage = vfs.ErrUnsupported
	if err := d.Room(1); err != nil {
		t.Errorf("where nobody can tell: %v", err)
	}
	fs.usage = syscall.EIO
	if err := d.Room(1); !errors.Is(err, syscall.EIO) || errors.Is(err, errFull) {
		t.Errorf("where the disk fails: %v", err)
	}
	if size, free := d.Usage(); size != 0 || free != 0 {
		t.Errorf("where the disk fails, %d of %d bytes are free", free, size)
	}
}

// The ballast is a sixteenth of what is to be free, up to a bound. A write that meets a full disk
// gets its space, and what is left of that becomes the ballast again.
func TestBallast(t *testing.T) {
	for minFree, want := range map[int64]int64{-1: 0, 0: 0, 16 << 10: 1 << 10, 1 << 20: 64 << 10, 1<<20 + 16: 64<<10 + 1, 3 << 20: 3 << 16, 1 << 40: maxBallastBytes} {
		fs := newSmall()
		d, log := fs.of(Config{MinFree: minFree})
		for range 2 {
			d.Hold()
			if got := d.ballast.size(); got != want || log.Len() > 0 {
				t.Errorf("of %d bytes free it has %d, want %d: %s", minFree, got, want, log)
			}
		}
		need := min(want, openBytes)
		for free, missing := range map[int64]int64{need: 0, need - 1: 1} {
			if need == 0 || minFree > 1<<30 {
				continue
			}
			fs.free.Store(uint64(free))
			if err := errors.Join(fs.Remove("db/BALLAST"), nil); err != nil && free == need {
				t.Fatal(err)
			}
			if err := d.RoomToOpen(); (err != nil) != (missing > 0) {
				t.Errorf("with %d bytes free of %d that are needed: %v", free, need, err)
			}
		}
		fs.free.Store(0)
		d.Hold()
		if err := d.RoomToOpen(); err != nil {
			t.Errorf("with a ballast of %d bytes: %v", want, err)
		}
	}
	fs := newSmall()
	fs.usage = vfs.ErrUnsupported
	if d, _ := fs.of(Config{MinFree: 1 << 20}); d.ballast.want != 0 || d.RoomToOpen() != nil {
		t.Errorf("where nobody can tell what is free the ballast is %d bytes", d.ballast.want)
	}

	fs = newSmall()
	d, log := fs.of(Config{MinFree: 1 << 20})
	d.Hold()
	full := func(op errorfs.Op) error { // as long as the ballast is there
		if _, err := vfs.Root(fs).Stat("db/BALLAST"); op.Kind == errorfs.OpFileWrite && err == nil {
			return syscall.ENOSPC
		}
		return nil
	}
	f, err := d.FS().Create("db/OPTIONS-1", vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	fs.fails = full
	if n, err := f.Write([]byte("what is kept")); n != 12 || err != nil {
		t.Errorf("%d bytes are written: %v", n, err)
	}
	fs.fails = nil
	if err := errors.Join(f.Sync(), f.SyncData(), f.Close()); err != nil {
		t.Error(err)
	}
	if got := contentOf(t, fs, "db/OPTIONS-1"); got != "what is kept" {
		t.Errorf("%q is written", got)
	}
	if got := d.ballast.size(); got != 64<<10 { // made again
		t.Errorf("the ballast has %d bytes again", got)
	}
	if log.Len() > 0 {
		t.Error(log)
	}
	for _, other := range []error{syscall.EIO, syscall.ENOSPC} { // whatever the ballast gives
		fs.fails = func(op errorfs.Op) error {
			if op.Kind == errorfs.OpCreate {
				return other
			}
			return nil
		}
		if _, err := d.FS().Create("db/OPTIONS-2", vfs.WriteCategoryUnspecified); !errors.Is(err, other) {
			t.Errorf("%v is told as %v", other, err)
		}
	}
	if strings.Trim(contentOf(t, vfs.Root(fs), "db/BALLAST")[1<<10:2<<10], "\x00") == "" {
		t.Error("the ballast is zeros, which a file system may leave out")
	}
	fs.fails = func(op errorfs.Op) error {
		switch op.Kind {
		case errorfs.OpCreate:
			return syscall.ENOSPC
		case errorfs.OpRemove:
			return syscall.EIO
		}
		return nil
	}
	if _, err := d.FS().Create("db/OPTIONS-2", vfs.WriteCategoryUnspecified); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a ballast that cannot be removed: %v", err)
	}
	fs.fails = func(op errorfs.Op) error {
		if op.Kind == errorfs.OpOpen || op.Kind == errorfs.OpFileWriteAt {
			return syscall.EIO
		}
		return nil
	}
	if err := fs.Remove("db/BALLAST"); err != nil {
		t.Fatal(err)
	}
	if d.Hold(); !strings.Contains(log.String(), "not whole") {
		t.Errorf("a ballast that is not whole is told as %q", log)
	}
}

func contentOf(t *testing.T, fs vfs.FS, name string) string {
	t.Helper()
	f, err := fs.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A table is refused where there is little room or the disk fails, and other files are not. If
// it was refused just before it waits, also when the store is closed, as long as Pebble tries.
func TestTablesAreRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := newSmall()
		done := make(chan struct{})
		d, _ := fs.of(Config{MinFree: 800, Done: done})
		var broken atomic.Bool
		d.c.FS = errorfs.Wrap(d.c.FS, errorfs.InjectorFunc(func(op errorfs.Op) error {
			if broken.Load() && op.Kind.ReadOrWrite() == errorfs.OpIsWrite {
				return syscall.EIO
			}
			return nil
		}))
		create := func(name string) error {
			f, err := d.FS().Create("db/"+name, vfs.WriteCategoryUnspecified)
			if err == nil {
				err = f.Close()
			}
			return err
		}
		fs.free.Store(100)
		table, err := d.FS().Create("db/0.sst", vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range []struct {
			free   uint64
			broken bool
			do     func() error
			want   error
			takes  time.Duration
		}{
			{100, false, func() error { return create("1.sst") }, nil, 0},
			{99, false, func() error { return create("1.sst") }, errFull, 0},
			{99, false, func() error { return create("1.sst") }, errFull, tablePause},
			{0, false, func() error { return create("1.log") }, nil, 0},
			{0, false, func() error { return create("MANIFEST-1") }, nil, 0},
			{100, true, func() error { return create("1.sst") }, syscall.EIO, tablePause},
			{100, true, func() error { _, err := table.Write([]byte("rows")); return err }, syscall.EIO, tablePause},
			{100, true, table.Sync, syscall.EIO, tablePause},
			{100, true, table.SyncData, syscall.EIO, tablePause},
			{100, false, table.Sync, nil, 0},
			{100, false, func() error { time.Sleep(tablePause + 1); return nil }, nil, tablePause + 1},
			{100, true, table.Sync, syscall.EIO, 0},
			{100, true, func() error { close(done); return table.Sync() }, syscall.EIO, 0},
			{100, true, func() error { close(d.ended); return table.Sync() }, syscall.EIO, tablePause},
		} {
			fs.free.Store(c.free)
			broken.Store(c.broken)
			began := time.Now()
			if err := c.do(); !errors.Is(err, c.want) || time.Since(began) != c.takes {
				t.Errorf("%d: %v after %v", i, err, time.Since(began))
			}
		}
	})
}

// What Pebble cannot do without is tried until the disk works again; a manifest is then written
// anew, whole. All the while, and not longer, the disk says why Pebble waits.
func TestPatience(t *testing.T) {
	for what, wrong := range map[string]func(op errorfs.Op) bool{
		"writes": func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileWrite },
		"syncs":  func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSync || op.Kind == errorfs.OpFileSyncData },
		"data":   func(op errorfs.Op) bool { return op.Kind == errorfs.OpFileSyncData },
		"all":    func(op errorfs.Op) bool { return op.Kind.ReadOrWrite() == errorfs.OpIsWrite },
	} {
		for _, why := range mayGo {
			synctest.Test(t, func(t *testing.T) {
				fs := newSmall()
				stalls := 0
				var stuck error
				var d *Disk
				var log *bytes.Buffer
				left := 0
				d, log = fs.of(Config{Stalls: func(err error) {
					if stalls++; !errors.Is(err, why) {
						t.Errorf("%s: it waits for %v", what, err)
					}
					stuck = d.Stuck()
				}})
				d.Opened()
				fs.fails = func(op errorfs.Op) error {
					if left > 0 && wrong(op) {
						left--
						return why
					}
					return nil
				}
				left = 2
				f, err := d.FS().Create("db/MANIFEST-1", vfs.WriteCategoryUnspecified)
				if err != nil {
					t.Fatal(err)
				}
				left = 0
				_, err = f.Write([]byte("one "))
				err = errors.Join(err, f.Sync())
				for i, word := range []string{"two ", "three ", "four "} {
					left = i
					_, wrote := f.Write([]byte(word))
					left = i
					err = errors.Join(err, wrote, f.Sync(), f.SyncData())
					if err := d.Stuck(); err != nil {
						t.Errorf("%s: it is stuck for %v", what, err)
					}
				}
				left = 2
				dir, opened := d.FS().OpenDir("db")
				if err = errors.Join(err, opened); err == nil {
					err = errors.Join(dir.Sync(), dir.Close())
				}
				left = 0
				if full, synced := f.SyncTo(1); full || synced != nil {
					t.Errorf("%s: a sync of a part: %t, %v", what, full, synced)
				}
				if err := errors.Join(err, f.Close()); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if got := contentOf(t, fs, "db/MANIFEST-1"); got != "one two three four " {
					t.Errorf("%s: it has %q", what, got)
				}
				if what == "data" { // a new file needs no sync of its data alone, and so no second try
					if stalls > 0 {
						t.Errorf("it waits %d times for a sync that it can do without", stalls)
					}
					return
				}
				if stalls == 0 || !errors.Is(stuck, why) {
					t.Errorf("%s: it waits %d times, and is stuck for %v", what, stalls, stuck)
				}
				if begins, ends := strings.Count(log.String(), "ingest waits"), strings.Count(log.String(), "works again"); begins == 0 || begins != ends || begins > stalls {
					t.Errorf("%s: of %d failures %d begin and %d end:\n%s", what, stalls, begins, ends, log)
				}
				// Another error is the caller's at once.
				fs.fails = func(op errorfs.Op) error { return errFull }
				if _, err := d.FS().Create("db/marker.x", vfs.WriteCategoryUnspecified); !errors.Is(err, errFull) {
					t.Errorf("%s: another error: %v", what, err)
				}
				if _, err := d.FS().OpenDir("db"); !errors.Is(err, errFull) {
					t.Errorf("%s: another error: %v", what, err)
				}
			})
		}
	}
}

// A manifest is in its directory as soon as it is there, and again when it was written anew. What
// does not fail is written once; another error than the disk's is returned, of markers too.
func TestManifests(t *testing.T) {
	fs := newSmall()
	d, _ := fs.of(Config{})
	var left error // fails the next write
	dirs, creates := 0, 0
	fs.fails = func(op errorfs.Op) (err error) {
		switch {
		case op.Kind == errorfs.OpFileSync && op.Path == "db":
			dirs++
		case op.Kind == errorfs.OpCreate:
			creates++
		case op.Kind == errorfs.OpFileWrite:
			err, left = left, nil
		}
		return err
	}
	for name, synced := range map[string]int{"db/MANIFEST-1": 1, "db/marker.x": 0} {
		dirs, creates = 0, 0
		f, err := d.FS().Create(name, vfs.WriteCategoryUnspecified)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte("one ")); err != nil || f.Sync() != nil || dirs != synced || creates != 1 {
			t.Errorf("%s: %d syncs of the directory, %d files made: %v", name, dirs, creates, err)
		}
		left = errFull
		if _, err := f.Write(nil); !errors.Is(err, errFull) {
			t.Errorf("%s: another error: %v", name, err)
		}
		left = syscall.EIO
		if _, err := f.Write([]byte("two")); err != nil || dirs != synced+1 || creates != 2 {
			t.Errorf("%s: %d syncs of the directory, %d files made: %v", name, dirs, creates, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		if got := contentOf(t, fs, name); got != "one two" {
			t.Errorf("%s has %q", name, got)
		}
	}
	fs.fails = func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSync && op.Path == "db" {
			return errFull
		}
		return nil
	}
	if _, err := d.FS().Create("db/MANIFEST-2", vfs.WriteCategoryUnspecified); !errors.Is(err, errFull) {
		t.Errorf("a directory that is not synced: %v", err)
	}
	if err := SyncDir(fs, "db"); !errors.Is(err, errFull) {
		t.Errorf("a directory that is not synced: %v", err)
	}
	if err := SyncDir(fs, "none"); err == nil {
		t.Error("a directory that is not there is synced")
	}
	if err := d.OrEnd(func() error { return errFull }); err != errFull {
		t.Errorf("a call that fails: %v", err)
	}
}

// Where nobody waits, a call that the disk fails ends the store: an offline one, and one that is
// being opened on a disk that is full. Whoever waits hears of it.
func TestTheEnd(t *testing.T) {
	for _, c := range []struct {
		offline, opened bool
		err             error
		ends            bool
	}{
		{false, true, syscall.ENOSPC, false}, {false, false, syscall.EIO, false},
		{false, false, syscall.ENOSPC, true}, {false, false, syscall.EROFS, true},
		{true, true, syscall.EIO, true}, {true, true, syscall.ENOSPC, true},
	} {
		what := fmt.Sprintf("offline %t, opened %t, %v", c.offline, c.opened, c.err)
		fs := newSmall()
		waits := make(chan error, 100)
		done := make(chan struct{})
		d, _ := fs.of(Config{Offline: c.offline, Done: done, Stalls: func(err error) { waits <- err }})
		if c.opened {
			d.Opened()
		}
		if err := d.Stuck(); err != nil {
			t.Errorf("%s: stuck before: %v", what, err)
		}
		var fails atomic.Bool
		fails.Store(true)
		fs.fails = func(op errorfs.Op) error {
			if fails.Load() {
				return c.err
			}
			return nil
		}
		call := make(chan error, 1)
		go func() {
			call <- d.OrEnd(func() error {
				f, err := d.FS().Create("db/MANIFEST-1", vfs.WriteCategoryUnspecified)
				if err == nil {
					err = f.Close()
				}
				return err
			})
		}()
		if c.ends {
			if err := <-call; !errors.Is(err, c.err) || !errors.Is(d.Stuck(), c.err) || !errors.Is(d.Why(), c.err) {
				t.Errorf("%s: %v, stuck for %v, ended by %v", what, err, d.Stuck(), d.Why())
			}
			<-d.Ended()
			continue
		}
		if err := <-waits; !errors.Is(err, c.err) || !errors.Is(d.Stuck(), c.err) {
			t.Errorf("%s: it waits for %v, stuck for %v", what, err, d.Stuck())
		}
		fails.Store(false)
		if err := <-call; err != nil || d.Stuck() != nil {
			t.Errorf("%s: it goes on with %v, stuck for %v", what, err, d.Stuck())
		}
		select {
		case <-d.Ended():
			t.Errorf("%s: it has ended: %v", what, d.Why())
		default:
		}
	}
}
