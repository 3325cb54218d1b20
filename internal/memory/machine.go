package memory

import (
	"bytes"
	"os"
	"strconv"
)

// Machine returns the memory that this process may take, of the machine or of
// its control group, in bytes; 0 where that is not known.
func Machine() int64 {
	total := int64(0)
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		total = kibibytes(text, "MemTotal:") << 10
	}
	if text, err := os.ReadFile("/sys/fs/cgroup/memory.max"); err == nil {
		if limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && (total == 0 || limit < total) {
			return limit
		}
	}
	return total
}

// kibibytes returns the number behind a name in /proc/meminfo; 0 if it is not there.
func kibibytes(text []byte, name string) int64 {
	for line := range bytes.Lines(text) {
		if fields := bytes.Fields(line); len(fields) > 1 && string(fields[0]) == name {
			n, err := strconv.ParseInt(string(fields[1]), 10, 64)
			if err == nil {
				return n
			}
		}
	}
	return 0
}
