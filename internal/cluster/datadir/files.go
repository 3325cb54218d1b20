package datadir

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Read reads a file of at most a number of bytes.
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

// Replace writes a file beside its place, syncs it and moves it there, so
// that a crash leaves the old one or the new one; once this has returned, the new
// one.
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

// MapFile is where the last good map is kept in a data directory.
func MapFile(dir string) string { return filepath.Join(dir, "map.json") }
