//go:build unix

package rig

import (
	"os/exec"
	"syscall"
	"time"
)

// apart puts a process in a process group of its own. Ctrl-C in a terminal reaches the whole
// group of this process, but the family must end its processes in order.
func apart(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// OwnCPU returns the CPU time that this process has used. In a benchmark it is the client.
func OwnCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // it cannot fail for the calling process
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
