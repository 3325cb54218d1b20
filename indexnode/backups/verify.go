package backups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Unrestorable is the damage that only a restore finds: all hashes are right, and yet a
// store refuses the bytes.
const Unrestorable backup.DamageKind = "restore"

// VerifyConfig says what is verified. Bucket, Partitions and Report are
// required.
type VerifyConfig struct {
	Bucket     *backup.Bucket
	Partitions topology.Set
	Scratch    string               // a directory; empty: the system's for temporary files
	Report     func(*backup.Damage) // is told of all damage, by one goroutine at a time
	Progress   *backup.Progress     // may be nil
	Log        *slog.Logger
}

// Verify finds what [backup.Bucket.Verify] finds at its greatest depth. Then it restores
// the newest good backup of each partition (the one before it if that is refused) and
// each part of each cut. It does so by the same steps as [RestoreData], into temporary
// stores, a few partitions at a time. It reports each damaged object once. It returns
// what can be restored: the backups that it restored, and the cuts without a bad part
// among those that it tried. It does not know about other partitions and older backups.
func Verify(ctx context.Context, cfg VerifyConfig) (_ *backup.Restorable, err error) {
	b := cfg.Bucket.Counted(cfg.Progress)
	v := verifier{cfg: cfg, told: map[string]bool{}, restored: map[millrace.Partition][]string{}}
	if v.good, err = b.Verify(ctx, backup.DepthOpen, v.report); err != nil {
		return nil, err
	}
	names, err := b.Cuts(ctx)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		cut, err := b.Cut(ctx, name)
		var damage *backup.Damage
		if errors.As(err, &damage) || errors.Is(err, fs.ErrNotExist) {
			continue // the damage was reported, or the cut was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		v.cuts = append(v.cuts, cut)
	}
	todo := make(chan *backup.Manifest)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		defer close(todo)
		return v.send(ctx, todo)
	})
	for range downloads {
		g.Go(func() error { return v.work(ctx, todo) })
	}
	err = g.Wait()
	v.good.Backups = v.restored
	return v.good, err
}

// verifier is one run of Verify.
type verifier struct {
	cfg  VerifyConfig
	cuts []*backup.Cut
	mu   sync.Mutex         // guards:
	good *backup.Restorable // backups and cuts that are not known to be bad
	told map[string]bool    // objects whose damage was reported

	restored map[millrace.Partition][]string // the ids of the backups that were restored; guarded by mu, too
}

// report tells of an object's damage once. The caller holds mu, or no other goroutine runs.
func (v *verifier) report(d *backup.Damage) {
	if !v.told[d.Object] {
		v.told[d.Object] = true
		v.cfg.Report(d)
	}
}

