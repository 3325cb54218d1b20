package dial

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/millrace/millrace/internal/secure"
)

// users is an etcd that knows one password.
type users struct {
	etcdserverpb.UnimplementedAuthServer
	tries    int
	password string
	off      bool // it has no users
}

func (u *users) Authenticate(_ context.Context, r *etcdserverpb.AuthenticateRequest) (*etcdserverpb.AuthenticateResponse, error) {
	u.tries++
	if u.off {
		return nil, rpctypes.ErrGRPCAuthNotEnabled
	}
	if r.Password != u.password {
		return nil, rpctypes.ErrGRPCAuthFailed
	}
	return &etcdserverpb.AuthenticateResponse{Token: "token of " + u.password}, nil
}

// serve returns an etcd whose password is "right", and a connection to it.
func serve(t *testing.T) (*users, *grpc.ClientConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	etcd, server := &users{password: "right"}, grpc.NewServer()
	etcdserverpb.RegisterAuthServer(server, etcd)
	go server.Serve(l)
	t.Cleanup(server.Stop)
	cc, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cc.Close() })
	return etcd, cc
}

// secured is serve, with a login that has the password.
func secured(t *testing.T) (*users, *grpc.ClientConn, *login) {
	t.Helper()
	etcd, cc := serve(t)
	of := secure.Login{Username: "millrace", Password: "right"}
	source, err := of.Open(accessField, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return etcd, cc, &login{user: "millrace", password: source}
}

// A password that etcd refused is not tried with every call; another at once.
func TestARefusedPasswordRests(t *testing.T) {
	etcd, cc := serve(t)
	file := filepath.Join(t.TempDir(), "password")
	write := func(password string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(password), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("wrong")
	of := secure.Login{Username: "millrace", PasswordFile: file}
	source, err := of.Open(accessField, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	in := &login{user: "millrace", password: source}
	for range 50 {
		if _, _, err := in.with(t.Context(), cc, "", false); !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) {
			t.Fatalf("a wrong password: %v", err)
		}
	}
	if etcd.tries != 1 {
		t.Errorf("etcd was asked %d times", etcd.tries)
	}
	write("right")
	const old, next = "token of right", "token of next"
	if _, token, err := in.with(t.Context(), cc, "", false); err != nil || token != old {
		t.Errorf("the right one: %q, %v", token, err)
	}
	if in.mu.refusal.err != nil {
		t.Errorf("it is still refused: %v", in.mu.refusal.err)
	}

	// The file has the next before etcd does: the token of before goes on until it ends.
	write("next")
	for range 50 {
		if _, token, err := in.with(t.Context(), cc, old, false); err != nil || token != old {
			t.Fatalf("with the next password: %q, %v", token, err)
		}
	}
	if etcd.tries != 3 {
		t.Errorf("etcd was asked %d times", etcd.tries)
	}
	etcd.password = "next"
	if _, token, err := in.with(t.Context(), cc, old, true); err != nil || token != next {
		t.Errorf("once etcd has it too: %q, %v", token, err)
	}
	etcd.password = "another"
	for range 50 {
		if _, _, err := in.with(t.Context(), cc, next, true); !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) {
			t.Fatalf("of a token that has ended: %v", err)
		}
	}
	if etcd.tries != 5 {
		t.Errorf("etcd was asked %d times", etcd.tries)
	}
}

// Tries of a refused password come at ever longer times, up to a bound.
func TestTriesOfAPassword(t *testing.T) {
	var r refusal
	now, refused := time.Now(), rpctypes.ErrGRPCAuthFailed
	for _, most := range []time.Duration{1, 2, 4, 8, 16, 16, 16} {
		r.after("wrong", refused, now)
		wait := r.until.Sub(now)
		if most *= time.Second; wait < most/2 || wait > most*3/2 {
			t.Errorf("the next after %s, of %s", wait, most)
		}
		if r.of("wrong", now) == nil || r.of("another", now) != nil || r.of("wrong", r.until) != nil {
			t.Errorf("it rests wrongly: %+v", r)
		}
		now = r.until
	}
	r.after("another", refused, now)
	if wait := r.until.Sub(now); wait > 2*time.Second {
		t.Errorf("another password waits %s", wait)
	}
	r.after("another", nil, now)
	if r.of("another", now) != nil {
		t.Error("one that is taken rests")
	}
}
