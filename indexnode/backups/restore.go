package backups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/partition"
)

// Newest implements replica.Backups.
func (k *Keeper) Newest(ctx context.Context, p millrace.Partition) ([]replica.Backup, error) {
	b, err := k.bucket(ctx)
	if err != nil {
		return nil, err
	}
	all, err := b.Manifests(ctx, p, func(d *backup.Damage) {
		k.cfg.Log.Error("a backup is damaged", "partition", p, "err", d)
	})
	if err != nil {
		return nil, err
	}
	out := make([]replica.Backup, len(all))
	for i, m := range all {
		at, _ := backup.IDTime(m.ID) // the bucket has checked it
		out[i] = replica.Backup{
			Name: m.ID, Taken: at, Bytes: m.Bytes(), Node: m.Node, Origin: m.Origin,
			Applied: [2]millrace.Offset{m.Applied.Content, m.Applied.Features},
		}
	}
	return out, nil
}

// Restore implements replica.Backups.
func (k *Keeper) Restore(ctx context.Context, p millrace.Partition, b replica.Backup, tell func(string)) error {
	bucket, err := k.bucket(ctx)
	if err != nil {
		return err
	}
	m, err := bucket.Manifest(ctx, p, b.Name)
	if err != nil {
		return err
	}
	progress := backup.NewProgress(m.Bytes())
	told, done := context.WithCancel(ctx)
	var teller sync.WaitGroup
	teller.Go(func() {
		for told.Err() == nil {
			tell(progress.Now().String())
			select {
			case <-told.Done():
			case <-time.After(time.Second):
			}
		}
	})
	err = Restore(ctx, bucket.Unlimited().Counted(progress), m, k.cfg.Store, k.incoming(p))
	done()
	teller.Wait() // what is told later would be of another state
	k.counters.restored(m.Bytes(), err)
	return err
}

// incoming is where the files of a partition are while it is restored.
func (k *Keeper) incoming(p millrace.Partition) string {
	return filepath.Join(k.cfg.Dir, fmt.Sprintf("in-%03d", p))
}

// Tidy removes what restores that broke off have left, but of those hosted
// partitions that still lack something: the next try goes on there.
func (k *Keeper) Tidy(hosted cluster.Set) error {
	var errs []error
	for p := range partition.All() {
		whole := k.cfg.Store.Applied(p).Content >= 0 && k.cfg.Store.Quarantined(p) == nil
		if whole || !hosted.Has(p) {
			errs = append(errs, k.Forget(p))
		}
	}
	return errors.Join(errs...)
}

// Forget implements replica.Backups.
func (k *Keeper) Forget(p millrace.Partition) error { return os.RemoveAll(k.incoming(p)) }

// Healed implements replica.Backups.
func (k *Keeper) Healed(ctx context.Context, p millrace.Partition, was replica.Why, b replica.Backup, took time.Duration) {
	h := &backup.Healing{
		Time: millrace.TimeOf(time.Now()), Node: k.cfg.Node, Partition: p,
		Damage: was.Detail, From: b.Name, Bytes: b.Bytes, Seconds: took.Seconds(),
	}
	bucket, err := k.bucket(ctx)
	if err == nil {
		err = bucket.WriteHealing(ctx, h)
	}
	if err != nil && ctx.Err() == nil {
		k.cfg.Log.Error("damage that was healed is not recorded in the bucket", "partition", p, "damage", was.Detail, "err", err)
	}
}

const (
	// downloads is how many files of a partition are downloaded at a time.
	downloads = 4
	// restores is how many partitions are restored at a time: small ones
	// share the store's flushes, and some are read while others are flushed.
	restores = 32
)

// Restore replaces what a store has of a partition by a backup. What is
// downloaded stays in dir when that breaks off, so that the next try goes on
// there; afterwards dir is gone.
func Restore(ctx context.Context, b *backup.Bucket, m *backup.Manifest, s *store.Store, dir string) error {
	schemas, err := getSchemas(ctx, b, m.Schemas)
	if err != nil {
		return err
	}
	if err := keepFilesOf(dir, m); err != nil {
		return err
	}
	g, getting := errgroup.WithContext(ctx)
	g.SetLimit(downloads)
	for _, f := range m.Files {
		if getting.Err() != nil {
			break
		}
		g.Go(func() error { return b.GetFile(getting, f.Ref, filepath.Join(dir, f.Name)) })
	}
	if err := errors.Join(g.Wait(), ctx.Err()); err != nil {
		return err
	}
	if err := s.Restore(ctx, dir, checkpoint(m, schemas)); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	return os.RemoveAll(dir)
}

// keepFilesOf makes a directory for the files of a backup, and removes what is
// there of another.
func keepFilesOf(dir string, m *backup.Manifest) error {
	mark := filepath.Join(dir, "of")
	if was, err := os.ReadFile(mark); err != nil || string(was) != m.ID {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("backups: %w", err)
		}
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("backups: %w", err)
	}
	return os.WriteFile(mark, []byte(m.ID), 0o644)
}
