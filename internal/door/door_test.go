package door

import (
	"bytes"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// from is an end of a connection in memory, of an address.
type from struct {
	net.Conn
	addr net.Addr
}

func (f from) RemoteAddr() net.Addr { return f.addr }

// pipes is a listener of connections in memory.
type pipes struct {
	of       chan net.Conn
	accepted chan net.Conn // by the door
}

func (p pipes) Accept() (net.Conn, error) {
	c, ok := <-p.of
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (pipes) Close() error   { return nil }
func (pipes) Addr() net.Addr { return &net.TCPAddr{} }

// dial returns the caller's end of a connection from an address.
func (p pipes) dial(ip string) net.Conn {
	ours, theirs := net.Pipe()
	p.of <- from{theirs, &net.TCPAddr{IP: net.ParseIP(ip), Port: 1}}
	return ours
}

// opened is a door with pipes, whose connections are accepted.
func opened(t *testing.T, c Config) pipes {
	p := pipes{make(chan net.Conn), make(chan net.Conn, 20_000)}
	d := New(p, c)
	go func() {
		for {
			conn, err := d.Accept()
			if err != nil {
				return
			}
			p.accepted <- conn
		}
	}()
	t.Cleanup(func() { close(p.of) })
	return p
}

func told(log io.Writer) (*Refusals, func(port string, reason Reason) float64) {
	r := NewRefusals(slog.New(slog.NewTextHandler(log, nil)), prometheus.NewRegistry())
	return r, func(port string, reason Reason) float64 {
		return testutil.ToFloat64(r.count.WithLabelValues(port, string(reason)))
	}
}

// Input 56: of 10,000 connections as many are taken as may be, the others are
// told, and one that ends makes room for another.
func TestConnectionsAreBounded(t *testing.T) {
	const most = 100
	r, count := told(io.Discard)
	p := opened(t, Config{Port: "http", Conns: most, Refusal: RefusalHTTP, Told: r})
	dial := func(i int) net.Conn { return p.dial(fmt.Sprintf("10.0.%d.%d", i/256%256, i%256)) }
	taken := func() {
		for len(p.accepted) < most {
			runtime.Gosched()
		}
	}
	for i := range most {
		dial(i)
	}
	taken()
	refused := 0
	for i := range 10_000 - most {
		said, _ := io.ReadAll(dial(i))
		if len(said) == 0 || strings.HasPrefix(string(said), "HTTP/1.1 503") {
			refused++ // a busy machine may not tell in time
		}
	}
	if refused != 10_000-most || len(p.accepted) != most || count("http", Full) != float64(refused) {
		t.Errorf("%d were refused, %v counted, %d taken", refused, count("http", Full), len(p.accepted))
	}
	one := <-p.accepted
	_ = one.Close()
	_ = one.Close()
	dial(0)
	taken()
}

// One address has its share of a port, and of it a smaller one until its requests
// are let in; others come through beside it.
func TestAnAddressHasItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, count := told(io.Discard)
		p := opened(t, Config{Port: "grpc", Conns: 1024, Told: r})
		come := func(n int, ip string, let bool) (got []net.Conn) {
			for range n {
				p.dial(ip)
			}
			synctest.Wait()
			for len(p.accepted) > 0 {
				c := <-p.accepted
				got = append(got, c)
				if let {
					Of(c).Let("")
					Of(c).Let("")
				}
			}
			return got
		}
		for _, same := range [][]string{{"10.0.0.1", "::ffff:10.0.0.1"}, {"2001:db8::1", "2001:db8::2"}} {
			was := count("grpc", Peer)
			some := append(come(100, same[0], false), come(100, same[1], false)...)
			if len(some) != 128 || count("grpc", Peer) != was+72 {
				t.Errorf("of 200 that ask for nothing %d are taken, and %v refused", len(some), count("grpc", Peer)-was)
			}
			for _, c := range some {
				Of(c).Let("")
			}
			for range 5 {
				some = append(some, come(100, same[0], true)...)
			}
			if len(some) != 512 {
				t.Errorf("of 628 that were let in %d are taken", len(some))
			}
			if n := len(come(1, "10.0.0.2", true)); n != 1 {
				t.Error("another address is not let in")
			}
			_ = some[0].Close()
			_ = some[0].Close()
			if n := len(come(2, same[1], false)); n != 1 {
				t.Errorf("one has left, and %d come", n)
			}
			for _, c := range some {
				_ = c.Close()
				Of(c).Let("")
			}
			if n := len(come(200, same[0], false)); n != 127 { // one is there
				t.Errorf("all have left, and %d come", n)
			}
		}
	})
}

