// Package door bounds the connections of a port before anything that they send is trusted:
// how many there are, in all and from one address, and how long each may take until a
// request of it is let in. What is turned away is counted and logged.
package door

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// DefaultConns is how many connections a port takes at a time by default. Each may take 32
// KiB of memory before it has sent anything.
const DefaultConns = 4096

const (
	// Within is how long a connection may take until a request of it is let in, or until it
	// has shown by a handshake that it speaks the port's protocol.
	Within = 15 * time.Second
	// Patience is how long a connection may go on without a request after that handshake: a
	// client opens its connections before it has requests.
	Patience = 2 * time.Minute
	// toldWithin is how long a connection may go on if its identity has its share of the port
	// already. In that time its caller can read that it is refused.
	toldWithin = time.Second
)

const refusalBody = `{"type":"urn:millrace:overloaded","title":"overloaded","status":503,"detail":"too many connections","reason":"OVERLOADED","way_out":"use connections again, and try again after a second"}`

// RefusalHTTP is the answer to a connection too many on a port of plain HTTP.
var RefusalHTTP = fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(refusalBody), refusalBody)

// Config says what a door lets in.
type Config struct {
	Port    string      // its name in logs and metrics
	Conns   int         // connections at a time; 0: DefaultConns
	Refusal string      // what connections beyond that are sent, if TLS is nil; "": nothing
	TLS     *tls.Config // nil: plain text
	Addr    string      // host:port, as it was configured
	Hosts   []string    // names that plain HTTP may ask for; see [Conn.Knows]
	Told    *Refusals   // nil: what is turned away is neither counted nor logged
}

// Door is a listener that takes at most Config.Conns connections of another listener at a
// time. One address has at most half of them. The connections of one address of which no
// request was let in yet are at most an eighth of them, and are closed when that takes too
// long. Both bounds are at least fewConns. One identity, from any number of addresses, has at
// most half of all, too. A connection beyond that ends once its caller is told so, and only a
// few wait to be told.
//
// The server behind it calls [Conn.Let] when a request is let in, with the caller's identity.
type Door struct {
	net.Listener
	cfg Config
	// share bounds the connections of one address or identity, waiting those of one address
	// of which no request was let in.
	share, waiting int

	mu struct {
		sync.Mutex
		all   int
		peers map[netip.Addr]*count
		names map[string]*held // by identity
	}
}

// count is how many connections an address has, and how many of them are waiting: no
// request of them was let in.
type count struct{ all, waiting int }

// held is how many connections an identity has: let is those of which a request was let in,
// and told those that stay only to be told that they are too many.
type held struct{ let, told int }

// fewConns is the least bound on the connections of an address or an identity.
const fewConns = 64

// New returns the door of a listener.
func New(l net.Listener, c Config) *Door {
	if c.Conns == 0 {
		c.Conns = DefaultConns
	}
	d := &Door{Listener: l, cfg: c, share: max(c.Conns/2, fewConns), waiting: max(c.Conns/8, fewConns)}
	d.mu.peers, d.mu.names = map[netip.Addr]*count{}, map[string]*held{}
	c.Told.of(c.Port)
	return d
}

// Accept implements net.Listener.
func (d *Door) Accept() (net.Conn, error) {
	for {
		conn, err := d.Listener.Accept()
		if err != nil {
			return nil, err
		}
		c := &Conn{Conn: conn, of: d, peer: peerOf(conn.RemoteAddr())}
		if reason := d.enter(c.peer); reason != "" {
			c.Refused(reason, nil)
			if d.cfg.Refusal != "" && d.cfg.TLS == nil {
				_ = conn.SetWriteDeadline(time.Now().Add(time.Millisecond)) // what does not fit into its buffer is not sent
				_, _ = conn.Write([]byte(d.cfg.Refusal))
			}
			_ = conn.Close()
			continue
		}
		c.late = time.AfterFunc(Within, c.expire)
		if d.cfg.TLS == nil {
			return c, nil
		}
		return tls.Server(c, d.cfg.TLS), nil // the timer bounds its handshake, too
	}
}

// enter counts a connection of an address and returns "", or returns why there may be no
// other.
func (d *Door) enter(peer netip.Addr) Reason {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := d.mu.peers[peer]
	switch {
	case d.mu.all == d.cfg.Conns:
		return Full
	case n == nil:
		n = new(count)
		d.mu.peers[peer] = n
	case peer.IsValid() && (n.all >= d.share || n.waiting >= d.waiting):
		return Peer
	}
	d.mu.all++
	n.all++
	n.waiting++
	return ""
}

