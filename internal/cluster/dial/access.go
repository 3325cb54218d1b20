// Package dial is how an etcd is called: with which TLS, as which user, and counted by
// method. It knows nothing about the keys that are read and written.
package dial

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/secure"
)

// Access is how an etcd is reached: TLS, and a user with a password. Its zero value is
// plain text, on loopback alone, without a user.
type Access struct {
	TLS          secure.TLS `yaml:"tls,omitempty"`
	secure.Login `yaml:",inline"`
	Insecure     bool `yaml:"insecure,omitempty" doc:"true: plain text beyond loopback, where other means guard the network"`
}

// accessField is the key of an Access in a role's configuration, for errors.
const accessField = "connect.etcd"

// Apply adds to c the options that TLS and the login need. It returns every fault of a at
// once, joined; without TLS, an endpoint beyond loopback is one unless a.Insecure.
func (a Access) Apply(c *clientv3.Config, log *slog.Logger) error {
	return errors.Join(a.encrypt(c, log), a.identify(c, log))
}

func (a Access) encrypt(c *clientv3.Config, log *slog.Logger) error {
	if !a.TLS.On() {
		plain := secure.Plain{Field: accessField, Insecure: a.Insecure}
		for _, addr := range c.Endpoints {
			if err := plain.Check(addr); err != nil {
				return err
			}
		}
		return nil
	}
	files, err := secure.Open(a.TLS, accessField+".tls", log)
	if err != nil {
		return err
	}
	c.DialOptions = append(c.DialOptions, grpc.WithTransportCredentials(grpctune.TLS(files.Client)))
	return nil
}

func (a Access) identify(c *clientv3.Config, log *slog.Logger) error {
	if !a.Login.On() {
		return nil
	}
	password, err := a.Login.Open(accessField, log)
	if err != nil {
		return err
	}
	l := &login{user: a.Username, password: password}
	c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(l.unary), grpc.WithChainStreamInterceptor(l.stream))
	return nil
}

// login sends a token with every call, and asks etcd for one with the password that the
// file has now. etcd's own client keeps one password for its life, and with a password it
// cannot be made while etcd is away.
type login struct {
	user     string
	password *secure.Source
	mu       struct {
		sync.Mutex
		token   string // empty: it has to be asked for
		refusal refusal
	}
}

// refusal says that etcd refused a password, and until when it is not tried again. etcd
// takes a tenth of a second of a processor to check a password, on purpose. All roles have
// the same file: if all tried all the time, etcd would have no time for other clients.
type refusal struct {
	err      error // nil: no password was refused
	password string
	times    int // refusals of this password in a row
	until    time.Time
}

// of returns the refusal of a password if it must not be tried yet, else nil.
func (r *refusal) of(password string, now time.Time) error {
	if r.password != password || !now.Before(r.until) {
		return nil
	}
	return r.err
}

// The first and the longest pause between tries of a password that was refused. The pause
// doubles after each, and is drawn from half of it to one and a half times it.
const (
	firstTry = time.Second
	lastTry  = 16 * time.Second
)

// after notes how a try of a password ended.
func (r *refusal) after(password string, err error, now time.Time) {
	if !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed) {
		*r = refusal{}
		return
	}
	if r.password != password {
		r.times = 0
	}
	wait := min(firstTry<<min(r.times, 10), lastTry)
	*r = refusal{err, password, r.times + 1, now.Add(wait/2 + rand.N(wait))}
}

const authenticate = "/etcdserverpb.Auth/Authenticate"

