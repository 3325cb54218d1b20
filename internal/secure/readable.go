package secure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// readFile reads a regular file, and refuses anything else. For example, a reader of a pipe
// that nobody writes to would wait for ever, and every handshake would wait for the reader.
func readFile(name string) ([]byte, error) {
	regular := func(info os.FileInfo) error {
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file: its mode is %s", name, info.Mode())
		}
		return nil
	}
	if info, err := os.Stat(name); err == nil { // looks before the file is opened, since opening some devices has an effect
		if err := regular(info); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // does not block if a pipe has taken the file's place since
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = regular(info)
	}
	var text []byte
	if err == nil {
		text, err = io.ReadAll(f)
	}
	return text, errors.Join(err, f.Close())
}

// ReadableByAll reports whether every user of the machine can read a file: its mode
// allows that, and so do the modes of all directories above it. It is false if that
// cannot be found out.
func ReadableByAll(file string) bool {
	file, err := filepath.Abs(file)
	if err == nil {
		file, err = filepath.EvalSymlinks(file)
	}
	for need := os.FileMode(0o004); err == nil; need = 0o001 {
		var info os.FileInfo
		if info, err = os.Stat(file); err != nil || info.Mode()&need == 0 {
			return false
		}
		above := filepath.Dir(file)
		if above == file {
			return true
		}
		file = above
	}
	return false
}