// peerOf returns what connections are counted by: an IPv4 address, or the /64 network of an
// IPv6 address, since one host usually has all of it. It returns the zero Addr for a
// connection that is not TCP; those count only towards all.
func peerOf(addr net.Addr) netip.Addr {
	tcp, ok := addr.(*net.TCPAddr)
	if !ok {
		return netip.Addr{}
	}
	ip := tcp.AddrPort().Addr().Unmap().WithZone("")
	if ip.Is6() {
		net, _ := ip.Prefix(64)
		return net.Addr()
	}
	return ip
}

// Counted returns what requests from an address (host:port) are counted by: the same as for
// connections. Text that is not such an address is returned as it is.
func Counted(remote string) string {
	at, err := netip.ParseAddrPort(remote)
	if err != nil {
		return remote
	}
	return peerOf(net.TCPAddrFromAddrPort(at)).String()
}

// Conn is a connection that came through a door.
type Conn struct {
	net.Conn
	of   *Door
	peer netip.Addr
	late *time.Timer

	let    atomic.Bool // a request of it was let in; set under the door's lock
	who    string      // the identity that it counts for; "": none. Under the door's lock
	told   bool        // it is one too many of who, and ends; under the door's lock
	closed bool        // under the door's lock
}

// Let notes that a request of the connection is let in, so that the connection may stay.
// Who is the caller's identity, "" if it has none; the connection counts for the first one.
// If who has its share of the port already, Let returns false, and the connection ends in a
// moment. A nil Conn is one that came through no door, and is always let in.
func (c *Conn) Let(who string) bool {
	if c == nil || c.let.Load() {
		return true
	}
	d := c.of
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.let.Load() || c.closed:
		return true
	case c.told:
		return false
	case who != "":
		n := d.mu.names[who]
		if n == nil {
			n = new(held)
			d.mu.names[who] = n
		}
		if n.let >= d.share {
			c.end(who, n)
			return false
		}
		n.let++
	}
	c.late.Stop()
	c.who = who
	c.let.Store(true)
	d.mu.peers[c.peer].waiting--
	return true
}

// end ends a connection that is one too many of who: after toldWithin, or at once if many
// wait to be told already, since they would take the places of connections that are yet
// unknown. It is called under the door's lock.
func (c *Conn) end(who string, n *held) {
	c.told = true
	if n.told >= c.of.share/8 {
		c.late.Reset(0)
		return
	}
	c.who = who
	n.told++
	c.late.Reset(toldWithin)
}

// Share returns how many connections of its door one identity has at most.
func (c *Conn) Share() int { return c.of.share }

// Speaks notes that the connection has shown that it speaks the port's protocol, so that it
// has more time ([Patience]) until a request of it is let in. On a nil Conn it does
// nothing.
func (c *Conn) Speaks() {
	if c != nil && !c.let.Load() && c.late.Stop() {
		c.late.Reset(Patience)
	}
}

// expire ends a connection of which no request was let in.
func (c *Conn) expire() {
	if c.let.Load() || !c.leave() {
		return
	}
	if !c.told { // else it is noted already why it ends
		c.Refused(Late, nil)
	}
	_ = c.Conn.Close()
}

// Close implements net.Conn.
func (c *Conn) Close() error {
	if c.leave() {
		c.late.Stop()
	}
	return c.Conn.Close()
}

// leave stops counting the connection. It returns false if it did so before.
func (c *Conn) leave() bool {
	d := c.of
	d.mu.Lock()
	defer d.mu.Unlock()
	if c.closed {
		return false
	}
	c.closed = true
	d.mu.all--
	n := d.mu.peers[c.peer]
	if n.all--; !c.let.Load() {
		n.waiting--
	}
	if who := d.mu.names[c.who]; who != nil {
		if c.told {
			who.told--
		} else {
			who.let--
		}
		if *who == (held{}) {
			delete(d.mu.names, c.who)
		}
	}
	if n.all == 0 {
		delete(d.mu.peers, c.peer)
	}
	return true
}

// Refused counts and logs that the connection, or a request of it, is turned away. err may be
// nil. On a nil Conn it does nothing.
func (c *Conn) Refused(reason Reason, err error) {
	if c != nil {
		c.of.cfg.Told.tell(c.of.cfg.Port, c.peer.String(), reason, err)
	}
}

// Of returns the Conn that c is or wraps; nil if c came through no door.
func Of(c net.Conn) *Conn {
	for {
		if in, ok := c.(*Conn); ok {
			return in
		}
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = below.NetConn()
	}
}

// key is the key of the Conn in the context of a request.
type key struct{}

// With returns ctx with the connection of a request.
func With(ctx context.Context, c *Conn) context.Context { return context.WithValue(ctx, key{}, c) }

// From returns the connection of a request, or nil.
func From(ctx context.Context) *Conn {
	c, _ := ctx.Value(key{}).(*Conn)
	return c
}
