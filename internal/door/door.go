// Package door bounds what connections take of a port before anything that they
// send is trusted: how many there are, in all and of one address, and how long
// each may take until a request of it is let in. What is turned away is counted
// and logged.
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

// DefaultConns is how many connections a port takes at a time unless somebody
// says otherwise: each may take 32 KiB before it has said anything.
const DefaultConns = 4096

const (
	// Within is how long a connection may take until it is let in, or until it has
	// shown by a handshake that it speaks the port's protocol.
	Within = 15 * time.Second
	// Patience is how long one may go on of which more is known only by a request,
	// and that sends none: a client opens its connections before it has questions.
	Patience = 2 * time.Minute
	// toldWithin is how long one may go on of who has its share of the port
	// already: until it has asked, and has read that it is refused.
	toldWithin = time.Second
)

const refusalBody = `{"type":"urn:millrace:overloaded","title":"overloaded","status":503,"detail":"too many connections","reason":"OVERLOADED","way_out":"use connections again, and try again after a second"}`

// RefusalHTTP is what a connection too many reads that speaks plain HTTP.
var RefusalHTTP = fmt.Sprintf("HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%s", len(refusalBody), refusalBody)

// Config is what a door lets in.
type Config struct {
	Port    string      // its name in logs and metrics
	Conns   int         // connections at a time; 0: DefaultConns
	Refusal string      // that those beyond are told, if they speak plainly
	TLS     *tls.Config // nil: plain text
	Addr    string      // host:port, as it was configured
	Hosts   []string    // names by which plain HTTP may ask it; none: beyond loopback any
	Told    *Refusals   // nil: what is turned away is not told
}

// Door is a listener that takes so many connections of another at a time, at
// most half of them of one address, and at most an eighth of one address of
// which no request was let in yet. These are hung up on when that takes too
// long. One identity, from however many addresses, has at most half of them, too:
// what it has beyond that ends once it is told so, and only a few wait to be told.
//
// Who serves it says by [Conn.Let] that a request was let in, and of whom.
type Door struct {
	net.Listener
	cfg            Config
	share, waiting int // connections of one address or identity, and those of an address of which nothing was let in

	mu struct {
		sync.Mutex
		all   int
		peers map[netip.Addr]*count
		names map[string]*held // by who
	}
}

// count is how many connections an address has.
type count struct{ all, waiting int }

// held is how many connections an identity has: of which something was let in,
// and that are only to be told that they are too many.
type held struct{ let, told int }

// fewConns is below which an address or an identity is not bounded more than all
// are.
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
				_ = conn.SetWriteDeadline(time.Now().Add(time.Millisecond)) // what does not fit is not told
				_, _ = conn.Write([]byte(d.cfg.Refusal))
			}
			_ = conn.Close()
			continue
		}
		c.late = time.AfterFunc(Within, c.expire)
		if d.cfg.TLS == nil {
			return c, nil
		}
		return tls.Server(c, d.cfg.TLS), nil // also its handshake is bounded
	}
}

// enter counts a connection of an address, or says why there may be no other.
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

// peerOf is what connections are counted by: an address, or a network of IPv6 of
// which who has one address has all. What is not from a network is of nobody, and
// counts towards all alone.
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

// Counted is what requests from an address are counted by, as connections are.
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
	who    string      // of whom, if it is known; under the door's lock
	told   bool        // it is one too many of who, and ends; under the door's lock
	closed bool        // under the door's lock
}

// Let notes that a request of the connection is let in, of whom, "" of nobody who
// is known: it may stay. It reports false, and the connection ends in a moment,
// where who has its share of the port already; it counts for who was let in first.
// A nil Conn is one that came through no door.
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

// end has the connection end that is one too many of who, under the door's lock:
// when there was time to tell it, or now, if many are to be told. They would
// else take the places of those of whom nothing is known yet.
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

// Share is how many connections of its door one identity has at most.
func (c *Conn) Share() int { return c.of.share }

// Speaks notes that the connection has shown that it speaks the port's protocol:
// it has more time until a request of it is let in. A nil Conn is as of [Conn.Let].
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
	if !c.told { // else why it ends is told already
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

// leave counts the connection no more, and reports whether it was.
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

// Refused tells that something of the connection is turned away, and why.
func (c *Conn) Refused(reason Reason, err error) {
	if c != nil {
		c.of.cfg.Told.tell(c.of.cfg.Port, c.peer.String(), reason, err)
	}
}

// Of returns the connection through a door that c wraps, or nil.
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

type key struct{}

// With returns ctx with the connection of a request.
func With(ctx context.Context, c *Conn) context.Context { return context.WithValue(ctx, key{}, c) }

// From returns the connection of a request, or nil.
func From(ctx context.Context) *Conn {
	c, _ := ctx.Value(key{}).(*Conn)
	return c
}
