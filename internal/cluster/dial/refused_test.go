package dial

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// A refusal of etcd is told as a fault of the key of the configuration that mends it.
func TestRefused(t *testing.T) {
	own := &millrace.Error{Field: accessField + ".tls"}
	for err, want := range map[error]struct{ field, wayOut string }{
		rpctypes.ErrGRPCAuthFailed:       {"connect.etcd.username", "correct the user"},
		rpctypes.ErrGRPCUserEmpty:        {"connect.etcd.username", "who asks"},
		rpctypes.ErrGRPCUserNotFound:     {"connect.etcd.username", "who asks"},
		rpctypes.ErrGRPCPermissionDenied: {"connect.etcd.username", "grant"},
		rpctypes.ErrGRPCNoSpace:          {"etcd", "compact, defrag"},
		own:                              {"connect.etcd.tls", ""},
		status.Error(codes.Unavailable, "connection error: desc = \"transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority\""): {"connect.etcd.tls", ""},
		fmt.Errorf("x: %w", rpctypes.ErrAuthFailed): {"connect.etcd.username", "correct the user"}, fmt.Errorf("x: %w", rpctypes.ErrUserEmpty): {"connect.etcd.username", "who asks"}, fmt.Errorf("x: %w", rpctypes.ErrUserNotFound): {"connect.etcd.username", "who asks"},
		fmt.Errorf("x: %w", rpctypes.ErrPermissionDenied): {"connect.etcd.username", "grant"}, fmt.Errorf("x: %w", rpctypes.ErrNoSpace): {"etcd", "compact, defrag"},
		rpctypes.ErrGRPCCompacted: {}, errors.New("x"): {}, &millrace.Error{Field: "connect.etcdother"}: {},
	} {
		got := Refused(err)
		if (got == nil) != (want.field == "") || got != nil && (got.Field != want.field || !strings.Contains(got.WayOut, want.wayOut)) {
			t.Errorf("%v: %v", err, got)
		}
	}
	if Refused(own) != own {
		t.Error("a refusal is not told as it is")
	}
}

// Every fault of an access is told; beyond loopback plain text must be allowed.
func TestApply(t *testing.T) {
	a := authority.New(t)
	for _, c := range []struct {
		name    string
		a       Access
		at      []string
		options int
		want    []string
	}{
		{"nothing", Access{}, []string{"127.0.0.1:2379"}, 0, nil},
		{"one beyond loopback", Access{}, []string{"127.0.0.1:2379", "etcd:2379"}, 0, []string{"connect.etcd.insecure"}},
		{"one that is allowed", Access{Insecure: true}, []string{"etcd:2379"}, 0, nil},
		{"TLS", Access{TLS: a.Issue("me")}, []string{"etcd:2379"}, 1, nil},
		{"a user", Access{Login: secure.Login{Username: "me", Password: "pw"}}, []string{"127.0.0.1:2379"}, 2, nil},
		{"no authority, and no password", Access{TLS: secure.TLS{CA: "/none"}, Login: secure.Login{Username: "me"}}, nil, 0, []string{"connect.etcd.tls", "connect.etcd.password"}},
	} {
		cfg := clientv3.Config{Endpoints: c.at}
		err := c.a.Apply(&cfg, slog.New(slog.DiscardHandler))
		if (err == nil) != (c.want == nil) || slices.ContainsFunc(c.want, func(s string) bool { return !strings.Contains(err.Error(), s) }) || len(cfg.DialOptions) != c.options {
			t.Errorf("%s: %v, with %d options", c.name, err, len(cfg.DialOptions))
		}
	}
}

// A call is made once more if etcd does not take its token, and only once; a stream begins
// with a new token.
func TestTokensOfCalls(t *testing.T) {
	ended, old := rpctypes.ErrGRPCInvalidAuthToken, rpctypes.ErrGRPCAuthOldRevision
	for _, c := range []struct {
		name    string
		answers []error // of one try after another
		tries   int
		want    error
	}{
		{"it is taken", []error{nil}, 1, nil},
		{"it has ended", []error{ended, nil}, 2, nil},
		{"it is of an old revision", []error{old, nil}, 2, nil},
		{"it has ended, again and again", []error{ended, ended, nil}, 2, ended},
		{"another fault", []error{rpctypes.ErrGRPCNoSpace, nil}, 1, rpctypes.ErrGRPCNoSpace},
	} {
		etcd, cc, in := secured(t)
		var tokens []string
		invoke := func(ctx context.Context, method string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			md, _ := metadata.FromOutgoingContext(ctx)
			tokens = append(tokens, md.Get(rpctypes.TokenFieldNameGRPC)...)
			return c.answers[len(tokens)-1]
		}
		err := in.unary(t.Context(), "/x", nil, nil, cc, invoke)
		if !errors.Is(err, c.want) || len(tokens) != c.tries || etcd.tries != c.tries || tokens[0] != "token of right" {
			t.Errorf("%s: %v, after %q and %d questions", c.name, err, tokens, etcd.tries)
		}
		opened := false
		open := func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
			md, _ := metadata.FromOutgoingContext(ctx)
			opened = len(md.Get(rpctypes.TokenFieldNameGRPC)) == 1
			return nil, nil
		}
		if _, err := in.stream(t.Context(), nil, cc, "/y", open); err != nil || !opened || etcd.tries != c.tries+1 {
			t.Errorf("%s: a stream: %v, opened %v, after %d questions", c.name, err, opened, etcd.tries)
		}
	}
	etcd, cc, in := secured(t)
	etcd.password = "other"
	none := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		t.Error("it is called without a token")
		return nil
	}
	if err := in.unary(t.Context(), "/x", nil, nil, cc, none); !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) {
		t.Errorf("a wrong password: %v", err)
	}
	if _, err := in.stream(t.Context(), nil, cc, "/y", nil); !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) {
		t.Errorf("a stream with a wrong password: %v", err)
	}
	called := false
	if err := in.unary(t.Context(), authenticate, nil, nil, cc, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		called = true
		return nil
	}); err != nil || !called {
		t.Errorf("a question for a token needs one itself: %v", err)
	}
	etcd.off = true
	in.mu.refusal = refusal{}
	ctx := t.Context()
	if as, token, err := in.with(ctx, cc, "", false); as != ctx || token != "" || err != nil {
		t.Errorf("an etcd without users: %q, %v", token, err)
	}
}

// Calls and streams are counted by method and by what became of them.
func TestMetrics(t *testing.T) {
	m, fault := NewMetrics(), status.Error(codes.NotFound, "")
	for _, want := range []error{nil, nil, fault} {
		if err := m.unary(t.Context(), "/call", nil, nil, nil, func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return want }); err != want {
			t.Errorf("a call: %v, want %v", err, want)
		}
		if _, err := m.stream(t.Context(), nil, nil, "/stream", func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
			return nil, want
		}); err != want {
			t.Errorf("a stream: %v, want %v", err, want)
		}
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(m.All()...)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, x := range f.GetMetric() {
			name := f.GetName()
			for _, l := range x.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = x.GetCounter().GetValue() + float64(x.GetHistogram().GetSampleCount())
		}
	}
	for name, want := range map[string]float64{
		"millrace_etcd_calls_total OK /call": 2, "millrace_etcd_calls_total NotFound /call": 1, "millrace_etcd_call_seconds /call": 3,
		"millrace_etcd_streams_total OK /stream": 2, "millrace_etcd_streams_total NotFound /stream": 1,
	} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v of %v", name, got[name], want, got)
		}
	}
	if len(m.Options()) != 2 {
		t.Error("calls or streams are not counted")
	}
}
