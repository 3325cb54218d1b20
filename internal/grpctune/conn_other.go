//go:build !linux

package grpctune

import "net"

// tune returns c: only on Linux is there more to it.
func tune(c net.Conn) net.Conn { return c }
