package command

import (
	"errors"
	"os"
)

// WriteFile writes a file of records that only its owner can read, also where it was
// there before and others could. What is no regular file, such as a device or a pipe,
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
		// The mode comes first: what is to be kept from others is not written before.
		if err := errors.Join(f.Chmod(0o600), f.Truncate(0)); err != nil {
			return err
		}
	}
	_, err = f.Write(body)
	return err
}
