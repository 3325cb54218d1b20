package grpctune

import (
	"cmp"
	"context"
	"crypto/tls"
	"io"
	"net"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// TLS returns credentials for a client. They call config at each handshake, so that
// certificates may be replaced while the client runs.
func TLS(config func() *tls.Config) credentials.TransportCredentials {
	return fresh{credentials.NewTLS(config()), config}
}

// fresh are the credentials that TLS returns.
type fresh struct {
	credentials.TransportCredentials
	config func() *tls.Config
}

// ClientHandshake implements credentials.TransportCredentials.
func (f fresh) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	now := f.config()
	return credentials.NewTLS(now).ClientHandshake(ctx, cmp.Or(now.ServerName, authority), c) // a configured name goes first, since etcd's client passes each address as authority
}

// Clone implements credentials.TransportCredentials.
func (f fresh) Clone() credentials.TransportCredentials {
	return fresh{f.TransportCredentials.Clone(), f.config}
}

// Greeted returns credentials for servers that speak first, as those of gRPC in Go do: the
// handshake ends with the server's first byte. In TLS 1.3 the client's handshake ends before
// the server has looked at the client's certificate. If the server then refuses it, the
// client would only find that the connection is closed, and not why.
func Greeted(c credentials.TransportCredentials) credentials.TransportCredentials {
	return greeted{c}
}

// greeted are the credentials that Greeted returns.
type greeted struct {
	credentials.TransportCredentials
}

// ClientHandshake implements credentials.TransportCredentials.
func (g greeted) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	c, info, err := g.TransportCredentials.ClientHandshake(ctx, authority, c)
	if err != nil {
		return nil, nil, err
	}
	late := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	first := make([]byte, 1)
	_, err = io.ReadFull(c, first)
	if !late() {
		err = cmp.Or(ctx.Err(), err)
	}
	if err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return &greetedConn{c, first}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (g greeted) Clone() credentials.TransportCredentials {
	return greeted{g.TransportCredentials.Clone()}
}

// greetedConn is a connection whose first byte was read in the handshake; Read returns it
// first.
type greetedConn struct {
	net.Conn
	first []byte
}

// Read implements net.Conn.
func (c *greetedConn) Read(p []byte) (int, error) {
	if len(c.first) == 0 {
		return c.Conn.Read(p)
	}
	n := copy(p, c.first)
	c.first = c.first[n:]
	return n, nil
}

// Plain returns credentials for a client that speaks plain text. They refuse a connection to
// an address for which check returns an error.
func Plain(check func(addr string) error) credentials.TransportCredentials {
	return plain{insecure.NewCredentials(), check}
}

// plain are the credentials that Plain returns.
type plain struct {
	credentials.TransportCredentials
	check func(addr string) error
}

// ClientHandshake implements credentials.TransportCredentials.
func (p plain) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	if err := p.check(c.RemoteAddr().String()); err != nil {
		return nil, nil, err
	}
	return p.TransportCredentials.ClientHandshake(ctx, authority, c)
}

// Clone implements credentials.TransportCredentials.
func (p plain) Clone() credentials.TransportCredentials {
	return plain{p.TransportCredentials.Clone(), p.check}
}
