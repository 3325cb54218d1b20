package roles

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/secure"
)

// server returns the TLS configuration of a port; nil if it serves plain text.
func server(s *reach.Security, auth tls.ClientAuthType) (*tls.Config, error) {
	if !s.TLS.On() {
		return nil, nil
	}
	files, err := secure.Open(s.TLS, "tls", slog.Default())
	if err != nil {
		return nil, err
	}
	return files.Server(auth)
}

// port is where a role listens.
type port struct {
	field   string         // the key of the port in the configuration file
	addr    string         // host:port
	conns   int            // the most connections at a time; 0: door.DefaultConns
	refusal string         // sent to a connection that is turned away, if it is plain text
	hosts   []string       // names that a plain HTTP request may give as Host; none: the defaults of [door.Config]
	open    bool           // a client without a certificate is let in, and each request is judged
	told    *door.Refusals // counts and logs the connections that are turned away
}

// meets reports whether p and other cannot both be listened on: they have the same port
// number, and the same host, or one of them is on all addresses. Port 0 meets none, since
// the system chooses another number each time.
func (p port) meets(other port) bool {
	host, number, err := net.SplitHostPort(p.addr)
	otherHost, otherNumber, otherErr := net.SplitHostPort(other.addr)
	everywhere := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	return err == nil && otherErr == nil && number == otherNumber && number != "0" && (host == otherHost || everywhere(host) || everywhere(otherHost))
}

// listen listens on a port: with TLS if there are certificates, else in plain text, which
// must be on loopback or allowed by insecure. A role listens before it waits for anything.
// Until the role serves the port, the listener closes every connection at once.
func listen(ctx context.Context, s *reach.Security, p port) (net.Listener, error) {
	c, err := guard(s, p)
	if err != nil {
		return nil, err
	}
	l, err := p.take(ctx)
	if err != nil {
		return nil, err
	}
	return door.New(l, door.Config{Port: p.field, Conns: p.conns, Refusal: p.refusal, TLS: c, Addr: p.addr, Hosts: p.hosts, Told: p.told}), nil
}

// guard returns the TLS configuration of a port; nil if it serves plain text. It refuses
// plain text beyond loopback unless the configuration says insecure.
func guard(s *reach.Security, p port) (*tls.Config, error) {
	if p.addr == "" {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: p.field, Detail: "nothing says where to listen", WayOut: "name an address of this machine, host:port"}
	}
	auth := tls.RequireAndVerifyClientCert
	if p.open {
		auth = tls.VerifyClientCertIfGiven
	}
	c, err := server(s, auth)
	if err != nil || c != nil {
		return c, err
	}
	err = s.Plain().Check(p.addr)
	if e, ok := errors.AsType[*millrace.Error](err); ok {
		e.Field = p.field
	}
	return nil, err
}

// portWait is how long a role waits for a port that is in use. The system may have given
// the port's number to an outgoing connection of another process, which ends after a while.
// Only tests change portWait.
var portWait = 30 * time.Second

// take listens on a port. If the port is in use, it tries again for portWait.
func (p port) take(ctx context.Context) (net.Listener, error) {
	waits, cancel := context.WithTimeout(ctx, portWait)
	defer cancel()
	for told := false; ; told = true {
		l, err := grpctune.Listen(p.addr)
		switch {
		case err == nil:
			return newClosed(l), nil
		case !errors.Is(err, syscall.EADDRINUSE):
			return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: p.field, Detail: err.Error(), WayOut: "name an address of this machine, host:port"}
		case !told:
			slog.Warn("the port is taken; trying again", "field", p.field, "addr", p.addr, "for", portWait)
		}
		select {
		case <-waits.Done():
			return nil, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: p.field, Detail: fmt.Sprintf("another process has held %s for %v", p.addr, portWait), WayOut: "end that process, or name another port"}
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// closed is a listener that closes every connection at once until Accept is called for
// the first time. A client that comes too early learns it at once and asks elsewhere, as
// if nobody listened.
type closed struct {
	net.Listener
	deadline func(time.Time) error // SetDeadline of the listener
	open     sync.Once
	closed   chan struct{} // closed when hangUp has ended
}

// newClosed returns l as a closed listener; l itself if it has no method SetDeadline.
func newClosed(l net.Listener) net.Listener {
	tcp, ok := l.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return l
	}
	d := &closed{Listener: l, deadline: tcp.SetDeadline, closed: make(chan struct{})}
	go d.hangUp()
	return d
}

// hangUp closes connections until the listener's deadline passes or it is closed.
func (d *closed) hangUp() {
	defer close(d.closed)
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return
		}
		_ = c.Close()
	}
}

// Accept implements net.Listener. The first call opens the port.
func (d *closed) Accept() (net.Conn, error) {
	d.open.Do(func() {
		_ = d.deadline(time.Now()) // it fails if the listener is closed, which Accept reports below
		<-d.closed
		_ = d.deadline(time.Time{})
	})
	return d.Listener.Accept()
}
