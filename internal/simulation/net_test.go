//go:build synctests

package simulation

import (
	"context"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// network is all that the roles reach each other by: connections as TCP has
// them, in memory and in virtual time. Each direction of a connection delivers
// its bytes in order, later by a delay that is drawn for each write, and holds
// them back while its link is cut, as TCP does what it sends again. A process
// that has crashed answers nobody, and nothing that it still does is heard.
type network struct {
	seed uint64

	mu        sync.Mutex
	listeners map[string]*listener // by address
	hosts     map[string]*host     // by name
	cuts      map[link]bool
	slow      map[link]time.Duration
	dials     map[link]uint64
	changed   chan struct{} // closed when cuts end
}

// link is a direction between two hosts.
type link struct{ from, to string }

// host is one life of a process.
type host struct {
	name string // of the machine, such as node-1: links are by it
	n    *network
	dead bool
	open map[*conn]bool
}

var errReset = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}

func newNetwork(seed uint64) *network {
	return &network{seed: seed, listeners: map[string]*listener{}, hosts: map[string]*host{}, cuts: map[link]bool{}, slow: map[link]time.Duration{}, dials: map[link]uint64{}, changed: make(chan struct{})}
}

// host begins a life of a process on a machine.
func (n *network) host(name string) *host {
	n.mu.Lock()
	defer n.mu.Unlock()
	h := &host{name: name, n: n, open: map[*conn]bool{}}
	n.hosts[name] = h
	return h
}

// crash ends a life: its connections break, and it neither dials nor listens.
func (h *host) crash() {
	h.n.mu.Lock()
	h.dead = true
	open := h.open
	h.open = map[*conn]bool{}
	for _, l := range h.n.listeners {
		if l.on == h {
			delete(h.n.listeners, l.addr.String())
		}
	}
	h.n.mu.Unlock()
	for c := range open {
		c.reset()
	}
}

// cut holds back all that one host sends to another, until heal.
func (n *network) cut(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cuts[link{from, to}] = true
}

// delay makes all that one host sends to another come later by so much.
func (n *network) delay(from, to string, by time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.slow[link{from, to}] = by
}

// heal ends what was cut or slow between two hosts, either way.
func (n *network) heal(a, b string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range []link{{a, b}, {b, a}} {
		delete(n.cuts, l)
		delete(n.slow, l)
	}
	n.ring()
}

// healAll ends everything that was cut or slow.
func (n *network) healAll() {
	n.mu.Lock()
	defer n.mu.Unlock()
	clear(n.cuts)
	clear(n.slow)
	n.ring()
}

// ring wakes who waits for a link. The caller holds the lock.
func (n *network) ring() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// sever breaks all connections between two hosts.
func (n *network) sever(a, b string) {
	n.mu.Lock()
	var broken []*conn
	for _, from := range []string{a, b} {
		if h := n.hosts[from]; h != nil {
			for c := range h.open {
				if c.out.link.to == a || c.out.link.to == b {
					broken = append(broken, c)
				}
			}
		}
	}
	n.mu.Unlock()
	for _, c := range broken {
		c.reset()
	}
}

// state is whether a link is cut, what tells that this may have changed, and by
// how much it is slower.
func (n *network) state(l link) (cut bool, changed <-chan struct{}, slower time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cuts[l], n.changed, n.slow[l]
}

// listener is a port of a host.
type listener struct {
	on    *host
	addr  *net.TCPAddr
	came  chan *conn
	ended chan struct{}
	once  sync.Once
}

func (h *host) listen(addr string) (net.Listener, error) {
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, err
	}
	l := &listener{on: h, addr: at, came: make(chan *conn, 100), ended: make(chan struct{})}
	h.n.mu.Lock()
	defer h.n.mu.Unlock()
	if h.n.listeners[addr] != nil || h.dead {
		return nil, fmt.Errorf("%s is in use", addr)
	}
	h.n.listeners[addr] = l
	return l, nil
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.came:
		return c, nil
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() { close(l.ended) })
	n := l.on.n
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.listeners[l.addr.String()] == l {
		delete(n.listeners, l.addr.String())
	}
	return nil
}

func (l *listener) Addr() net.Addr { return l.addr }

// dialTimeout is what a dial takes that nobody answers.
const dialTimeout = 5 * time.Second

func (h *host) dial(ctx context.Context, addr string) (net.Conn, error) {
	n := h.n
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	give := time.NewTimer(dialTimeout)
	defer give.Stop()
	for {
		n.mu.Lock()
		l := n.listeners[addr]
		if h.dead || l == nil {
			n.mu.Unlock()
			return nil, refused
		}
		out, in := link{h.name, l.on.name}, link{l.on.name, h.name}
		if n.cuts[out] || n.cuts[in] {
			changed := n.changed
			n.mu.Unlock()
			select {
			case <-changed:
			case <-give.C:
				return nil, &net.OpError{Op: "dial", Net: "tcp", Err: os.ErrDeadlineExceeded}
			case <-ctx.Done():
				return nil, ctx.Err()
			}
			continue
		}
		n.dials[out]++
		local := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 9), Port: 10000 + int(n.dials[out])}
		there, back := n.pipe(out, n.dials[out]), n.pipe(in, n.dials[out])
		near := &conn{on: h, in: back, out: there, local: local, remote: l.addr}
		far := &conn{on: l.on, in: there, out: back, local: l.addr, remote: local}
		h.open[near], l.on.open[far] = true, true
		n.mu.Unlock()
		select {
		case l.came <- far:
			return near, nil
		default:
			near.reset()
			return nil, refused
		}
	}
}

