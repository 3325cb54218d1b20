package secure

import (
	"os"
	"path/filepath"
)

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
