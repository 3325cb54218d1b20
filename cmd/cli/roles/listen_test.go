package roles

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker/fanout"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/door"
	"github.com/millrace/millrace/internal/secure/authority"
)

func TestOnlyLoopbackWithoutProtection(t *testing.T) {
	var s reach.Security
	if l, err := listen(t.Context(), &s, port{addr: "0.0.0.0:0"}); err == nil {
		l.Close()
		t.Error("listens everywhere without certificates")
	}
	s.Insecure = true
	l, err := listen(t.Context(), &s, port{addr: "0.0.0.0:0"})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	s.TLS.Cert = "cert.pem"
	if _, err := listen(t.Context(), &s, port{addr: "127.0.0.1:0"}); err == nil {
		t.Error("a certificate without key and CA is accepted")
	}
}

// A name that a web page has lead to a port of loopback is refused, whatever is
// asked, and counted; probes by address, and names of the configuration, are not.
func TestAPageHasNoNameOfItsOwnLeadHere(t *testing.T) {
	all := prometheus.NewRegistry()
	r := &role{told: door.NewRefusals(slog.New(slog.DiscardHandler), all)}
	l, err := r.listen(t.Context(), &Common{Hosts: []string{"feeds.example"}}, port{field: "admin", addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- admin.Serve(ctx, l, r.permit.Handler(http.NotFoundHandler())) }()
	defer func() { cancel(); <-served }()
	clitest.WaitFor(t.Context(), t, "the port to be served", func() bool {
		resp, err := http.Get("http://" + l.Addr().String() + "/metrics")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == http.StatusNotFound
	})
	for host, want := range map[string]int{"evil.example": http.StatusForbidden, "localhost": http.StatusNotFound, "feeds.example": http.StatusNotFound} {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			req, err := http.NewRequest(method, "http://"+l.Addr().String()+"/log", nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = host
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if resp.StatusCode != want || want == http.StatusForbidden && !strings.Contains(string(body), "hosts of its configuration") {
				t.Errorf("%s for %s: %d %s", method, host, resp.StatusCode, body)
			}
		}
	}
	families, err := all.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range families[0].Metric {
		if reason, n := m.Label[1].GetValue(), m.Counter.GetValue(); (reason == "host") != (n == 2) {
			t.Errorf("%v are counted as %s", n, reason)
		}
	}
}

// hears is a log that tells of its first record.
type hears struct {
	slog.Handler
	once *sync.Once
	told chan struct{}
}

func (h hears) Handle(context.Context, slog.Record) error {
	h.once.Do(func() { close(h.told) })
	return nil
}

// A port that is taken is waited for, since what takes it may pass, and then
// told by the field that names it.
func TestATakenPortIsWaitedFor(t *testing.T) {
	was, log := portWait, slog.Default()
	t.Cleanup(func() { portWait = was; slog.SetDefault(log) })
	held, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	h := hears{slog.DiscardHandler, new(sync.Once), make(chan struct{})}
	h.Handler = slog.NewTextHandler(io.Discard, nil)
	slog.SetDefault(slog.New(h))
	p := port{field: "listen", addr: held.Addr().String()}

	portWait = time.Millisecond
	_, err = listen(t.Context(), new(reach.Security), p)
	if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != "listen" || !strings.Contains(e.Detail, "another process has held "+p.addr) || e.WayOut == "" {
		t.Fatalf("a taken port: %v", err)
	}

	portWait, h.once, h.told = was, new(sync.Once), make(chan struct{})
	slog.SetDefault(slog.New(h))
	go func() {
		<-h.told // it has been seen to be taken
		_ = held.Close()
	}()
	l, err := listen(t.Context(), new(reach.Security), p)
	if err != nil {
		t.Fatalf("a port that was taken for a moment: %v", err)
	}
	_ = l.Close()
}

// A port that is taken and not served yet hangs up, so that nobody waits for it.
func TestAPortHangsUpUntilItIsServed(t *testing.T) {
	l, err := listen(t.Context(), new(reach.Security), port{field: "listen", addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	answer := func() string {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err.Error()
		}
		defer c.Close()
		body, _ := io.ReadAll(c)
		return string(body)
	}
	if got := answer(); got != "" {
		t.Errorf("before it is served: %q", got)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "here")
			_ = c.Close()
		}
	}()
	// What called before the first Accept may still be hung up on.
	clitest.WaitFor(t.Context(), t, "the port to be served", func() bool { return answer() == "here" })
}

// TestMutualTLS serves a caller with a certificate of the CA, and nobody else.
func TestMutualTLS(t *testing.T) {
	s := certificates(t)
	l, err := listen(t.Context(), s, port{addr: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	healthpb.RegisterHealthServer(server, health.NewServer())
	go server.Serve(l)
	defer server.Stop()

	call := func(how grpc.DialOption, options ...grpc.CallOption) error {
		conn, err := grpc.NewClient(l.Addr().String(), how)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, err = healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{}, options...)
		return err
	}
	how, err := s.Dial()
	if err != nil {
		t.Fatal(err)
	}
	// Until the server accepts, the port hangs up.
	if err := call(how, grpc.WaitForReady(true)); err != nil {
		t.Fatalf("with a certificate: %v", err)
	}
	if call(grpc.WithTransportCredentials(insecure.NewCredentials())) == nil {
		t.Error("a caller without TLS is served")
	}
	stranger := certificates(t) // of another CA, who trusts ours
	stranger.TLS.CA = s.TLS.CA
	if how, err = stranger.Dial(); err != nil {
		t.Fatal(err)
	}
	if call(how) == nil {
		t.Error("a caller with a certificate of another CA is served")
	}
}

// certificates are a role's certificate for 127.0.0.1 or other addresses, of a
// CA of its own.
func certificates(t *testing.T, addrs ...string) *reach.Security {
	t.Helper()
	if len(addrs) == 0 {
		addrs = []string{"127.0.0.1"}
	}
	return &reach.Security{TLS: authority.New(t).Issue("role", addrs...)}
}

// Whoever takes a node's address, or has itself registered under its name, is
// not asked anything without a certificate of the cluster's CA for that
// address (input 115).
func TestAHijackedAddressIsRefused(t *testing.T) {
	own, elsewhere, stranger := certificates(t), certificates(t, "127.0.0.2"), certificates(t)
	both, err := os.ReadFile(own.TLS.CA)
	if err != nil {
		t.Fatal(err)
	}
	more, err := os.ReadFile(elsewhere.TLS.CA)
	if err != nil {
		t.Fatal(err)
	}
	caller := *own // who trusts own and elsewhere
	caller.TLS.CA = filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(caller.TLS.CA, append(both, more...), 0o600); err != nil {
		t.Fatal(err)
	}
	how, err := caller.Dial()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		s    *reach.Security
		asks bool
	}{"the node": {own, true}, "another CA": {stranger, false}, "another address": {elsewhere, false}, "no TLS": {new(reach.Security), false}} {
		// An impostor lets everybody in.
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if of, err := server(c.s, tls.NoClientCert); err != nil {
			t.Fatal(err)
		} else if of != nil {
			l = tls.NewListener(l, of)
		}
		var asked atomic.Int32
		server := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error {
			asked.Add(1)
			return nil
		}))
		go server.Serve(l)
		node, err := fanout.DialGRPC(how)(topology.Node{ID: "node-1", Addr: l.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := node.Query(t.Context(), &nodev1.QueryRequest{}); err == nil || (asked.Load() > 0) != c.asks {
			t.Errorf("%s: answered %v, asked %d times", name, err, asked.Load())
		}
		server.Stop()
	}
}
