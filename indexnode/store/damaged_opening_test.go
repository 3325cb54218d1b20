package store

import (
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// Whatever operation on the disk fails while a damaged store opens, the store opens all the
// same or says that the disk failed; when the disk goes on, no more is lost than by the damage.
// With -short only what the store does itself fails, and few files are damaged.
func TestADamagedStoreOpensOnAFailingDisk(t *testing.T) {
	base := mendStore(t)
	names, err := base.List("db")
	if err != nil {
		t.Fatal(err)
	}
	tables := 0
	for _, name := range names {
		var do []harm
		switch {
		case strings.HasSuffix(name, ".sst"):
			if tables++; tables == 1 || !testing.Short() {
				do = []harm{remove, cutTo(sizeOf(t, base, name) - 1)}
			}
			if testing.Short() && tables == 1 {
				do = do[:1]
			}
		case strings.HasPrefix(name, "OPTIONS"):
			do = []harm{cutTo(37)}
		case strings.HasPrefix(name, "marker.format"):
			do = []harm{remove}
		}
		for _, do := range do {
			at, hit := int64(0), true
			for ; hit; at++ {
				fs := cloneMem(t, base)
				what, err := do(fs, fs.PathJoin("db", name))
				if err != nil {
					t.Fatal(err)
				}
				if hit, err = openFailing(fs, at+1); err != nil {
					t.Errorf("%s %s, operation %d fails: %v", name, what, at+1, err)
				}
			}
			if at < 10 {
				t.Errorf("%s: %d operations failed: the test shows nothing", name, at-1)
			}
		}
	}
}

// openFailing opens a store while one operation on the disk fails, and then without. It reports
// whether one failed, and what is wrong with the store.
func openFailing(fs vfs.FS, at int64) (hit bool, err error) {
	var n atomic.Int64
	n.Store(at)
	failing := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileClose || op.Kind == errorfs.OpFileSync && !strings.Contains(op.Path, ".") {
			return nil // Pebble panics, on purpose, when a directory cannot be synced
		}
		if testing.Short() && n.Load() > 0 {
			if by := string(debug.Stack()); !strings.Contains(by, "store.(*Store)") || strings.Contains(by, "pebble/v2.Open(") {
				return nil
			}
		}
		if n.Add(-1) == 0 {
			return fmt.Errorf("%s: %w", op.Path, syscall.EIO)
		}
		return nil
	}))
	for _, fs := range []vfs.FS{failing, fs} {
		s, err := Open("db", Options{FS: fs, FlushEvery: -1, MaxBlobBytes: 500, fatal: func(msg string) { panic(msg) }})
		if fs == failing {
			hit = n.Swap(0) <= 0
		}
		switch {
		case err != nil && hit && onlyFailed(err) == nil && fs == failing:
			continue
		case err != nil:
			return hit, err
		}
		lost := 0
		for _, p := range mendPartitions {
			if s.Quarantined(p) != nil {
				lost++
			} else if err := mended(s, p); err != nil && (fs != failing || onlyFailed(err) != nil) {
				return hit, errors.Join(err, s.Close())
			}
		}
		aside := s.isAside()
		if err := errors.Join(mendedNode(s), s.Close()); err != nil && (fs != failing || onlyFailed(err) != nil) {
			return hit, err
		}
		if lost > 1 || aside {
			return hit, fmt.Errorf("%d partitions are lost: %v", lost, s.Damage())
		}
	}
	return hit, nil
}
