package secure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// readFile reads a regular file. What else has its name could have the reader wait
// for ever, as a pipe does that nobody writes to, and with it every handshake.
func readFile(name string) ([]byte, error) {
	regular := func(info os.FileInfo) error {
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file: its mode is %s", name, info.Mode())
		}
		return nil
	}
	if info, err := os.Stat(name); err == nil { // to open some devices does something
		if err := regular(info); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // a pipe may have come since
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

// ReadableByAll reports whether every user of the machine can read a file: its mode lets
// them, and so do those of all directories above it. It is false where that cannot be found
// out.
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
