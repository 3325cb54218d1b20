package backups

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"

	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
)

// smallMount returns a directory on a disk of its own.
func smallMount(t *testing.T, bytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		if os.Geteuid() != 0 && os.Getenv("CI") == "" {
			t.Skip("mounting a small disk needs root")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil { // a store that ended keeps its files open
			t.Error(err)
		}
	})
	return dir
}

// A drill, a verification, a comparison and a restore that run out of space say
// so, wherever they are then, leave nothing in the scratch directory, and end no
// process.
func TestAFullScratchDiskIsTold(t *testing.T) {
	_, _, bucket, set := backedUp(t, nil)
	p := slices.Collect(set.All())[0]
	ids, err := bucket.IDs(t.Context(), p)
	must(t, err)
	m, err := bucket.Manifest(t.Context(), p, ids[0])
	must(t, err)
	log := slog.New(slog.DiscardHandler)
	small := store.Options{MinFreeBytes: -1}
	run := map[string]func(dir string) error{
		"drill": func(dir string) error {
			d, err := Drill(t.Context(), DrillConfig{Bucket: bucket, Partitions: one(p), Node: "c", Scratch: dir, Log: log})
			if err == nil && d.Fault != "" {
				t.Errorf("the backup is blamed: %s", d.Fault)
			}
			return err
		},
		"verify": func(dir string) error {
			_, err := Verify(t.Context(), VerifyConfig{Bucket: bucket, Partitions: one(p), Scratch: dir, Log: log,
				Report: func(d *backup.Damage) { t.Errorf("the backup is blamed: %v", d) }})
			return err
		},
		"diff": func(dir string) error {
			_, err := DiffRows(t.Context(), RestoreConfig{Bucket: bucket, Data: dir, Store: small, Log: log}, m, m)
			return err
		},
		"restore": func(dir string) error {
			_, err := RestoreData(t.Context(), RestoreConfig{Bucket: bucket, Partitions: one(p), Data: filepath.Join(dir, "data"), Store: small, Log: log})
			return err
		},
	}
	for what, do := range run {
		t.Run(what, func(t *testing.T) {
			full := 0
			for bytes := 16 << 10; bytes <= 160<<10; bytes += 8 << 10 {
				dir := smallMount(t, bytes)
				err := do(dir)
				switch {
				case err == nil:
				case errors.Is(err, syscall.ENOSPC), errors.Is(err, store.ErrDiskFull):
					full++
				default:
					t.Errorf("%d bytes: %v", bytes, err)
				}
				if left, err := filepath.Glob(filepath.Join(dir, "millrace-scratch-*")); err != nil || len(left) > 0 {
					t.Errorf("%d bytes: %v are left, %v", bytes, left, err)
				}
			}
			if full == 0 {
				t.Error("no disk was full: the test shows nothing")
			}
		})
	}
}
