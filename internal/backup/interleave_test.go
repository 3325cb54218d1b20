package backup

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

// witness watches a bucket, and tells a manifest that counts and names a file
// that isn't there, at the operation that makes it so.
type witness struct {
	t      *testing.T
	of     *mapped
	what   string
	mu     sync.Mutex
	counts map[string]*Manifest
}

func (w *witness) after(op, name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch at := parse(name); {
	case op == "write" && at.kind == isManifest:
		var m Manifest
		e, err := w.of.get(name)
		if err = errors.Join(err, decode(name, e.data, &m)); err != nil {
			w.t.Errorf("%s: %v", w.what, err)
			return
		}
		w.counts[name] = &m
	case op == "remove" && at.kind == isManifest:
		delete(w.counts, name)
	case op == "remove" && at.kind == isFile:
	default:
		return
	}
	for by, m := range w.counts {
		for _, r := range m.Refs() {
			if _, err := w.of.get(r.name()); err != nil {
				w.t.Errorf("%s: after %s of %s: %s names %s, which is gone", w.what, op, name, by, r.name())
			}
		}
	}
}

// paced are objects on which every operation of one process takes its time: most
// a moment, some minutes, which is an hour of the grace in a few.
func paced(w *witness, rng *rand.Rand) objects.Store {
	var mu sync.Mutex
	pause := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		if rng.IntN(12) == 0 {
			return time.Duration(rng.Int64N(int64(4 * time.Minute)))
		}
		return time.Duration(rng.Int64N(int64(time.Second)))
	}
	return &hooked{Store: w.of,
		before: func(string, string) error { time.Sleep(pause()); return nil },
		after:  func(op, name string) error { w.after(op, name); return nil },
	}
}

// backsUp makes a few backups of a partition, of few different files, so that
// they name again what was unnamed for long. It dawdles between the upload and
// the manifest.
func backsUp(ctx context.Context, o objects.Store, rng *rand.Rand, p millrace.Partition) error {
	b := impatient(o)
	b.poll = 10 * time.Second
	for range 3 {
		m := &Manifest{Partition: p, Log: "log", Node: "node-1", Files: make([]File, 2)}
		for i := range m.Files {
			r, _, err := b.Put(ctx, fmt.Append(nil, "file ", rng.IntN(4)*2+i), nil)
			if err != nil {
				return err
			}
			m.Files[i] = File{Name: fmt.Sprint(i, ".sst"), Ref: r}
		}
		time.Sleep(time.Duration(rng.Int64N(int64(90 * time.Minute))))
		if err := finish(ctx, b, m); err != nil {
			return err
		}
		time.Sleep(time.Duration(rng.Int64N(int64(3 * time.Hour))))
	}
	return nil
}

// finish uploads again what expiry took, until the manifest counts.
func finish(ctx context.Context, b *Bucket, m *Manifest) error {
	for {
		err := b.WriteManifest(ctx, m)
		var missing MissingFiles
		if !errors.As(err, &missing) {
			return err
		}
		for i := range 8 {
			if _, _, err := b.Put(ctx, fmt.Append(nil, "file ", i), nil); err != nil {
				return err
			}
		}
	}
}

func expires(ctx context.Context, o objects.Store, rng *rand.Rand) error {
	b := impatient(o)
	b.poll = 10 * time.Second
	for range 6 {
		time.Sleep(time.Duration(rng.Int64N(int64(time.Hour))))
		if _, err := b.Expire(ctx, ExpireOptions{Keep: 1}); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
	}
	return nil
}

// Backups and expiries beside each other, in a thousand random orders: no
// manifest that counts ever names a file that is gone.
func TestExpiryBesideBackups(t *testing.T) {
	rounds := 1000
	if testing.Short() {
		rounds = 100
	}
	removed := 0
	for i := range rounds {
		synctest.Test(t, func(t *testing.T) {
			of := newMapped()
			claimed(t, of)
			w := &witness{t: t, of: of, what: fmt.Sprintf("round %d of seed %d", i, *seed), counts: map[string]*Manifest{}}
			rng := rand.New(rand.NewPCG(*seed, uint64(i)))
			fork := func() *rand.Rand { return rand.New(rand.NewPCG(rng.Uint64(), 0)) }
			var wg sync.WaitGroup
			run := func(do func() error) {
				wg.Go(func() {
					if err := do(); err != nil {
						t.Errorf("%s: %v", w.what, err)
					}
				})
			}
			for p := range millrace.Partition(3) {
				o, rng := paced(w, fork()), fork()
				run(func() error { return backsUp(t.Context(), o, rng, p/2) })
			}
			for range 2 {
				o, rng := paced(w, fork()), fork()
				run(func() error { return expires(t.Context(), o, rng) })
			}
			wg.Wait()
			r, err := impatient(of).Verify(t.Context(), DepthOpen, func(d *Damage) {
				if d.Kind != Extra {
					t.Errorf("%s: at the end: %v", w.what, d)
				}
			})
			if err != nil || len(r.Backups[0]) == 0 || len(r.Backups[1]) == 0 {
				t.Errorf("%s: at the end: %v, %v", w.what, r, err)
			}
			removed += 9 - len(w.counts)
		})
		if t.Failed() {
			return
		}
	}
	t.Logf("%d backups were expired", removed)
}
