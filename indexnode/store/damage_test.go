package store

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/race"
)

// TestDamage damages the files of a store in many ways: bits are flipped at random
// places of every kind of file, before the store is opened or while it is open, and
// files are cut and removed. It answers like the oracle, at the offsets that were on
// disk, or says ErrCorrupt, and never anything else; partitions that are not hit go on.
// Only what hits the manifest or its marker may take a partition back, to a state that it once had.
//
// MILLRACE_SEED repeats one run, MILLRACE_METAMORPHIC says how long instead.
func TestDamage(t *testing.T) {
	if race.Enabled {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seed, lives, length := rand.Uint64(), 2, time.Duration(0)
	if testing.Short() {
		lives = 1
	}
	if v := os.Getenv("MILLRACE_METAMORPHIC"); v != "" {
		var err error
		if length, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	if v := os.Getenv("MILLRACE_SEED"); v != "" {
		var err error
		if seed, err = strconv.ParseUint(v, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("MILLRACE_SEED=%d", seed)
	of := map[string]*harmed{}
	start := time.Now()
	for i := 0; i < lives || time.Since(start) < length; i++ {
		damageLife(t, seed+uint64(i), of)
	}
	for _, kind := range []string{"sst", "MANIFEST", "OPTIONS", "log", "marker"} {
		h := of[kind]
		if h == nil {
			t.Fatalf("no %s was damaged", kind)
		}
		t.Logf("%s: %d flips, %d of them noticed; %d other harms, %d noticed", kind, h.flips, h.noticed, h.others, h.othersNoticed)
	}
	// Some bytes of a table are of no row that is still asked for, and an open store
	// has no use for some of what it began with: of forty runs the fewest that were noticed
	// are three in five.
	if h := of["sst"]; h.flips < 50 || h.noticed < h.flips*2/5 {
		t.Errorf("only %d of %d flips in tables were noticed", h.noticed, h.flips)
	}
	if h := of["MANIFEST"]; h.noticed+h.othersNoticed == 0 { // most are of manifests that no longer count
		t.Errorf("%d flips and %d other harms of manifests, and none was noticed", h.flips, h.others)
	}
}

// harmed counts what was done to files of a kind.
type harmed struct{ flips, noticed, others, othersNoticed int }

// damageLife damages each file of a store, each time on a copy of its own.
func damageLife(t *testing.T, seed uint64, of map[string]*harmed) {
	t.Helper()
	mem := vfs.NewCrashableMem()
	o := newOrdeal(seed, mem, 300)
	if err := o.live(); err != nil {
		t.Fatal(err)
	}
	names, err := mem.List("db")
	if err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(seed, 4))
	for _, name := range names {
		kind := kindOf(name)
		for _, b := range blows(kind, rng) {
			fs := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
			found, err := o.damaged(fs, name, b, rng.IntN(2) == 0)
			if err != nil {
				t.Fatalf("seed %d: %s: %v", seed, name, err)
			}
			if of[kind] == nil {
				of[kind] = &harmed{}
			}
			n, noticed := &of[kind].others, &of[kind].othersNoticed
			if b.flips {
				n, noticed = &of[kind].flips, &of[kind].noticed
			}
			*n++
			if found {
				*noticed++
			}
		}
	}
}

// kindOf is the kind of a file of Pebble's.
func kindOf(name string) string {
	for _, kind := range []string{"MANIFEST", "OPTIONS", "marker"} {
		if strings.HasPrefix(name, kind) {
			return kind
		}
	}
	return strings.TrimPrefix(filepath.Ext(name), ".")
}

// harm is something that is done to a file.
type harm func(fs *vfs.MemFS, path string) (what string, err error)

// blow is a harm, which may be a flip of a bit in place.
type blow struct {
	do    harm
	flips bool
}

func blows(kind string, rng *rand.Rand) []blow {
	cut, gone := blow{do: truncate(rng)}, blow{do: remove}
	flips := slices.Repeat([]blow{{flip(rng), true}}, 12)
	switch kind {
	case "sst":
		return append(flips, cut, gone)
	case "MANIFEST":
		return append(flips, cut, cut, cut, cut, gone)
	case "log":
		return []blow{{do: litter(rng)}, {do: litter(rng)}, cut, gone}
	case "OPTIONS":
		return append(flips, cut, gone)
	case "marker":
		return []blow{{do: litter(rng)}, gone}
	}
	return nil
}

func remove(fs *vfs.MemFS, path string) (string, error) { return "removed", fs.Remove(path) }

// flip flips one bit in place: who has the file open meets it, too.
func flip(rng *rand.Rand) harm {
	return func(fs *vfs.MemFS, path string) (string, error) {
		b, err := contentOf(fs, path)
		if err != nil {
			return "", err
		}
		f, err := fs.OpenReadWrite(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return "", err
		}
		i := rng.IntN(len(b))
		_, err = f.WriteAt([]byte{b[i] ^ 1<<rng.IntN(8)}, int64(i))
		return fmt.Sprintf("bit flipped at %d of %d", i, len(b)), errors.Join(err, f.Sync(), f.Close())
	}
}

// litter puts bytes behind what is in a file, which may be nothing.
func litter(rng *rand.Rand) harm {
	return rewriteFile(func(b []byte) ([]byte, string) {
		n := 1 + rng.IntN(100)
		for range n {
			b = append(b, byte(rng.Uint32()))
		}
		return b, fmt.Sprintf("%d bytes behind its end", n)
	})
}

func truncate(rng *rand.Rand) harm {
	return rewriteFile(func(b []byte) ([]byte, string) {
		n := rng.IntN(len(b) + 1)
		return b[:n], fmt.Sprintf("cut to %d of %d", n, len(b))
	})
}

func contentOf(fs *vfs.MemFS, path string) ([]byte, error) {
	f, err := fs.Open(path)
	if err != nil {
		return nil, err
	}
	b, err := io.ReadAll(f)
	return b, errors.Join(err, f.Close())
}

func rewriteFile(change func([]byte) ([]byte, string)) harm {
	return func(fs *vfs.MemFS, path string) (string, error) {
		b, err := contentOf(fs, path)
		if err != nil {
			return "", err
		}
		b, what := change(b)
		w, err := fs.Create(path, vfs.WriteCategoryUnspecified)
		if err != nil {
			return what, err
		}
		_, err = w.Write(b)
		return what, errors.Join(err, w.Sync(), w.Close())
	}
}

// damaged harms a file and asks the store for everything, and once more after a
// restart. A bit may also flip under an open store. It reports whether the damage was
// found, and as an error an answer that is neither right nor ErrCorrupt.
func (o *ordeal) damaged(fs *vfs.MemFS, name string, b blow, whileOpen bool) (found bool, err error) {
	opts := o.opts
	opts.FS = fs
	opts.fatal = func(msg string) { panic(msg) }
	path, what := fs.PathJoin("db", name), ""
	whileOpen = whileOpen && b.flips
	if !whileOpen {
		if what, err = b.do(fs, path); err != nil {
			return false, fmt.Errorf("%s: %w", what, err)
		}
	}
	bad, back := map[millrace.Partition]bool{}, kindOf(name) == "MANIFEST" || kindOf(name) == "marker"
	for again := range 2 {
		s, err := Open("db", opts)
		if err != nil {
			return true, fmt.Errorf("%s: %w", what, err)
		}
		if whileOpen && again == 0 {
			if _, err := fs.Stat(path); err == nil { // else it was done with
				if what, err = b.do(fs, path); err != nil {
					return false, errors.Join(err, s.Close())
				}
				what += " while the store was open"
			}
		}
		err = o.answersOrTells(s, bad, back, again == 1)
		found = found || len(s.Damage()) > 0 || len(bad) > 0 || o.wentBack(s)
		if err := errors.Join(err, s.Close()); err != nil {
			return found, fmt.Errorf("%s; opened %d times: %w", what, again+1, err)
		}
	}
	return found, nil
}

// wentBack reports whether a partition is not where it was on disk.
func (o *ordeal) wentBack(s *Store) bool {
	return slices.ContainsFunc(ordealPartitions, func(p millrace.Partition) bool {
		return int(s.Applied(p).Content) < (*o.floor.Load())[p]
	})
}

// answersOrTells compares every partition with the oracle, but for those that say
// that they are corrupt, which it adds to bad. Those that are bad already must say so
// still. What was on disk may be missing only where the manifest was hit, or the marker
// that names it (back).
func (o *ordeal) answersOrTells(s *Store, bad map[millrace.Partition]bool, back, last bool) error {
	for _, p := range ordealPartitions {
		floor := (*o.floor.Load())[p]
		if back {
			// A store cut back to nothing has lost its log of record's position,
			// not its senses: the log fills it again.
			floor = 0
		}
		if bad[p] && s.Quarantined(p) == nil {
			return fmt.Errorf("partition %d: its quarantine is forgotten", p)
		}
		err := s.Quarantined(p) // which is at no offset
		if err == nil {
			err = o.compare(s, p, floor)
		}
		switch {
		case errors.Is(err, ErrCorrupt):
			bad[p] = true
			if !last {
				continue
			}
			if err := s.stays(p); err != nil {
				return err
			}
		case err != nil:
			return fmt.Errorf("partition %d at %v, damage %v: %w", p, s.Applied(p), s.Damage(), err)
		}
	}
	return nil
}

// stays verifies that a quarantined partition refuses everything, and that it
// can be dropped and filled again.
func (s *Store) stays(p millrace.Partition) error {
	name := millrace.Timeline{Entity: "e0", Type: "post"}
	_, readErr := s.Read(nil, p, name, 0, millrace.MaxTime)
	_, newestErr := readNewest(s, p, name, 1)
	_, featuresErr := s.Features(p, name.Entity)
	var b Batch
	b.Put(p, name, millrace.Record{ID: "new", Time: 1})
	_, applyErr := s.Apply(&b, nil)
	for _, err := range []error{readErr, newestErr, featuresErr, applyErr, s.Quarantined(p)} {
		if !errors.Is(err, ErrCorrupt) {
			return fmt.Errorf("quarantined partition %d answers: %v", p, err)
		}
	}
	if err := s.DropPartition(p); err != nil {
		return fmt.Errorf("drop: %w", err)
	}
	if _, err := s.Apply(&b, nil); err != nil {
		return fmt.Errorf("apply after drop: %w", err)
	}
	got, err := s.Read(nil, p, name, 0, millrace.MaxTime)
	if err != nil || len(got) != 1 || got[0].ID != "new" {
		return fmt.Errorf("read after drop: %v, %v", got, err)
	}
	return nil
}
