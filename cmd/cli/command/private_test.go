//go:build unix

package command

import (
	"os"
	"path/filepath"
	"testing"
)

// What a command writes of records is its caller's alone, also in a file that others
// could read before, and nothing of that is left; a device stays as it is.
func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	before := filepath.Join(dir, "before")
	if err := os.WriteFile(before, []byte("longer than what is written"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(before, 0o644); err != nil { // whatever the umask
		t.Fatal(err)
	}
	for _, name := range []string{before, filepath.Join(dir, "new")} {
		if err := WriteFile(name, []byte("records")); err != nil {
			t.Fatal(err)
		}
		is, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := os.ReadFile(name); err != nil || string(text) != "records" || is.Mode().Perm() != 0o600 {
			t.Errorf("%s is %v and has %q: %v", name, is.Mode(), text, err)
		}
	}
	was, err := os.Stat(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(os.DevNull, []byte("records")); err != nil {
		t.Fatal(err)
	}
	if is, err := os.Stat(os.DevNull); err != nil || is.Mode() != was.Mode() {
		t.Errorf("%s is %v, and was %v: %v", os.DevNull, is.Mode(), was.Mode(), err)
	}
}
