package store

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace/internal/race"
)

// Whatever operation on the disk fails while a damaged store opens, the store opens all the
// same or says that the disk failed; when the disk goes on, no more is lost than by the damage.
// With -short only what the store does itself fails, and few files are damaged.
func TestADamagedStoreOpensOnAFailingDisk(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine: nothing for the race detector")
	}
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
			open := func(at int64) (all []int64) {
				fs := cloneMem(t, base)
				what, err := do(fs, fs.PathJoin("db", name))
				if err != nil {
					t.Fatal(err)
				}
				if all, err = openFailing(fs, at); err != nil {
					t.Errorf("%s %s, operation %d fails: %v", name, what, at, err)
				}
				return all
			}
			all := open(0)
			if len(all) < 10 {
				t.Errorf("%s: %d operations fail: the test shows nothing", name, len(all))
			}
			step := max(1, len(all)/30) // of all operations some, others each time
			for k := rand.IntN(step); k < len(all); k += step {
				open(all[k])
			}
		}
	}
}

// openFailing opens a store while an operation on the disk fails, by its number from 1, and then
// without. It returns the numbers of the operations that may fail if at is 0, and what is wrong
// with the store.
func openFailing(fs vfs.FS, at int64) (all []int64, err error) {
	var mu sync.Mutex
	n := int64(0)
	failing := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileClose || op.Kind == errorfs.OpFileSync && !strings.Contains(op.Path, ".") {
			return nil // Pebble panics, on purpose, when a directory cannot be synced
		}
		mu.Lock()
		defer mu.Unlock()
		if n++; n == at {
			return fmt.Errorf("%s: %w", op.Path, syscall.EIO)
		}
		if by := ""; at == 0 {
			if testing.Short() {
				by = string(debug.Stack())
			}
			if by == "" || strings.Contains(by, "store.(*Store)") && !strings.Contains(by, "pebble/v2.Open(") {
				all = append(all, n)
			}
		}
		return nil
	}))
	for _, fs := range []vfs.FS{failing, fs} {
		s, err := Open("db", Options{FS: fs, FlushEvery: -1, MaxBlobBytes: 500, fatal: func(msg string) { panic(msg) }})
		mu.Lock()
		hit, opened := at > 0 && n >= at, slices.Clone(all)
		mu.Unlock()
		switch {
		case err != nil && hit && onlyFailed(err) == nil && fs == failing:
			continue
		case err != nil:
			return opened, err
		}
		lost := 0
		for _, p := range mendPartitions {
			switch {
			case s.Quarantined(p) != nil:
				lost++
			case s.Applied(p).Content != 40:
				return opened, errors.Join(fmt.Errorf("partition %d is at %v", p, s.Applied(p)), s.Close())
			case fs != failing:
				if err := mended(s, p); err != nil {
					return opened, errors.Join(err, s.Close())
				}
			}
		}
		aside := s.isAside()
		if err := errors.Join(mendedNode(s), s.Close()); err != nil && (fs != failing || onlyFailed(err) != nil) {
			return opened, err
		}
		if lost > 1 || aside {
			return opened, fmt.Errorf("%d partitions are lost: %v", lost, s.Damage())
		}
		if at == 0 {
			return opened, nil
		}
	}
	return nil, nil
}
