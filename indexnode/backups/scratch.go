package backups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
)

// withScratch calls use with a restorer into a store of its own, below
// cfg.Data, that is gone afterwards. An empty cfg.Data is the system's
// directory of temporary files.
func withScratch(cfg RestoreConfig, use func(*restorer) error) (err error) {
	if cfg.Data != "" {
		if err := os.MkdirAll(cfg.Data, 0o755); err != nil {
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

// same compares what a store has of a partition with a backup of it.
func same(s *store.Store, m *backup.Manifest) error {
	at, sum := s.Applied(m.Partition), s.Digest(m.Partition)
	if at != store.Offsets(m.Applied) || sum != store.Digest(m.Digest) {
		return fmt.Errorf("%w: restored, it is at %+v with the digest %x, and the backup says %+v and %x", store.ErrRefused, at, sum, m.Applied, m.Digest)
	}
	return nil
}
