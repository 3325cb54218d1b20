package roles

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/cmd/cli/config"
)

// written are the directories that roles keep below that of their data.
var written = []string{"store", "store.restoring", "backup", "differs", "witness", "admitting", "cluster"}

// keepPrivate closes to others what is in a data directory: a version of before
// made it as the process's umask said. What is written from now on is closed
// already.
func keepPrivate(data string) error {
	for _, name := range written {
		dir := filepath.Join(data, name)
		info, err := os.Stat(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			err = os.Chmod(dir, info.Mode().Perm()&^0o077)
		}
		if err != nil {
			return fmt.Errorf("to close it to others: %w", err)
		}
	}
	return nil
}

// tellExposed warns of secrets that every user of the machine can read.
func tellExposed(file string, cfg any, gave []config.Given) {
	for _, e := range config.ExposedOf(file, cfg, gave) {
		slog.Warn("every user of this machine can read a secret", "field", e.Field, "file", e.File, "mend", e.WayOut())
	}
}
