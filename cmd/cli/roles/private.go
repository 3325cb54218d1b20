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

// written are the directories that roles make below their data directory.
var written = []string{"store", "store.restoring", "backup", "differs", "witness", "admitting", "cluster"}

// keepPrivate takes the permissions of group and others away from the directories
// [written] below data. Old versions made them with the mode that the process's
// umask left; command.Private sets a umask for all that is made from now on.
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

// tellExposed logs a warning for each secret in a file that every user of the machine can
// read.
func tellExposed(file string, cfg any, gave []config.Given) {
	for _, e := range config.ExposedOf(file, cfg, gave) {
		slog.Warn("every user of this machine can read a secret", "field", e.Field, "file", e.File, "mend", e.WayOut())
	}
}
