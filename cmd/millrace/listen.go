package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/intake"
	"github.com/millrace/millrace/internal/grpctune"
)

// loopbackOnly refuses an address that others could reach, where nothing
// would authenticate them.
func loopbackOnly(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%q is no host:port: %w", addr, err)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s is reachable by others: give the role certificates (tls: cert, key, ca), or say insecure: true if the network is guarded by other means", addr)
}

// Security is how a role's ports and calls are protected. Without it a role
// listens on loopback only.
type Security struct {
	TLS struct {
		Cert string `yaml:"cert"` // PEM files of the role's certificate and key
		Key  string `yaml:"key"`
		CA   string `yaml:"ca"` // whose certificates callers and callees must show
	} `yaml:"tls"`
	Insecure bool `yaml:"insecure"` // listen anywhere without TLS
}

func (s *Security) config() (*tls.Config, error) {
	if s.TLS.Cert == "" && s.TLS.Key == "" && s.TLS.CA == "" {
		return nil, nil
	}
	if s.TLS.Cert == "" || s.TLS.Key == "" || s.TLS.CA == "" {
		return nil, errors.New("tls: cert, key and ca go together")
	}
	pair, err := tls.LoadX509KeyPair(s.TLS.Cert, s.TLS.Key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	pem, err := os.ReadFile(s.TLS.CA)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls: %s holds no certificate", s.TLS.CA)
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{pair},
		RootCAs: pool, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		NextProtos: []string{"h2", "http/1.1"},
	}, nil
}

// port is where a role listens.
type port struct {
	field   string // of the configuration
	addr    string // host:port
	conns   int    // at a time; 0: any number
	refusal string // that others are told by, if they speak plainly
}

// listen takes a port: with mutual TLS if there are certificates, else on
// loopback or as insecure. A role takes its ports before it waits for anything;
// until it serves one, that hangs up on who calls.
func (s *Security) listen(ctx context.Context, p port) (net.Listener, error) {
	c, err := s.config()
	if err != nil {
		return nil, err
	}
	if c == nil && !s.Insecure {
		if err := loopbackOnly(p.addr); err != nil {
			return nil, fmt.Errorf("%s: %w", p.field, err)
		}
	}
	l, err := p.take(ctx)
	if err != nil {
		return nil, err
	}
	conns, refusal := p.conns, p.refusal
	if c != nil {
		refusal = "" // it would have to be encrypted
	}
	if conns > 0 {
		l = intake.Cap(l, conns, refusal) // below TLS, whose handshake it bounds too
	}
	if c == nil {
		return l, nil
	}
	return tls.NewListener(l, c), nil
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
			return newDoor(l), nil
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

// door is a listener that hangs up on who calls until somebody accepts. Who
// calls too early hears so at once and asks elsewhere, as if nobody listened.
type door struct {
	net.Listener
	deadline func(time.Time) error
	open     sync.Once
	closed   chan struct{} // when nothing is hung up on any more
}

func newDoor(l net.Listener) net.Listener {
	tcp, ok := l.(interface{ SetDeadline(time.Time) error })
	if !ok {
		return l
	}
	d := &door{Listener: l, deadline: tcp.SetDeadline, closed: make(chan struct{})}
	go d.hangUp()
	return d
}

func (d *door) hangUp() {
	defer close(d.closed)
	for {
		c, err := d.Listener.Accept()
		if err != nil {
			return
		}
		_ = c.Close()
	}
}

// Accept implements net.Listener. The first call opens the door.
func (d *door) Accept() (net.Conn, error) {
	d.open.Do(func() {
		_ = d.deadline(time.Now()) // of a listener that is closed Accept tells
		<-d.closed
		_ = d.deadline(time.Time{})
	})
	return d.Listener.Accept()
}

// dial is how the role calls others by gRPC.
func (s *Security) dial() (grpc.DialOption, error) {
	c, err := s.config()
	if err != nil {
		return nil, err
	}
	if c == nil {
		return grpc.WithTransportCredentials(insecure.NewCredentials()), nil
	}
	return grpc.WithTransportCredentials(credentials.NewTLS(c)), nil
}
