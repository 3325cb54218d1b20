package door

import (
	"crypto/tls"
	"net"
	"os"
	"testing"
)

// to is an end of a connection in memory, to an address.
type to struct {
	net.Conn
	addr net.Addr
}

func (c to) LocalAddr() net.Addr { return c.addr }

// What a web page can have lead to loopback is no name of the port; what it
// cannot is, and what the configuration says.
func TestNamesOfAPort(t *testing.T) {
	loopback, beyond := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6060}, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 6060}
	six := &net.TCPAddr{IP: net.IPv6loopback, Port: 6060}
	machine, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	named := Config{Addr: "box:6060", Hosts: []string{"Feeds.example"}}
	for _, c := range []struct {
		of    Config
		to    net.Addr
		host  string
		known bool
	}{
		{Config{}, loopback, "evil.example:6060", false},
		{Config{}, loopback, "evil.example", false},
		{Config{}, six, "evil.example", false},
		{Config{}, loopback, "localhost.evil.example", false},
		{Config{}, loopback, "127.0.0.1.evil.example:6060", false},
		{Config{}, loopback, "127.1", false},
		{Config{}, loopback, "127.0.0.1:6060", true},
		{Config{}, loopback, "127.0.0.1", true},
		{Config{}, loopback, "[::1]:6060", true},
		{Config{}, loopback, "[::1]", true},
		{Config{}, loopback, "10.0.0.1:6060", true},
		{Config{}, loopback, "localhost:6060", true},
		{Config{}, loopback, "LOCALHOST.", true},
		{Config{}, loopback, "", true},
		{Config{}, loopback, machine + ":6060", true},
		{named, loopback, "box", true},
		{named, loopback, "feeds.EXAMPLE:80", true},
		{named, loopback, "evil.example", false},
		{named, beyond, "feeds.example", true},
		{named, beyond, "evil.example", false},
		{Config{}, beyond, "broker-1:6060", true},
		{Config{TLS: new(tls.Config)}, loopback, "evil.example", true},
	} {
		in := &Conn{Conn: to{addr: c.to}, of: New(nil, c.of)}
		if got := in.Knows(c.host); got != c.known {
			t.Errorf("%+v at %s: %q is known: %v", c.of, c.to, c.host, got)
		}
	}
	if !(*Conn)(nil).Knows("evil.example") {
		t.Error("what came through no door is judged")
	}
}
