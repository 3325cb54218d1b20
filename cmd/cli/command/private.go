package command

import (
	"errors"
	"os"
)

// WriteFile writes a file of records that only its owner can read, even if there was a
// file that others could read. What is not a regular file, such as a device or a pipe,
// keeps its mode.
func WriteFile(name string, body []byte) (err error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	is, err := f.Stat()
	if err != nil {
		return err
	}
	if is.Mode().IsRegular() {
		// The mode is set before anything is written, so that nobody else reads the body.
		if err := errors.Join(f.Chmod(0o600), f.Truncate(0)); err != nil {
			return err
		}
	}
	_, err = f.Write(body)
	return err
}
