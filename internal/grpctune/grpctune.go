// Package grpctune has the credentials of all gRPC servers and clients in Millrace, and
// options that make a call cheaper.
package grpctune

import (
	"context"
	"net"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
)

// Flow control windows, of a stream and of a connection. They are fixed: otherwise
// gRPC estimates the bandwidth of each busy connection by a ping and its answer,
// which take a tenth of the time of a small call. At a round trip of a millisecond
// a stream can carry 8 Gbit/s, and a connection 16 times as much.
const (
	streamWindowBytes = 1 << 20
	connWindowBytes   = 16 << 20
)

// Server returns options of a server.
func Server() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.StaticStreamWindowSize(streamWindowBytes), grpc.StaticConnWindowSize(connWindowBytes),
		// These goroutines stay, so that their stacks are large enough already. To
		// grow a stack takes a tenth of the time of a small call. If all of them are
		// busy, a call gets a goroutine of its own.
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

// Reconnect returns the option by which a client soon uses a server that is back: it
// dials a lost server about every two seconds. The pauses of gRPC's default grow to two
// minutes.
func Reconnect() grpc.DialOption {
	return grpc.WithConnectParams(grpc.ConnectParams{
		Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
		MinConnectTimeout: 2 * time.Second,
	})
}

// lostAfter is how long bytes that were sent may stay without the server's confirmation.
// After that the connection is given up. A machine that vanishes does not close its
// connections. Without this limit the operating system would send the same bytes again for a
// quarter of an hour, and a client would send calls to the server all that time.
const lostAfter = 10 * time.Second

// dial connects to addr over TCP, with giveUp and tune.
func dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{Control: giveUp}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return tune(c), nil
}

// Listen listens on a TCP address as [net.Listen] does, for servers of gRPC and of HTTP. It
// tunes the connections that it accepts; see tune.
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
