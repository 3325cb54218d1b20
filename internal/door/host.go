package door

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Knows reports whether plain HTTP may be sent to the port under this Host. A web
// page can have a name of its own lead to loopback, and its browser then takes
// what is there for the page's own site. It cannot do so with an address, with
// localhost, or with a name of the machine or of the configuration, and cannot
// where TLS proves the name. Beyond loopback all names are known unless some are configured. A nil Conn
// is as of [Conn.Let].
func (c *Conn) Knows(host string) bool {
	if c == nil || c.of.cfg.TLS != nil || len(c.of.cfg.Hosts) == 0 && !onLoopback(c.LocalAddr()) {
		return true
	}
	name := nameOf(host)
	if _, err := netip.ParseAddr(name); err == nil || name == "" || name == "localhost" {
		return true // without any is nothing that a browser sends
	}
	if machine, err := os.Hostname(); name == nameOf(c.of.cfg.Addr) || err == nil && name == nameOf(machine) {
		return true
	}
	return slices.ContainsFunc(c.of.cfg.Hosts, func(known string) bool { return strings.EqualFold(name, known) })
}

// nameOf is a host without its port, in the form that names are compared in.
func nameOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// onLoopback reports whether a connection came to an address of loopback.
func onLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
