package backups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Newest implements replica.Backups.
func (k *Keeper) Newest(ctx context.Context, p millrace.Partition) iter.Seq2[replica.Backup, error] {
	return func(yield func(replica.Backup, error) bool) {
		b, err := k.bucket(ctx)
		if err != nil {
			yield(replica.Backup{}, err)
			return
		}
		damaged := func(d *backup.Damage) { k.cfg.Log.Error("a backup is damaged", "partition", p, "err", d) }
		for m, err := range b.Manifests(ctx, p, time.Time{}, damaged) {
			if err != nil {
				yield(replica.Backup{}, err)
				return
			}
			at, _ := backup.IDTime(m.ID) // the bucket has checked it
			if !yield(replica.Backup{
				Name: m.ID, Taken: at, Bytes: m.Bytes(), Node: m.Node, Origin: m.Origin,
				Applied: [2]millrace.Offset{m.Applied.Content, m.Applied.Features},
			}, nil) {
				return
			}
		}
	}
}

// Restore implements replica.Backups.
func (k *Keeper) Restore(ctx context.Context, p millrace.Partition, b replica.Backup, tell func(string)) (err error) {
	defer func() {
		if err == nil || ctx.Err() == nil { // a restore that was told to stop has not failed
			k.counters.restored(b.Bytes, err)
		}
	}()
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
	bucket = bucket.Unlimited().Counted(progress)
	schemas, err := k.schemas(ctx, bucket, m.Schemas, progress)
	if err == nil {
		err = restore(ctx, bucket, m, schemas, k.cfg.Store, k.incoming())
	}
	done()
	teller.Wait() // so that tell is not called after Restore has returned
	return err
}

// schemas returns the schemas that a manifest refers to. It keeps the last ones, because
// partitions that are restored one after the other mostly refer to the same. If it has
// them, it takes their size from what progress expects.
func (k *Keeper) schemas(ctx context.Context, b *backup.Bucket, ref backup.Ref, progress *backup.Progress) (rows map[millrace.Fingerprint][]byte, err error) {
	k.last.Lock()
	defer k.last.Unlock()
	if k.last.rows != nil && k.last.ref == ref {
		progress.Expect(-ref.Size)
		return k.last.rows, nil
	}
	if rows, err = getSchemas(ctx, b, ref); err != nil {
		return nil, err
	}
	k.last.ref, k.last.rows = ref, rows
	return rows, nil
}

// restRestores is the rest after a restore for which nobody waits, as a multiple of the
// time that the restore took. For most of that time the node waits for the bucket, but
// the work that it does itself slows its requests.
const restRestores = 3

// Rest implements replica.Backups.
func (k *Keeper) Rest(ctx context.Context, took time.Duration) {
	k.pacer.restRestore(ctx, restRestores*took)
}

// incoming returns the directory for the files of partitions that are being restored.
func (k *Keeper) incoming() incoming { return incoming(filepath.Join(k.cfg.Dir, "in")) }

// Tidy removes the files of restores that broke off. It keeps those of hosted partitions
// that still have no data or are quarantined: the next try goes on from them.
func (k *Keeper) Tidy(hosted topology.Set) error {
	return k.incoming().remove(func(p millrace.Partition, _ string) bool {
		whole := k.cfg.Store.Applied(p).Content >= 0 && k.cfg.Store.Quarantined(p) == nil
		return whole || !hosted.Has(p)
	})
}

// Forget implements replica.Backups.
func (k *Keeper) Forget(p millrace.Partition) error { return k.incoming().forget(p) }

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
	// restores is how many partitions are restored at a time: small ones share the
	// store's flushes, and some are downloaded while others are flushed.
	restores = 32
	// memoryBytes bounds the downloads that stay in memory, over all restores of the
	// process. Only files that the store merges into others may stay there (those that are
	// not Bottom); the store takes the others as they are on disk.
	memoryBytes = 64 << 20
)

var inMemory = semaphore.NewWeighted(memoryBytes)

// Restore replaces what a store has of a partition by a backup. If it fails, what was
// downloaded stays in dir, so that the next try goes on from there. The downloads are
// removed once the partition is restored, or the store refuses the backup
// ([store.ErrRefused]).
func Restore(ctx context.Context, b *backup.Bucket, m *backup.Manifest, s *store.Store, dir incoming) error {
	schemas, err := getSchemas(ctx, b, m.Schemas)
	if err != nil {
		return err
	}
	return restore(ctx, b, m, schemas, s, dir)
}

func restore(ctx context.Context, b *backup.Bucket, m *backup.Manifest, schemas map[millrace.Fingerprint][]byte, s *store.Store, dir incoming) error {
	if err := dir.keep(m); err != nil {
		return err
	}
	c := checkpoint(m, schemas)
	g, getting := errgroup.WithContext(ctx)
	g.SetLimit(downloads)
	for i, f := range m.Files {
		if getting.Err() != nil {
			break
		}
		into := &c.Files[i]
		if !f.Bottom && inMemory.TryAcquire(f.Size) {
			defer inMemory.Release(f.Size)
			g.Go(func() (err error) {
				into.Data, err = b.Get(getting, f.Ref, f.Size)
				return err
			})
			continue
		}
		into.Name = dir.name(m.Partition, f.Name)
		g.Go(func() error { return b.GetFile(getting, f.Ref, dir.path(m.Partition, f.Name)) })
	}
	if err := errors.Join(g.Wait(), ctx.Err()); err != nil {
		return err
	}
	err := s.Restore(ctx, string(dir), c)
	if err != nil && !errors.Is(err, store.ErrRefused) { // the backup is not at fault: the next try can use what was downloaded
		return err
	}
	return errors.Join(err, dir.forget(m.Partition))
}

// incoming is the directory with the files of all partitions that are being restored. They
// share one because ext4 takes several times as long to make a file in a new directory as
// beside other files.
type incoming string

// name is the name of a partition's file in the directory.
func (incoming) name(p millrace.Partition, file string) string {
	return fmt.Sprintf("%03d-%s", p, file)
}

func (d incoming) path(p millrace.Partition, file string) string {
	return filepath.Join(string(d), d.name(p, file))
}

// keep makes the directory, and removes the partition's files that are not of the backup
// m. The download of a file that is there tells by its hash whether it is whole.
func (d incoming) keep(m *backup.Manifest) error {
	if err := os.MkdirAll(string(d), 0o700); err != nil {
		return fmt.Errorf("backups: %w", err)
	}
	return d.remove(func(p millrace.Partition, file string) bool {
		file = strings.TrimSuffix(file, backup.PartSuffix)
		return p == m.Partition && !slices.ContainsFunc(m.Files, func(f backup.File) bool { return f.Name == file })
	})
}

// forget removes what the directory has of a partition.
func (d incoming) forget(n millrace.Partition) error {
	return d.remove(func(p millrace.Partition, _ string) bool { return p == n })
}

func (d incoming) remove(unwanted func(p millrace.Partition, file string) bool) error {
	there, err := os.ReadDir(string(d))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range there {
		number, file, _ := strings.Cut(e.Name(), "-")
		p, err := strconv.ParseUint(number, 10, 16)
		if err == nil && unwanted(millrace.Partition(p), file) {
			errs = append(errs, os.RemoveAll(filepath.Join(string(d), e.Name())))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("backups: %w", err)
	}
	return nil
}