// One identity has its share of a port, from however many addresses, and others
// come through beside it; one that has left makes room for another.
func TestAnIdentityHasItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := opened(t, Config{Port: "grpc", Conns: 1024})
		come := func(i int) *Conn {
			p.dial(fmt.Sprintf("10.0.%d.%d", i/256, i%256))
			synctest.Wait()
			return Of(<-p.accepted)
		}
		var app []*Conn
		for i := range 512 {
			c := come(i)
			for range 2 {
				if !c.Let("app") {
					t.Fatalf("connection %d is not let in", i)
				}
			}
			app = append(app, c)
		}
		late, other, nobody := come(600), come(601), come(602)
		for range 2 {
			if late.Let("app") || late.Share() != 512 {
				t.Error("one has more than its share")
			}
		}
		if !other.Let("other") || !nobody.Let("") || !app[0].Let("other") {
			t.Error("others are not let in beside it")
		}
		_ = app[0].Close()
		_ = app[0].Close()
		if late.Let("app") {
			t.Error("one that is told that it ends is let in")
		}
		late = come(606)
		if !late.Let("app") || come(603).Let("app") {
			t.Error("one has left, and not one is let in")
		}
		time.Sleep(Within)
		synctest.Wait()
		if again := come(604); again.Let("app") {
			t.Error("one that was not let in and has ended made room")
		}
		_ = late.Close()
		if again := come(605); !again.Let("app") {
			t.Error("another has left, and nobody is let in")
		}
	})
}

// One that has its share and goes on connecting, from however many addresses, is
// told so and hung up on: it takes nothing from others but for a few connections
// that wait to be told.
func TestWhoHasItsShareFillsNoPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const share, few = 512, 64
		var log lockedLog
		told, count := told(&log)
		p := opened(t, Config{Port: "grpc", Conns: 2 * share, Told: told})
		come := func(i int) *Conn {
			p.dial(fmt.Sprintf("10.0.0.%d", i%20))
			synctest.Wait()
			return Of(<-p.accepted)
		}
		for i := range share {
			come(i).Let("app")
		}
		var late []*Conn
		for i := range 4 * share {
			c := come(i)
			if c.Let("app") {
				t.Fatalf("connection %d beyond the share is let in", i)
			}
			late = append(late, c)
		}
		synctest.Wait()
		d := late[0].of
		has := func() (all int, app held) {
			d.mu.Lock()
			defer d.mu.Unlock()
			return d.mu.all, *d.mu.names["app"]
		}
		if all, _ := has(); all != share+few {
			t.Errorf("the port has %d connections, want %d of the share and %d that are being told", all, share, few)
		}
		time.Sleep(toldWithin)
		synctest.Wait()
		if all, app := has(); all != share || app != (held{let: share}) {
			t.Errorf("the port has %d connections after a moment, of the identity %+v", all, app)
		}
		if n := count("grpc", Late); n != 0 {
			t.Errorf("%v of those that were told are counted as late", n)
		}
		if !come(50).Let("other") {
			t.Error("another is not let in")
		}
	})
}

// A connection of which nothing is let in ends, also in a handshake of TLS, and
// one of which something was stays.
func TestSilenceEndsAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, count := told(io.Discard)
		plain, encrypted := opened(t, Config{Port: "grpc", Told: r}), opened(t, Config{Port: "grpc", TLS: &tls.Config{}, Told: r})
		ended := make(chan string, 3)
		began := time.Now()
		watch := func(name string, c net.Conn) {
			go func() {
				_, _ = c.Write([]byte{22}) // of a handshake, as far as it goes
				_, err := c.Read(make([]byte, 1))
				ended <- fmt.Sprint(name, " ", err, " ", time.Since(began))
			}()
		}
		go func() {
			for c := range encrypted.accepted {
				go func() { _ = c.(*tls.Conn).Handshake() }()
			}
		}()
		defer close(encrypted.accepted)
		watch("silent", plain.dial("10.0.0.1"))
		watch("handshake", encrypted.dial("10.0.0.1"))
		kept := plain.dial("10.0.0.1")
		synctest.Wait()
		silent, let := <-plain.accepted, <-plain.accepted
		go func() { _, _ = silent.Read(make([]byte, 1)) }()
		Of(let).Let("")
		got := []string{<-ended, <-ended}
		if time.Since(began) != Within || count("grpc", Late) != 2 {
			t.Errorf("ended: %v, counted: %v", got, count("grpc", Late))
		}
		time.Sleep(time.Hour)
		go func() { _, _ = kept.Write([]byte("x")) }()
		if n, err := let.Read(make([]byte, 1)); n != 1 {
			t.Errorf("a connection of which a request was let in: %v", err)
		}
		_ = let.Close()
	})
}

