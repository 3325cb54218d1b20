package backup

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/backup/objects"
)

// Whatever a bucket refuses of an act, operation by operation, is an error of the act, and not
// damage, but for those that remove what an expiry removes, too. Of an act with many, some are
// drawn.
func TestWhatABucketRefusesIsAnError(t *testing.T) {
	base := full(t, ours, true)
	rng := rand.New(rand.NewPCG(*seed, 0))
	quiet := func(*Damage) {}
	var made *Manifest
	ready := impatient(base)
	if _, err := back(t.Context(), ready, 3, []byte("made")); err != nil {
		t.Fatal(err)
	}
	for m, err := range ready.Manifests(t.Context(), 3, time.Time{}, quiet) {
		if err != nil {
			t.Fatal(err)
		}
		made = m
		break
	}
	nightly, err := ready.Cut(t.Context(), "nightly")
	if err != nil {
		t.Fatal(err)
	}
	for _, write := range []error{
		ready.WriteDrill(t.Context(), &Drill{Node: "n", Time: made.Time}), ready.WriteHealing(t.Context(), &Healing{Node: "n", Time: made.Time}), ready.WriteAct(t.Context(), audit.Entry{Who: "ann", Act: "x"}),
	} {
		if write != nil {
			t.Fatal(write)
		}
	}
	for name, act := range map[string]func(ctx context.Context, b *Bucket) error{
		"back up": func(ctx context.Context, b *Bucket) error { _, err := back(ctx, b, 5, []byte("new")); return err },
		"put a file": func(ctx context.Context, b *Bucket) error {
			_, _, err := b.PutFile(ctx, writeFile(t, []byte("another")), nil, nil)
			return err
		},
		"get a file": func(ctx context.Context, b *Bucket) error {
			return b.GetFile(ctx, made.Files[0].Ref, filepath.Join(t.TempDir(), "x"))
		},
		"get":      func(ctx context.Context, b *Bucket) error { _, err := b.Get(ctx, made.Files[0].Ref, 1<<20); return err },
		"ids":      func(ctx context.Context, b *Bucket) error { _, err := b.IDs(ctx, 3); return err },
		"all ids":  func(ctx context.Context, b *Bucket) error { _, err := b.AllIDs(ctx); return err },
		"manifest": func(ctx context.Context, b *Bucket) error { _, err := b.Manifest(ctx, 3, made.ID); return err },
		"manifests": func(ctx context.Context, b *Bucket) error {
			for _, err := range b.Manifests(ctx, 3, time.Time{}, quiet) {
				if err != nil {
					return err
				}
			}
			return nil
		},
		"newest": func(ctx context.Context, b *Bucket) error { _, err := b.Newest(ctx, quiet); return err },
		"usage":  func(ctx context.Context, b *Bucket) error { _, err := b.Usage(ctx); return err },
		"look":   func(ctx context.Context, b *Bucket) error { return b.Look(ctx, made) },
		"cuts":   func(ctx context.Context, b *Bucket) error { _, err := b.Cuts(ctx); return err },
		"a cut":  func(ctx context.Context, b *Bucket) error { _, err := b.Cut(ctx, "nightly"); return err },
		"a part": func(ctx context.Context, b *Bucket) error { _, _, err := b.CutPart(ctx, nightly, 3); return err },
		"write a part": func(ctx context.Context, b *Bucket) error {
			return b.WriteCutParts(ctx, "other", []*CutPart{{Partition: 3, Backup: made.ID, To: Offsets{11, 20}, Tail: made.Files[0].Ref}})
		},
		"make a cut anew": func(ctx context.Context, b *Bucket) error {
			if err := b.RemoveCut(ctx, "nightly"); err != nil {
				return err
			}
			again := *nightly
			return b.WriteCut(ctx, &again)
		},

		"remove a cut": func(ctx context.Context, b *Bucket) error { return b.RemoveCut(ctx, "nightly") },
		"of one cut":   func(ctx context.Context, b *Bucket) error { _, err := b.OnlyOf(ctx, "nightly"); return err },
		"verify files": func(ctx context.Context, b *Bucket) error { _, err := b.Verify(ctx, DepthFiles, quiet); return err },
		"verify":       func(ctx context.Context, b *Bucket) error { _, err := b.Verify(ctx, DepthOpen, quiet); return err },
		"expire": func(ctx context.Context, b *Bucket) error {
			_, err := b.Expire(ctx, ExpireOptions{Keep: 1})
			return err
		},
		"tell": func(ctx context.Context, b *Bucket) error {
			_, err := b.Expire(ctx, ExpireOptions{Keep: 1, Dry: true})
			return err
		},
		"write a drill": func(ctx context.Context, b *Bucket) error {
			return b.WriteDrill(ctx, &Drill{Node: "n", Time: made.Time})
		},
		"drills": func(ctx context.Context, b *Bucket) error { _, err := b.Drills(ctx, 9); return err },
		"write a healing": func(ctx context.Context, b *Bucket) error {
			return b.WriteHealing(ctx, &Healing{Node: "n", Time: made.Time})
		},
		"healings":     func(ctx context.Context, b *Bucket) error { _, err := b.Healings(ctx, 9); return err },
		"write an act": func(ctx context.Context, b *Bucket) error { return b.WriteAct(ctx, audit.Entry{Who: "ann", Act: "x"}) },
		"acts":         func(ctx context.Context, b *Bucket) error { _, err := b.Acts(ctx, 9); return err },
		"identity":     func(ctx context.Context, b *Bucket) error { _, err := b.Identity(ctx); return err },
		"claim":        func(ctx context.Context, b *Bucket) error { return b.Claim(ctx, ours) },
		"adopt": func(ctx context.Context, b *Bucket) error {
			return b.Adopt(ctx, Identity{Name: "test", ID: "22222222"})
		},
	} {
		try := func(at int64) (n int64, refused string, err error) {
			var i atomic.Int64
			var what atomic.Pointer[string]
			o := &hooked{Store: base.clone(), before: func(op, name string) error {
				if i.Add(1) == at {
					says := op + " " + name
					what.Store(&says)
					return errKilled
				}
				return nil
			}}
			err = act(t.Context(), impatient(o))
			if says := what.Load(); says != nil {
				refused = *says
			}
			return i.Load(), refused, err
		}
		n, _, err := try(0)
		if err != nil || n == 0 {
			t.Errorf("%s: %v, after %d operations", name, err, n)
			continue
		}
		var passed []string
		tries := min(n, 14)
		if n > 100 {
			tries = 3
		}
		for i := range tries {
			at := i + 1
			if n > tries { // the first and the last ones, and some others
				at = [...]int64{i + 1, n - i, 1 + rng.Int64N(n)}[i%3]
			}
			_, refused, err := try(at)
			switch {
			case strings.HasPrefix(refused, "remove "+holdsPrefix), strings.HasPrefix(refused, "remove "+condemnedPrefix): // an expiry removes it
			case err == nil && refused != "":
				passed = append(passed, refused)
			case err != nil && !errors.Is(err, errKilled):
				t.Errorf("%s: %s is refused: %v", name, refused, err)
			}
		}
		if len(passed) > 0 {
			t.Errorf("seed %d: %s: of %d operations these may be refused: %q", *seed, name, n, passed)
		}
	}
}

