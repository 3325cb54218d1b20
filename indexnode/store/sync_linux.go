package store

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// syncDisk syncs everything of the file system that a directory is on, and
// reports whether it can.
func syncDisk(dir string) (ok bool, err error) {
	d, err := os.Open(dir)
	if err != nil {
		return true, err
	}
	return true, errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}