// send reads the newest good backup of each partition, so that the progress knows how much
// there is to do, and then sends them all to todo.
func (v *verifier) send(ctx context.Context, todo chan<- *backup.Manifest) error {
	var all []*backup.Manifest
	for p := range v.cfg.Partitions.All() {
		m, err := v.next(ctx, p)
		if err != nil {
			return err
		}
		if m != nil {
			v.cfg.Progress.Expect(v.guess(m))
			all = append(all, m)
		}
	}
	for _, m := range all {
		select {
		case todo <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// guess estimates how many bytes there are to restore for the parts of cuts of a
// partition, as if each were as large as its newest backup.
func (v *verifier) guess(m *backup.Manifest) int64 { return int64(len(v.cuts)) * m.Bytes() }

// next reads the newest backup of a partition that is not known to be bad, or
// returns nil.
func (v *verifier) next(ctx context.Context, p millrace.Partition) (*backup.Manifest, error) {
	for {
		v.mu.Lock()
		ids := v.good.Backups[p]
		v.mu.Unlock()
		if len(ids) == 0 {
			return nil, nil
		}
		m, err := v.cfg.Bucket.Manifest(ctx, p, ids[0])
		if err == nil {
			v.cfg.Progress.Expect(m.Bytes())
			return m, nil
		}
		if err := v.judge(ctx, err, p, ids[0], ""); err != nil {
			return nil, err
		}
	}
}

// work restores one partition after the other into one store, which never has more than
// one of them on disk.
func (v *verifier) work(ctx context.Context, todo <-chan *backup.Manifest) error {
	first, ok := <-todo
	if !ok {
		return nil
	}
	cfg := RestoreConfig{
		Bucket: v.cfg.Bucket, Data: v.cfg.Scratch, Progress: v.cfg.Progress, Log: v.cfg.Log,
		Store: store.Options{MinFreeBytes: -1, CacheBytes: 8 << 20, MaxDirtyBytes: 16 << 20, Retention: RetentionOf(first)},
	}
	return withScratch(cfg, func(r *restorer) error {
		for m := first; m != nil; m = <-todo {
			if err := v.partition(ctx, r, m); err != nil {
				return err
			}
		}
		return nil
	})
}

// partition restores the newest backup of a partition that can be restored, and then its
// part of each cut. m is the first that it tries.
func (v *verifier) partition(ctx context.Context, r *restorer, m *backup.Manifest) error {
	p := m.Partition
	defer v.cfg.Progress.Expect(-v.guess(m))
	for m != nil {
		err := r.restorePartition(ctx, &way{from: m, to: m.Applied})
		if err == nil {
			err = same(r.store, m)
		}
		if err == nil {
			v.mu.Lock()
			v.restored[p] = []string{m.ID}
			v.mu.Unlock()
			break
		}
		if err := v.judge(ctx, err, p, m.ID, ""); err != nil {
			return err
		}
		if m, err = v.next(ctx, p); err != nil {
			return err
		}
	}
	for _, cut := range v.cuts {
		if err := r.store.DropPartition(p); err != nil { // the part must do without what is there
			return err
		}
		part, base, err := v.cfg.Bucket.CutPart(ctx, cut, p)
		if err == nil {
			v.cfg.Progress.Expect(base.Bytes() + part.Tail.Size)
			err = r.restorePartition(ctx, &way{from: base, tail: part.Tail, to: part.To})
		}
		if err := v.judge(ctx, err, p, "", cut.Name); err != nil {
			return err
		}
	}
	return r.store.DropPartition(p)
}

// judge reports an error as damage if it is about what the bucket holds: a backup id, or
// the partition's part of cut. It returns any other error, such as one of this machine or
// of the way to the bucket. It returns nil for nil.
func (v *verifier) judge(ctx context.Context, err error, p millrace.Partition, id, cut string) error {
	if err == nil {
		return nil
	}
	var damage *backup.Damage
	if !errors.As(err, &damage) {
		if ctx.Err() != nil || !refused(err) {
			return fmt.Errorf("partition %d: %w", p, err)
		}
		damage = &backup.Damage{Object: backup.ObjectOf(p, id, cut), Kind: Unrestorable, Detail: err.Error()}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.report(damage)
	if cut != "" {
		v.good.Cuts = slices.DeleteFunc(v.good.Cuts, func(name string) bool { return name == cut })
		return nil
	}
	v.good.Backups[p] = slices.DeleteFunc(v.good.Backups[p], func(one string) bool { return one == id })
	return nil
}

// damaged reports whether an error says that a backup is damaged, and not that it could
// not be read now.
func damaged(err error) bool {
	var damage *backup.Damage
	return errors.As(err, &damage) || refused(err)
}

// refused reports whether an error says that bytes are wrong: a store, a tail or a decoder
// refuses them. Errors of reading them are not such.
func refused(err error) bool {
	var held *replica.Held
	if errors.As(err, &held) {
		return held.Reason == replica.SchemaUnknown
	}
	for _, e := range []error{store.ErrRefused, errTail, errBeside} {
		if errors.Is(err, e) {
			return true
		}
	}
	var syntax *json.SyntaxError
	var kind *json.UnmarshalTypeError
	var number *strconv.NumError
	return errors.As(err, &syntax) || errors.As(err, &kind) || errors.As(err, &number)
}

// RetentionOf returns the retention of the node that made a backup, as a store
// takes it.
func RetentionOf(m *backup.Manifest) map[millrace.ContentType]store.Retention {
	all := make(map[millrace.ContentType]store.Retention, len(m.Retention))
	for t, r := range m.Retention {
		all[t] = store.Retention{MaxAge: r.MaxAge, MaxCount: r.MaxCount}
	}
	return all
}

// withScratch calls use with a restorer into a temporary store below cfg.Data. If that is
// empty, the store is in the system's directory of temporary files.
func withScratch(cfg RestoreConfig, use func(*restorer) error) (err error) {
	if cfg.Data != "" {
		if err := os.MkdirAll(cfg.Data, 0o700); err != nil {
			return fmt.Errorf("backups: %w", err)
		}
	}
	dir, err := os.MkdirTemp(cfg.Data, "millrace-scratch-")
	if err != nil {
		return fmt.Errorf("backups: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cfg.Store.FlushEvery, cfg.Store.Offline, cfg.Store.Log = -1, true, cfg.Log
	s, err := store.Open(filepath.Join(dir, "store"), cfg.Store)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	return use(&restorer{cfg: cfg, store: s, dir: filepath.Join(dir, "backup")})
}

// same returns an error if a store has other offsets or another digest of a partition
// than a backup of it.
func same(s *store.Store, m *backup.Manifest) error {
	at, sum := s.Applied(m.Partition), s.Digest(m.Partition)
	if at != store.Offsets(m.Applied) || sum != store.Digest(m.Digest) {
		return fmt.Errorf("%w: restored, it is at %+v with the digest %x, and the backup says %+v and %x", store.ErrRefused, at, sum, m.Applied, m.Digest)
	}
	return nil
}