// pipe is one direction of a connection.
type pipe struct {
	n    *network
	link link

	mu     sync.Mutex
	draw   *rand.Rand
	sent   []segment
	ended  error // of who reads, once sent is empty; at once if it is errReset
	rung   chan struct{}
	latest time.Time
}

// segment is what one write sent, and when it arrives.
type segment struct {
	due  time.Time
	data []byte
}

func (n *network) pipe(l link, dial uint64) *pipe {
	h := fnv.New64a()
	fmt.Fprint(h, l.from, " ", l.to, " ", dial)
	return &pipe{n: n, link: l, draw: rand.New(rand.NewPCG(n.seed, h.Sum64())), rung: make(chan struct{})}
}

func (p *pipe) ring() {
	close(p.rung)
	p.rung = make(chan struct{})
}

// hop is the least that a write takes to arrive.
const hop = 50 * time.Microsecond

func (p *pipe) write(b []byte) (int, error) {
	_, _, slower := p.n.state(p.link)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended != nil {
		return 0, syscall.EPIPE
	}
	due := time.Now().Add(hop + time.Duration(p.draw.IntN(200))*time.Microsecond + slower)
	if due.Before(p.latest) {
		due = p.latest
	}
	p.latest = due
	p.sent = append(p.sent, segment{due, append([]byte(nil), b...)})
	p.ring()
	return len(b), nil
}

func (p *pipe) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ended == nil || err == errReset {
		p.ended = err
	}
	p.ring()
}

// read waits for what is due. deadline is asked again whenever moved rings.
func (p *pipe) read(b []byte, deadline func() (time.Time, <-chan struct{})) (int, error) {
	for {
		at, moved := deadline()
		now := time.Now()
		if !at.IsZero() && !at.After(now) {
			return 0, os.ErrDeadlineExceeded
		}
		cut, changed, _ := p.n.state(p.link)
		var until time.Time
		p.mu.Lock()
		rung := p.rung
		switch {
		case p.ended == errReset:
			p.mu.Unlock()
			return 0, errReset
		case len(p.sent) > 0 && !cut && !p.sent[0].due.After(now):
			n := copy(b, p.sent[0].data)
			if p.sent[0].data = p.sent[0].data[n:]; len(p.sent[0].data) == 0 {
				p.sent = p.sent[1:]
			}
			p.mu.Unlock()
			return n, nil
		case len(p.sent) > 0 && !cut:
			until = p.sent[0].due
		case len(p.sent) == 0 && p.ended != nil && !cut:
			p.mu.Unlock()
			return 0, p.ended
		}
		p.mu.Unlock()
		if !at.IsZero() && (until.IsZero() || at.Before(until)) {
			until = at
		}
		var due <-chan time.Time
		var t *time.Timer
		if !until.IsZero() {
			t = time.NewTimer(until.Sub(now))
			due = t.C
		}
		select {
		case <-rung:
		case <-changed:
		case <-moved:
		case <-due:
		}
		if t != nil {
			t.Stop()
		}
	}
}

// conn is one end of a connection.
type conn struct {
	on            *host
	in, out       *pipe
	local, remote net.Addr

	mu     sync.Mutex
	closed bool
	until  time.Time
	moved  chan struct{}
}

func (c *conn) deadline() (time.Time, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.moved == nil {
		c.moved = make(chan struct{})
	}
	return c.until, c.moved
}

func (c *conn) Read(b []byte) (int, error) {
	n, err := c.in.read(b, c.deadline)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed && n == 0 {
		err = net.ErrClosed
	}
	return n, err
}

func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	closed := c.closed
	c.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	return c.out.write(b)
}

// Close ends both directions: what was sent still arrives.
func (c *conn) Close() error {
	c.forget()
	c.out.end(io.EOF)
	c.in.end(errReset)
	return nil
}

func (c *conn) forget() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.on.n.mu.Lock()
	delete(c.on.open, c)
	c.on.n.mu.Unlock()
}

// reset breaks the connection: what is under way is lost.
func (c *conn) reset() {
	c.out.end(errReset)
	c.in.end(errReset)
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.remote }

func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetReadDeadline sets the only deadline: a write never waits.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.until = t
	if c.moved != nil {
		close(c.moved)
	}
	c.moved = make(chan struct{})
	return nil
}

func (c *conn) SetWriteDeadline(time.Time) error { return nil }
