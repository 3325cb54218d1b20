//go:build !unix

package rig

import (
	"os/exec"
	"time"
)

// apart does nothing on this system.
func apart(*exec.Cmd) {}

// OwnCPU returns 0: this system is not asked for the CPU time of this process.
func OwnCPU() time.Duration { return 0 }
