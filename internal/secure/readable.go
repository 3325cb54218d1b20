package secure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// readFile reads a regular file, and refuses anything else. A pipe that nobody writes to,
// for example, would have the reader wait for ever, and with it every handshake.
func readFile(name string) ([]byte, error) {
	regular := func(info os.FileInfo) error {
		if !info.Mode().IsRegular() {
			return fmt.Errorf("%s is no regular file: its mode is %s", name, info.Mode())
		}
		return nil
	}
	if info, err := os.Stat(name); err == nil { // before it is opened: opening some devices has an effect
		if err := regular(info); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // not blocking: it may have been replaced by a pipe since
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
