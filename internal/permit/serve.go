package permit

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/millrace/millrace/internal/rpcerr"
)

// ServerOptions let a server of gRPC know who calls, and refuse by the headers
// of a call alone who may not. next judges what is let in; nil: nobody does.
// Without a policy they are next alone.
func (p *Policy) ServerOptions(next tap.ServerInHandle) []grpc.ServerOption {
	if p == nil && next == nil {
		return nil
	}
	if p == nil {
		return []grpc.ServerOption{grpc.InTapHandle(next)}
	}
	return []grpc.ServerOption{grpc.Creds(handshaken{}), grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
		ctx, err := p.admit(ctx, info)
		if err != nil || next == nil {
			return ctx, err
		}
		return next(ctx, info)
	})}
}

func (p *Policy) admit(ctx context.Context, info *tap.Info) (context.Context, error) {
	var conn *tls.ConnectionState
	if from, ok := peer.FromContext(ctx); ok {
		if t, ok := from.AuthInfo.(credentials.TLSInfo); ok {
			conn = &t.State
		}
	}
	authorization := ""
	if values := info.Header.Get("authorization"); len(values) > 0 {
		authorization = values[0]
	}
	who, err := p.Identify(conn, authorization)
	if err == nil {
		err = p.Allow(who, info.FullMethodName)
	}
	if err != nil {
		return nil, rpcerr.Status(err)
	}
	return With(ctx, who), nil
}

// Handler refuses who may not, before next. Without a policy it is next.
func (p *Policy) Handler(next http.Handler) http.Handler {
	if p == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, err := p.Identify(r.TLS, r.Header.Get("authorization"))
		if err == nil {
			err = p.Allow(who, r.URL.Path)
		}
		if err != nil {
			rpcerr.WriteProblem(w, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(With(r.Context(), who)))
	})
}

// handshaken are the credentials of a server whose listener has TLS already:
// they find it below what else wraps a connection.
type handshaken struct{}

// ServerHandshake implements credentials.TransportCredentials.
func (handshaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	t := tlsOf(c)
	if t == nil {
		return c, plain{}, nil
	}
	if err := t.Handshake(); err != nil { // within the deadline that the server has set
		return nil, nil, err
	}
	return c, credentials.TLSInfo{State: t.ConnectionState(), CommonAuthInfo: credentials.CommonAuthInfo{SecurityLevel: credentials.PrivacyAndIntegrity}}, nil
}

// tlsOf returns the connection with TLS that c wraps, or nil.
func tlsOf(c net.Conn) *tls.Conn {
	for {
		if t, ok := c.(*tls.Conn); ok {
			return t
		}
		below, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return nil
		}
		c = below.NetConn()
	}
}

// plain is of a connection without TLS.
type plain struct{ credentials.CommonAuthInfo }

// AuthType implements credentials.AuthInfo.
func (plain) AuthType() string { return "plain" }

// ClientHandshake implements credentials.TransportCredentials; nobody calls it.
func (handshaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	panic("permit: credentials of a server")
}

// Info implements credentials.TransportCredentials.
func (handshaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (handshaken) Clone() credentials.TransportCredentials { return handshaken{} }

// OverrideServerName implements credentials.TransportCredentials.
func (handshaken) OverrideServerName(string) error { return nil }
