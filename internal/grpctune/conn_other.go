//go:build !linux

package grpctune

import (
	"net"
	"syscall"
)

// giveUp does nothing here: a lost connection stays until the operating system gives it up.
func giveUp(_, _ string, _ syscall.RawConn) error { return nil }

// tune returns c; see conn_linux.go for what it does there.
func tune(c net.Conn) net.Conn { return c }