// A read of a backup's manifest that breaks off is tried again, a number of times, unless it
// could not succeed.
func TestReadsThatBreakOff(t *testing.T) {
	for _, c := range []struct {
		breaks, reads int
		by            error
	}{{1, 2, io.ErrUnexpectedEOF}, {objects.Tries, objects.Tries + 1, io.ErrUnexpectedEOF}, {objects.Tries + 1, objects.Tries + 1, io.ErrUnexpectedEOF}, {1, 1, errKilled}} {
		o, reads := newMapped(), 0
		m, err := back(t.Context(), claimed(t, o), 1, []byte("good"))
		if err != nil {
			t.Fatal(err)
		}
		b := impatient(&hooked{Store: o, bytes: func(name string, r io.Reader) io.Reader {
			if name != manifestName(1, m.ID) {
				return r
			}
			if reads++; reads > c.breaks {
				return r
			}
			return io.MultiReader(io.LimitReader(r, 10), iotest.ErrReader(c.by))
		}})
		got, err := b.Manifest(t.Context(), 1, m.ID)
		if (err == nil) != (c.reads > c.breaks) || err == nil && got.ID != m.ID || err != nil && (!errors.Is(err, c.by) || !strings.Contains(err.Error(), "backup: read "+manifestName(1, m.ID))) || reads != c.reads {
			t.Errorf("%d broken by %v: %v after %d reads, want %d", c.breaks, c.by, err, reads, c.reads)
		}
	}
}
