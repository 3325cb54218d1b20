// Package grpctune has the options of all gRPC servers and clients in Millrace, by which a
// call costs less, and their credentials.
package grpctune

import (
	"context"
	"net"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Flow control windows, of a stream and of a connection. Fixed ones spare the
// ping and its answer by which gRPC otherwise estimates each busy connection's
// bandwidth, a tenth of a small call; these are enough for 10 Gbit/s at a
// round trip of a millisecond.
const (
	streamWindowBytes = 1 << 20
	connWindowBytes   = 16 << 20
)

// Server returns options of a server.
func Server() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.StaticStreamWindowSize(streamWindowBytes), grpc.StaticConnWindowSize(connWindowBytes),
		// Goroutines that stay have stacks that are large enough already, and
		// growing them is a tenth of a small call. When all are busy a call
		// gets a goroutine of its own.
		grpc.NumStreamWorkers(uint32(2 * runtime.GOMAXPROCS(0))),
	}
}

// Client returns options of a client.
func Client() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithStaticStreamWindowSize(streamWindowBytes), grpc.WithStaticConnWindowSize(connWindowBytes),
		grpc.WithContextDialer(dial),
		Reconnect(),
	}
}

// Reconnect returns the option by which a server that is back is used soon: it
// is dialled about every two seconds, while gRPC's default pauses grow to two minutes.
func Reconnect() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
		MinConnectTimeout: 2 * time.Second,
	})
}

// lostAfter is how long a server may leave unconfirmed what was sent to it before its
// connection is given up. A machine that vanishes closes no connection. Without this limit
// the operating system would send the same bytes again for a quarter of an hour, and until
// then a client would go on sending calls to the server.
const lostAfter = 10 * time.Second

func dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{Control: giveUp}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return tune(c), nil
}

// Listen is net.Listen for TCP whose connections are tuned, for servers of gRPC and of HTTP.
func Listen(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	return listener{l.(*net.TCPListener)}, nil
}

type listener struct{ *net.TCPListener }

func (l listener) Accept() (net.Conn, error) {
	c, err := l.TCPListener.Accept()
	if err != nil {
		return nil, err
	}
	return tune(c), nil
}