// with returns ctx with a token, and the token. If the present token is stale it asks for
// another, but goes on with the stale one if etcd refuses the password. ended says that
// etcd does not take the stale token any more. Then it is not used, and a password that was
// refused is tried again: etcd may have another password by now. If etcd has no users, ctx
// comes back as it is.
func (l *login) with(ctx context.Context, cc *grpc.ClientConn, stale string, ended bool) (context.Context, string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if ended && l.mu.token == stale {
		l.mu.token, l.mu.refusal = "", refusal{}
	}
	if l.mu.token == "" || l.mu.token == stale {
		token, err := l.ask(ctx, cc)
		switch {
		case errors.Is(rpctypes.Error(err), rpctypes.ErrAuthNotEnabled):
			return ctx, "", nil
		case err == nil:
			l.mu.token = token
		case l.mu.token == "" || !errors.Is(rpctypes.Error(err), rpctypes.ErrAuthFailed):
			return nil, "", err
		}
	}
	return metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, l.mu.token), l.mu.token, nil
}

// ask asks etcd for a token, unless the password was refused and must not be tried yet. The
// caller holds mu.
func (l *login) ask(ctx context.Context, cc *grpc.ClientConn) (string, error) {
	password := l.password.Current()
	if err := l.mu.refusal.of(password, time.Now()); err != nil {
		return "", err
	}
	var resp etcdserverpb.AuthenticateResponse
	err := cc.Invoke(ctx, authenticate, &etcdserverpb.AuthenticateRequest{Name: l.user, Password: password}, &resp)
	l.mu.refusal.after(password, err, time.Now())
	return resp.Token, err
}

// unary calls with a token, and once more with a new one if etcd does not take the first.
func (l *login) unary(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if method == authenticate {
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	stale := ""
	for {
		as, token, err := l.with(ctx, cc, stale, stale != "")
		if err != nil {
			return err
		}
		err = invoke(as, method, req, reply, cc, opts...)
		if of := rpctypes.Error(err); stale != "" || !errors.Is(of, rpctypes.ErrInvalidAuthToken) && !errors.Is(of, rpctypes.ErrAuthOldRevision) {
			return err
		}
		stale = token
	}
}

// stream opens a stream with a new token: whether etcd still takes the old one would only
// show when the stream ends.
func (l *login) stream(ctx context.Context, desc *grpc.StreamDesc, cc *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	l.mu.Lock()
	stale := l.mu.token
	l.mu.Unlock()
	as, _, err := l.with(ctx, cc, stale, false)
	if err != nil {
		return nil, err
	}
	return open(as, desc, cc, method, opts...)
}

// Refused returns why an etcd that answers has refused a client, mostly as a fault of a key
// of the configuration. It returns nil if err is no such refusal.
func Refused(err error) *millrace.Error {
	if e, ok := errors.AsType[*millrace.Error](err); ok && strings.HasPrefix(e.Field, accessField+".") {
		return e // Refused or Apply made it
	}
	refused := func(key, wayOut string) *millrace.Error {
		return &millrace.Error{Reason: millrace.ReasonForbidden, Field: accessField + "." + key, Detail: err.Error(), WayOut: wayOut}
	}
	switch of := rpctypes.Error(err); {
	case errors.Is(of, rpctypes.ErrAuthFailed):
		return refused("username", "correct the user or the password")
	case errors.Is(of, rpctypes.ErrUserEmpty), errors.Is(of, rpctypes.ErrUserNotFound):
		return refused("username", "etcd wants to know who asks: give username and password_file")
	case errors.Is(of, rpctypes.ErrPermissionDenied):
		return refused("username", "grant the user's role the keys under /millrace/, to read and write, or name another user")
	case errors.Is(of, rpctypes.ErrNoSpace):
		return &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "etcd", Detail: ErrFull.Error(), WayOut: FullWayOut}
	}
	if wayOut := secure.Refused(err); wayOut != "" {
		return refused("tls", wayOut)
	}
	return nil
}

// ErrFull says that etcd has raised its alarm NOSPACE: it answers reads and refuses writes.
// So no coordinator can lead either.
var ErrFull = errors.New("cluster: etcd is out of space (its alarm NOSPACE), and takes no write")

// FullWayOut says what to do about [ErrFull].
const FullWayOut = "free its space with etcdctl: compact, defrag, then alarm disarm; if it is full again soon, raise its quota-backend-bytes"
