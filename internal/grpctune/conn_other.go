//go:build !linux

package grpctune

import (
	"net"
	"syscall"
)

// giveUp does nothing here: a lost connection stays until the kernel gives it up.
func giveUp(_, _ string, _ syscall.RawConn) error { return nil }

// tune returns c: only on Linux is there more to it.
func tune(c net.Conn) net.Conn { return c }
