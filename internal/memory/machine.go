package memory

import (
	"bytes"
	"os"
	"path"
	"path/filepath"
	"strconv"
)

// Machine returns the memory in bytes that this process may use: that of the machine, or the
// limit of its control group if that is lower; 0: not known.
func Machine() int64 { return machine("/") }

// machine is Machine for the files of /proc and /sys under root.
func machine(root string) int64 {
	total := int64(0)
	if text, err := os.ReadFile(filepath.Join(root, "proc/meminfo")); err == nil {
		total = kibibytes(text, "MemTotal:") << 10
	}
	// The limits of all groups above the process's group hold as well. In a container the
	// process has a namespace of its own, in which its group is the root; a systemd service
	// has none.
	for group := group(root); ; group = path.Dir(group) {
		if text, err := os.ReadFile(filepath.Join(root, "sys/fs/cgroup", group, "memory.max")); err == nil {
			if limit, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64); err == nil && (total == 0 || limit < total) {
				total = limit
			}
		}
		if group == "/" {
			return total
		}
	}
}

// group returns the path of the process's control group.
func group(root string) string {
	text, _ := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	for line := range bytes.Lines(text) {
		if own, ok := bytes.CutPrefix(line, []byte("0::")); ok { // control groups of version 2
			return path.Join("/", string(bytes.TrimSpace(own)))
		}
	}
	return "/"
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