// What wraps a connection does not hide it.
func TestOf(t *testing.T) {
	p := opened(t, Config{TLS: &tls.Config{}})
	p.dial("10.0.0.1")
	c := <-p.accepted
	if Of(c) == nil || From(With(t.Context(), Of(c))) != Of(c) {
		t.Error("it is not found")
	}
	_ = c.Close()
	if ours, _ := net.Pipe(); Of(ours) != nil || From(t.Context()) != nil {
		t.Error("one is found that came through no door")
	}
	From(t.Context()).Let("app")
	From(t.Context()).Refused(Unknown, nil)
}

// lockedLog is a log that timers write to, too.
type lockedLog struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

// String returns what has been written, and take forgets it, too.
func (l *lockedLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lockedLog) take() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.text.Reset()
	return l.text.String()
}

// The log has a line of an address and a reason, and then how many more there
// were, until there are none; of many addresses it has one for all others.
func TestRefusalsAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log lockedLog
		r, count := told(&log)
		lines := func() int { return strings.Count(log.take(), "\n") }
		kept := func() int {
			r.mu.Lock()
			defer r.mu.Unlock()
			return len(r.lines)
		}
		for range 500 {
			r.tell("grpc", "10.0.0.1", Unknown, errors.New("no such token"))
		}
		r.tell("grpc", "10.0.0.1", Forbidden, nil)
		r.tell("http", "10.0.0.2", Unknown, errors.New(strings.Repeat("x", 1<<20)))
		text := log.String()
		if n := lines(); n != 3 || !strings.Contains(text, "level=WARN") || !strings.Contains(text, `err="no such token"`) || len(text) > 2000 {
			t.Errorf("%d lines: %.3000s", n, text)
		}
		time.Sleep(tellEvery + 1)
		synctest.Wait()
		if text := log.String(); lines() != 1 || !strings.Contains(text, "times=499") || !strings.Contains(text, "peer=10.0.0.1") {
			t.Errorf("then: %s", text)
		}
		time.Sleep(time.Hour)
		if n := lines(); n != 0 || kept() != 0 {
			t.Errorf("%d lines of nothing, %d kept", n, kept())
		}
		for i := range 5000 {
			r.tell("grpc", fmt.Sprint("10.0.0.", i), Late, nil)
		}
		if n := lines(); n != maxLines+1 || kept() != maxLines+1 {
			t.Errorf("%d lines of 5000 addresses, %d kept", n, kept())
		}
		if got := count("grpc", Unknown) + count("grpc", Forbidden) + count("http", Unknown) + count("grpc", Late); got != 5502 {
			t.Errorf("%v are counted", got)
		}
		time.Sleep(time.Minute)
	})
}

// Handshakes that fail are told, by HTTP's log and by a connection; those of who
// hangs up are not.
func TestHandshakesAreTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		r, count := told(&log)
		p := pipes{of: make(chan net.Conn, 1)}
		d := New(p, Config{Port: "http", Told: r})
		for _, why := range []string{"EOF", "read tcp 1.2.3.4:5->6.7.8.9:1: read: connection reset by peer", "read tcp: use of closed network connection"} {
			d.ErrorLog().Printf("http: TLS handshake error from %s: %s", "10.0.0.1:99", why)
		}
		if n := count("http", Handshake); n != 0 {
			t.Errorf("%v of who hung up", n)
		}
		d.ErrorLog().Printf("http: TLS handshake error from %s: tls: client didn't provide a certificate", "[2001:db8::1]:99")
		d.ErrorLog().Print("http: something else") // goes to the process's log
		ours, theirs := net.Pipe()
		p.of <- from{theirs, &net.TCPAddr{IP: net.ParseIP("10.0.0.1")}}
		c, _ := d.Accept()
		Of(c).Failed(io.EOF)
		Of(c).Failed(fmt.Errorf("wrapped: %w", net.ErrClosed))
		Of(c).Failed(errors.New("tls: no"))
		_, _ = c.Close(), ours.Close()
		if n := count("http", Handshake); n != 2 || !strings.Contains(log.String(), "peer=2001:db8::") || !strings.Contains(log.String(), "certificate") {
			t.Errorf("%v: %s", n, &log)
		}
		time.Sleep(time.Minute)
	})
}
