package broker

import (
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// listenGRPC serves a broker by gRPC.
func listenGRPC(t *testing.T, b *Broker) (addr string) {
	t.Helper()
	server := grpc.NewServer(b.ServerOptions()...)
	b.RegisterGRPC(server)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = server.Serve(b.Guard(l)) }()
	t.Cleanup(server.Stop)
	return l.Addr().String()
}

// servedGRPC is a connection to a broker.
func servedGRPC(t *testing.T, b *Broker) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(listenGRPC(t, b), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
