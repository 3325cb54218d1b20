package datadir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Read reads a file, which must have no more than most bytes.
func Read(file string, most int64) ([]byte, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	body, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(body)) > most {
		err = fmt.Errorf("%s is larger than %d bytes", file, most)
	}
	return body, err
}

// Replace writes body to file+".new", syncs it and renames it to file. A crash leaves the
// old file or the new one, whole; after Replace has returned nil, the new one. The mode is
// for a file that it makes.
func Replace(file string, body []byte, mode os.FileMode) error {
	f, err := os.OpenFile(file+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return err
	}
	_, err = f.Write(body)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(file+".new", file); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(file))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// MapFile returns the path of the last good map of the cluster in a data directory.
func MapFile(dir string) string { return filepath.Join(dir, "map.json") }
