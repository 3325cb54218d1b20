package store

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/millrace/millrace"
)

// TestDamage damages the files of a store in many ways. It opens, and answers
// like the oracle at its offsets or says ErrCorrupt, and never anything else;
// partitions that are not hit go on.
func TestDamage(t *testing.T) {
	seed := rand.Uint64()
	flips, detected := 0, 0
	for i := range uint64(3) {
		mem := vfs.NewCrashableMem()
		o := newOrdeal(seed+i, mem, 300)
		if err := o.live(); err != nil {
			t.Fatal(err)
		}
		names, err := mem.List("db")
		if err != nil {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewPCG(seed, i))
		for _, name := range names {
			for _, do := range harms(name, rng) {
				fs := mem.CrashClone(vfs.CrashCloneCfg{UnsyncedDataPercent: 100, RNG: rng})
				what, err := do(fs, fs.PathJoin("db", name))
				if err != nil {
					t.Fatal(err)
				}
				found, err := o.damaged(fs)
				if err != nil {
					t.Fatalf("seed %d: %s: %s: %v", seed+i, name, what, err)
				}
				flips++
				if found {
					detected++
				}
			}
		}
	}
	t.Logf("%d damages, %d detected", flips, detected)
	if detected < flips/4 {
		t.Errorf("only %d of %d damages were detected: are they hitting anything?", detected, flips)
	}
}

type harm func(fs *vfs.MemFS, path string) (what string, err error)

func harms(name string, rng *rand.Rand) []harm {
	switch {
	case strings.HasSuffix(name, ".sst"):
		return []harm{flip(rng), flip(rng), flip(rng), truncate(rng), remove}
	case strings.HasPrefix(name, "MANIFEST"):
		return []harm{flip(rng), flip(rng), truncate(rng), truncate(rng), truncate(rng), truncate(rng), remove}
	case strings.HasSuffix(name, ".log"):
		return []harm{remove, truncate(rng)}
	case strings.HasPrefix(name, "OPTIONS"):
		return []harm{flip(rng), truncate(rng), remove}
	case strings.HasPrefix(name, "marker"):
		return []harm{remove}
	}
	return nil
}

func remove(fs *vfs.MemFS, path string) (string, error) { return "removed", fs.Remove(path) }

func flip(rng *rand.Rand) harm {
	return rewriteFile(func(b []byte) ([]byte, string) {
		i := rng.IntN(len(b))
		b[i] ^= 1 << rng.IntN(8)
		return b, fmt.Sprintf("bit flipped at %d of %d", i, len(b))
	})
}

func truncate(rng *rand.Rand) harm {
	return rewriteFile(func(b []byte) ([]byte, string) {
		n := rng.IntN(len(b))
		return b[:n], fmt.Sprintf("cut to %d of %d", n, len(b))
	})
}

func rewriteFile(change func([]byte) ([]byte, string)) harm {
	return func(fs *vfs.MemFS, path string) (string, error) {
		f, err := fs.Open(path)
		if err != nil {
			return "", err
		}
		b, err := io.ReadAll(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return "", err
		}
		if len(b) == 0 {
			return "empty", nil
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

// damaged opens what there is. It reports whether the damage was found, and as
// an error an answer that is neither right nor ErrCorrupt.
func (o *ordeal) damaged(fs vfs.FS) (found bool, err error) {
	opts := o.opts
	opts.FS = fs
	opts.fatal = func(msg string) { panic(msg) }
	s, err := Open("db", opts)
	if err != nil {
		return true, err
	}
	defer s.Close()
	found = len(s.Damage()) > 0
	for _, p := range ordealPartitions {
		// A store cut back to nothing has lost its log of record's position,
		// not its senses: the log fills it again.
		err := o.compare(s, p, 0)
		switch {
		case errors.Is(err, ErrCorrupt):
			found = true
			if err := s.stays(p); err != nil {
				return true, err
			}
		case err != nil:
			return found, fmt.Errorf("partition %d at %v: %w", p, s.Applied(p), err)
		}
	}
	return found, nil
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
