//go:build !linux

package rig

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
)

func used(pid int) (Used, error) { return psUsed(pid) }

// listener does not know who listens: its CPU time is not told.
func listener(string) (pid int, err error) {
	return 0, errors.New("who listens on a port is told on Linux alone")
}

// psUsed asks ps, which tells hundredths of a second on some systems and whole
// ones on others.
func psUsed(pid int) (Used, error) {
	out, err := exec.Command("ps", "-o", "time=,rss=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return Used{}, fmt.Errorf("ps: process %d: %w", pid, err)
	}
	return readPS(string(out))
}
