package door

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
)

// Knows reports whether a request of plain HTTP may name this Host. A web page can have a
// name of its own resolve to loopback, and its browser then takes what answers there for
// the page's own site. It cannot do so with an address, with localhost, or with a name of
// the machine or of the configuration; those are known. With TLS every name is known, since
// TLS proves it. So is every name beyond loopback, unless Config.Hosts has some. A nil Conn
// knows every name.
func (c *Conn) Knows(host string) bool {
	if c == nil || c.of.cfg.TLS != nil || len(c.of.cfg.Hosts) == 0 && !onLoopback(c.LocalAddr()) {
		return true
	}
	name := nameOf(host)
	if _, err := netip.ParseAddr(name); err == nil || name == "" || name == "localhost" {
		return true // a browser always sends a name
	}
	if machine, err := os.Hostname(); name == nameOf(c.of.cfg.Addr) || err == nil && name == nameOf(machine) {
		return true
	}
	return slices.ContainsFunc(c.of.cfg.Hosts, func(known string) bool { return strings.EqualFold(name, known) })
}

// nameOf returns a host without its port, in the form in which names are compared.
func nameOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.Trim(host, "[]"), "."))
}

// onLoopback reports whether addr is an address of loopback.
func onLoopback(addr net.Addr) bool {
	tcp, ok := addr.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}
