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

// server is how a port is served; nil: by plain text.
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
	field   string         // of the configuration
	addr    string         // host:port
	conns   int            // at a time; 0: the usual number
	refusal string         // that others are told by, if they speak plainly
	hosts   []string       // that plain HTTP may ask it by; none: those of [door.Config]
	open    bool           // who shows no certificate is let in, and judged by what it asks
	told    *door.Refusals // of what is turned away
}

// meets reports whether two ports cannot both be taken: they are the same, or one is that
// of all addresses. Port 0 is another each time.
func (p port) meets(other port) bool {
	host, number, err := net.SplitHostPort(p.addr)
	otherHost, otherNumber, otherErr := net.SplitHostPort(other.addr)
	everywhere := func(host string) bool { return host == "" || host == "0.0.0.0" || host == "::" }
	return err == nil && otherErr == nil && number == otherNumber && number != "0" && (host == otherHost || everywhere(host) || everywhere(otherHost))
}

// listen takes a port: with mutual TLS if there are certificates, else on
// loopback or as insecure. A role takes its ports before it waits for anything;
// until it serves one, that hangs up on who calls.
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

// guard is how a port is served; nil: by plain text, which stays on loopback or
// is insecure.
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

// portWait is how long a role waits for a port that is taken, as by an outgoing
// connection of another process, which passes. Only tests change it.
var portWait = 30 * time.Second

// take listens, and waits for a port that is taken.
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
			return nil, &millrace.Error{Reason: millrace.ReasonUnavailable, Field: p.field, Detail: fmt.Sprintf("%s is taken by another process, and was for %v", p.addr, portWait), WayOut: "end that process, or name another port"}
		case <-time.After(250 * time.Millisecond):
		}
	}
}

// closed is a listener that hangs up on who calls until somebody accepts. Who
// calls too early hears so at once and asks elsewhere, as if nobody listened.
type closed struct {
	net.Listener
	deadline func(time.Time) error
	open     sync.Once
	closed   chan struct{} // when nothing is hung up on any more
}

func newClosed(l net.Listener) net.Listener {
	tcp, ok := l.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return l
	}
	d := &closed{Listener: l, deadline: tcp.SetDeadline, closed: make(chan struct{})}
	go d.hangUp()
	return d
}

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
		_ = d.deadline(time.Now()) // of a listener that is closed Accept tells
		<-d.closed
		_ = d.deadline(time.Time{})
	})
	return d.Listener.Accept()
}
