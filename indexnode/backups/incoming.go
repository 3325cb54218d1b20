package backups

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup"
)

// incoming is a directory with the files of partitions that are restored. It is
// one for all of them: ext4 makes a file in a new directory several times as
// slowly as one beside others.
type incoming string

// name is a file's in the directory.
func (incoming) name(p millrace.Partition, file string) string {
	return fmt.Sprintf("%03d-%s", p, file)
}

func (d incoming) path(p millrace.Partition, file string) string {
	return filepath.Join(string(d), d.name(p, file))
}

// keep makes the directory, and removes what is there of a partition but the
// files of a backup. What it keeps is compared by its hash when it is asked for.
func (d incoming) keep(m *backup.Manifest) error {
	if err := os.MkdirAll(string(d), 0o755); err != nil {
		return fmt.Errorf("backups: %w", err)
	}
	return d.remove(func(p millrace.Partition, file string) bool {
		file = strings.TrimSuffix(file, backup.PartSuffix)
		return p == m.Partition && !slices.ContainsFunc(m.Files, func(f backup.File) bool { return f.Name == file })
	})
}

// forget removes what is there of a partition.
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
