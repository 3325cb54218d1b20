package backups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
)

// Whichever read of its store fails, what restores says so, or has all the same what it should
// have; and no backup is blamed.
func TestAnyReadThatFailsIsTold(t *testing.T) {
	b, k, bucket, set := backedUp(t, nil)
	p := slices.Collect(set.All())[0]
	first, _ := newest(t, k, p)
	b.post(200)
	must(t, k.Backup(t.Context()))
	then, _ := newest(t, k, p)
	old, err := bucket.Manifest(t.Context(), p, first.Name)
	must(t, err)
	now, err := bucket.Manifest(t.Context(), p, then.Name)
	must(t, err)
	for name, call := range map[string]func(RestoreConfig) (string, error){
		"changes": func(cfg RestoreConfig) (string, error) {
			all, err := DiffRows(t.Context(), cfg, old, now)
			var text string
			for kind, c := range all {
				text += fmt.Sprintf("%s %+v", kind, *c)
			}
			return text, err
		},
		"a verification": func(cfg RestoreConfig) (text string, err error) {
			v := &verifier{
				cfg:  VerifyConfig{Bucket: bucket, Report: func(d *backup.Damage) { t.Errorf("the backup is blamed: %v", d) }},
				told: map[string]bool{}, restored: map[millrace.Partition][]string{}, good: &backup.Restorable{Backups: map[millrace.Partition][]string{}},
			}
			err = withScratch(cfg, func(r *restorer) error {
				err := v.partition(t.Context(), r, now)
				text = fmt.Sprint(v.restored, r.store.Applied(p))
				return err
			})
			return text, err
		},
	} {
		var ops, fails atomic.Int64
		cfg := RestoreConfig{Bucket: bucket, Partitions: one(p), Data: filepath.Join(b.dir, "scratch"), Log: slog.New(slog.DiscardHandler)}
		cfg.Store = store.Options{MinFreeBytes: -1, FlushEvery: -1, CacheBytes: 1, FS: errorfs.Wrap(vfs.Default, errorfs.InjectorFunc(func(op errorfs.Op) error {
			// After a write that fails a store ends its process.
			if reads := op.Kind == errorfs.OpFileReadAt || op.Kind == errorfs.OpFileRead || op.Kind == errorfs.OpOpen || op.Kind == errorfs.OpGetDiskUsage || op.Kind == errorfs.OpLink; reads && ops.Add(1) == fails.Load() {
				return errFull
			}
			return nil
		}))}
		want, err := call(cfg)
		must(t, err)
		n := ops.Load()
		failed := 0
		for i := int64(1); i <= n; i++ {
			ops.Store(0)
			fails.Store(i)
			got, err := call(cfg)
			if err != nil {
				failed++
			}
			if err == nil && got != want || err != nil && damaged(err) || errors.Is(err, context.Canceled) {
				t.Errorf("%s, when operation %d fails: %s, %v", name, i, got, err)
			}
		}
		if failed < 10 {
			t.Errorf("%s: %d of %d failures are told: the test shows little", name, failed, n)
		}
	}
}
