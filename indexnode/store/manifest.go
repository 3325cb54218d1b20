package store

import (
	"errors"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// manifestFS syncs the directory behind every new manifest. Pebble does so only
// together with the marker that names the manifest, and a crash in between may
// keep the marker and lose the manifest: then nothing opens any more.
type manifestFS struct{ vfs.FS }

// Create creates a file; a manifest is in its directory when it returns.
func (fs manifestFS) Create(name string, c vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, c)
	if err != nil || !strings.HasPrefix(fs.PathBase(name), "MANIFEST-") {
		return f, err
	}
	if err := syncDir(fs.FS, fs.PathDir(name)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// Unwrap returns the file system below.
func (fs manifestFS) Unwrap() vfs.FS { return fs.FS }
