//go:build !linux

package rig

import (
	"errors"
	"fmt"
	"os/exec"
	"strconv"
)

// used returns what a process has used.
func used(pid int) (Used, error) { return psUsed(pid) }

// listener returns an error: on this system it is not known which process listens on a
// port.
func listener(string) (pid int, err error) {
	return 0, errors.New("who listens on a port is told on Linux alone")
}

// psUsed asks ps what a process has used. ps prints CPU time in hundredths of a second on
// some systems, and in whole seconds on others.
func psUsed(pid int) (Used, error) {
	out, err := exec.Command("ps", "-o", "time=,rss=", "-p", strconv.Itoa(pid)).Output()
	if err != nil {
		return Used{}, fmt.Errorf("ps: process %d: %w", pid, err)
	}
	return readPS(string(out))
}
