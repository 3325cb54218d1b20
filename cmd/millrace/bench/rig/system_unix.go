//go:build unix

package rig

import (
	"os/exec"
	"syscall"
	"time"
)

// apart puts a process in a group of its own: Ctrl-C in a terminal reaches the
// whole group, and these are ended in order.
func apart(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// OwnCPU is the CPU time that this process has used, which is the client's.
func OwnCPU() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // fails for no process that runs
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
