package grpctune

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// TLS returns credentials of a client that asks for its configuration at each
// handshake, so that certificates may be replaced while it is at work.
func TLS(config func() *tls.Config) credentials.TransportCredentials {
	return fresh{credentials.NewTLS(config()), config}
}

type fresh struct {
	credentials.TransportCredentials
	config func() *tls.Config
}

// ClientHandshake implements credentials.TransportCredentials.
func (f fresh) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	now := f.config()
	return credentials.NewTLS(now).ClientHandshake(ctx, cmp.Or(now.ServerName, authority), c) // etcd's client has an authority for each address
}

// Clone implements credentials.TransportCredentials.
func (f fresh) Clone() credentials.TransportCredentials {
	return fresh{f.TransportCredentials.Clone(), f.config}
}

// Plain returns credentials of a client that speaks plain text, to addresses
// that check allows.
func Plain(check func(addr string) error) credentials.TransportCredentials {
	return plain{insecure.NewCredentials(), check}
}

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
