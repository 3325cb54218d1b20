package grpctune

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

func health1(t *testing.T, addr string, how credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient(addr, append(Client(), grpc.WithTransportCredentials(how))...)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}

// What a server says of a caller's certificate is heard, each time; who has a good
// one is served, and a certificate that is replaced is shown from then on.
func TestRefusalsAreHeard(t *testing.T) {
	a, other := authority.New(t), authority.New(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.Creds(credentials.NewTLS(a.Server(a.Issue("server", "127.0.0.1"), true))))
	healthv1.RegisterHealthServer(server, health.NewServer())
	go server.Serve(l)
	defer server.Stop()
	as := func(of secure.TLS) credentials.TransportCredentials {
		of.CA = a.CA
		files, err := secure.Open(of, "tls", nil)
		if err != nil {
			t.Fatal(err)
		}
		return Greeted(TLS(files.Client)).Clone()
	}
	me, stranger := as(a.Issue("me")), as(other.Issue("me"))
	for range 50 {
		if err := health1(t, l.Addr().String(), stranger); err == nil || !strings.Contains(err.Error(), "remote error: tls: ") {
			t.Fatalf("a stranger hears %v", err)
		}
	}
	if err := health1(t, l.Addr().String(), me); err != nil {
		t.Errorf("who is known: %v", err)
	}
}

// A server that says nothing is waited for as long as the context lets it.
func TestGreetedEndsWithItsContext(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := Greeted(Plain(func(string) error { return nil })).ClientHandshake(ctx, "", client); err == nil {
		t.Error("greeted by nobody")
	}
}

// Plain text goes where it may.
func TestPlainAsksWhereItGoes(t *testing.T) {
	client, server := net.Pipe()
	defer server.Close()
	if _, _, err := Plain((secure.Plain{}).Check).ClientHandshake(t.Context(), "", client); err == nil {
		t.Error("a pipe is taken for loopback")
	}
}
