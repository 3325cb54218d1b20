package permit

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/tap"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/rpcerr"
)

// ServerOptions returns options with which a gRPC server identifies callers, and refuses a
// call by its headers alone if the caller may not make it. Permitted calls are then passed to
// next, unless it is nil. The server is for the roles in work and for operators.
// Connections of other roles are closed after a while, though they may ask for its health.
// Without a policy everything is permitted.
func (p *Policy) ServerOptions(next tap.ServerInHandle, work ...Role) []grpc.ServerOption {
	work = append(slices.Clip(work), Operator)
	return []grpc.ServerOption{grpc.Creds(handshaken{p, work}), grpc.InTapHandle(func(ctx context.Context, info *tap.Info) (context.Context, error) {
		ctx, err := p.admit(ctx, info, work)
		if err != nil || next == nil {
			return ctx, err
		}
		return next(ctx, info)
	})}
}

func (p *Policy) admit(ctx context.Context, info *tap.Info, work []Role) (context.Context, error) {
	var by handshake
	if from, ok := peer.FromContext(ctx); ok {
		by, _ = from.AuthInfo.(handshake)
	}
	authorization := ""
	if values := info.Header.Get("authorization"); len(values) > 0 {
		authorization = values[0]
	}
	ctx, err := p.enter(door.With(ctx, by.conn), by.tls, authorization, info.FullMethodName, work)
	if err != nil {
		return nil, rpcerr.Status(err)
	}
	return ctx, nil
}

// enter returns ctx with the identity of the caller, or the refusal of the call. If the
// caller has one of the roles in work (nil: in any case), it tells the connection's door (see
// package door) that the connection may stay.
func (p *Policy) enter(ctx context.Context, conn *tls.ConnectionState, authorization, call string, work []Role) (context.Context, error) {
	through := door.From(ctx)
	if p == nil {
		through.Let("")
		return ctx, nil
	}
	who, err := p.Identify(conn, authorization)
	if err == nil {
		err = p.admits(who, conn, call)
	}
	if err != nil {
		reason := door.Forbidden
		if who.Name == "" {
			reason = door.Unknown
		}
		through.Refused(reason, err)
		return nil, err
	}
	if (work == nil || who.is(work)) && !through.Let(who.Name) {
		err := &millrace.Error{
			Reason: millrace.ReasonOverloaded, Field: "connections", Detail: fmt.Sprintf("%s has %d connections to this port, and no more are for one identity", who, through.Share()),
			WayOut: "use connections again, and end those of which there is no need; or give the port more, twice what one identity needs",
		}
		through.Refused(door.Identity, err)
		return nil, err
	}
	return With(ctx, who), nil
}

// origins detects requests that a browser sends because a page of another site makes it. Such
// a request comes with the certificate of the person at the browser, and from that machine.
var origins = http.NewCrossOriginProtection()

// Handler returns a handler that refuses requests that are not permitted, and requests that
// browsers send for pages of other sites, and passes all others to next. Without a policy
// everybody is permitted. A connection may stay after a permitted request of a role in work
// or of an operator; without work, after any permitted request.
func (p *Policy) Handler(next http.Handler, work ...Role) http.Handler {
	if len(work) > 0 {
		work = append(slices.Clip(work), Operator)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if reason, err := ofAnotherSite(r); err != nil {
			door.From(r.Context()).Refused(reason, err)
			rpcerr.WriteProblem(w, err)
			return
		}
		ctx, err := p.enter(r.Context(), r.TLS, r.Header.Get("authorization"), r.URL.Path, work)
		if err != nil {
			var e *millrace.Error
			if errors.As(err, &e) && e.Reason == millrace.ReasonOverloaded { // the identity has too many connections
				w.Header().Set("Connection", "close")
			}
			rpcerr.WriteProblem(w, err)
			return
		}
		next.ServeHTTP(w, r.WithContext(ctx))
	})
}

// ofAnotherSite returns the refusal of a request that a browser sends for a page of another
// site, else nil. Such a request names a host that the page made resolve to this machine, or
// its headers tell the other site. A person who follows a link to this port is not refused.
func ofAnotherSite(r *http.Request) (door.Reason, error) {
	if !door.From(r.Context()).Knows(r.Host) {
		return door.Host, &millrace.Error{
			Reason: millrace.ReasonForbidden, Field: "host", Detail: fmt.Sprintf("%.100q is no name of this port: a web page could have had it lead here", r.Host),
			WayOut: "ask it by an address or as localhost; a role takes more names by hosts of its configuration",
		}
	}
	asked := *r
	if r.Header.Get("Sec-Fetch-Mode") != "navigate" || r.Header.Get("Sec-Fetch-Dest") != "document" {
		asked.Method = http.MethodPost // so that a GET is checked as well
	}
	if origins.Check(&asked) != nil {
		return door.Origin, &millrace.Error{Reason: millrace.ReasonForbidden, Field: "origin", Detail: "a browser sends this for a page of another site", WayOut: "send it by something else than a browser"}
	}
	return "", nil
}

// handshaken is the gRPC credentials of a server whose listener does TLS itself. It finds the
// TLS connection below whatever else wraps it.
type handshaken struct {
	policy *Policy // nil: everything is permitted
	work   []Role  // the roles that the server is for
}

// ServerHandshake implements credentials.TransportCredentials.
func (s handshaken) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	h := handshake{conn: door.Of(c)}
	t := tlsOf(c)
	if t == nil {
		s.shown(h)
		return c, h, nil
	}
	if err := t.Handshake(); err != nil { // within the deadline that the server has set
		h.conn.Failed(err)
		return nil, nil, err
	}
	state := t.ConnectionState()
	h.tls, h.SecurityLevel = &state, credentials.PrivacyAndIntegrity
	s.shown(h)
	return c, h, nil
}

// shown tells the door, right after the handshake, that a connection may stay, if that is
// known before its first request: everything is permitted, or its certificate has a role that
// the server is for. If callers may send tokens, a TLS connection gets more time for its
// first request. Any other connection may send requests as well, but is closed after a while.
func (s handshaken) shown(h handshake) {
	if s.policy == nil {
		h.conn.Let("")
		return
	}
	who := s.policy.certified(h.tls)
	switch {
	case who.is(s.work):
		h.conn.Let(who.Name) // if the identity has too many connections, its next request is refused by enter
	case h.tls != nil && s.policy.byToken():
		h.conn.Speaks()
	}
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

// handshake is what a connection has shown.
type handshake struct {
	credentials.CommonAuthInfo
	tls  *tls.ConnectionState // nil: plain text
	conn *door.Conn           // nil: the listener is no door
}

// AuthType implements credentials.AuthInfo.
func (h handshake) AuthType() string {
	if h.tls == nil {
		return "plain"
	}
	return "tls"
}

// ClientHandshake implements credentials.TransportCredentials. It is never called.
func (handshaken) ClientHandshake(context.Context, string, net.Conn) (net.Conn, credentials.AuthInfo, error) {
	panic("permit: credentials of a server")
}

// Info implements credentials.TransportCredentials.
func (handshaken) Info() credentials.ProtocolInfo {
	return credentials.ProtocolInfo{SecurityProtocol: "tls"}
}

// Clone implements credentials.TransportCredentials.
func (s handshaken) Clone() credentials.TransportCredentials { return s }

// OverrideServerName implements credentials.TransportCredentials.
func (handshaken) OverrideServerName(string) error { return nil }
