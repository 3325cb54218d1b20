package cluster

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/secure"
)

// Access is how an etcd is reached: its TLS, and who asks. Its zero value is
// plain text, on loopback alone.
type Access struct {
	TLS          secure.TLS `yaml:"tls,omitempty"`
	secure.Login `yaml:",inline"`
	Insecure     bool `yaml:"insecure,omitempty"` // plain text beyond loopback
}

// accessField is the key of a configuration that has an Access.
const accessField = "connections.etcd"

// apply completes how etcd is called.
func (a Access) apply(c *clientv3.Config, log *slog.Logger) error {
	if a.TLS.On() {
		files, err := secure.Open(a.TLS, accessField+".tls", log)
		if err != nil {
			return err
		}
		c.DialOptions = append(c.DialOptions, grpc.WithTransportCredentials(grpctune.TLS(files.Client)))
	} else {
		plain := secure.Plain{Field: accessField, Insecure: a.Insecure}
		for _, addr := range c.Endpoints {
			if err := plain.Check(addr); err != nil {
				return err
			}
		}
	}
	if !a.Login.On() {
		return nil
	}
	password, err := a.Login.Open(accessField, log)
	if err != nil {
		return err
	}
	c.Username, c.Password = a.Username, "of the file" // what is sent, the interceptor decides
	c.DialOptions = append(c.DialOptions, grpc.WithChainUnaryInterceptor(logIn(password)))
	return nil
}

// logIn sends the password that the file has now. The client asks for a token
// when it is made, too, and could not be made without etcd: that first one is
// empty, and etcd's answer to the first call has the client ask again.
func logIn(password *secure.Source) grpc.UnaryClientInterceptor {
	var made atomic.Bool
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		if ask, ok := req.(*etcdserverpb.AuthenticateRequest); ok {
			if !made.Swap(true) {
				return nil
			}
			req = &etcdserverpb.AuthenticateRequest{Name: ask.Name, Password: password.Current()}
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
}

// Refused returns what an etcd refused a client for, as the fault of a key of
// the configuration, or nil where err is of something else.
func Refused(err error) *millrace.Error {
	if e, ok := errors.AsType[*millrace.Error](err); ok && strings.HasPrefix(e.Field, accessField+".") {
		return e // it has been told
	}
	refused := func(key, wayOut string) *millrace.Error {
		return &millrace.Error{Reason: millrace.ReasonForbidden, Field: accessField + "." + key, Detail: err.Error(), WayOut: wayOut}
	}
	switch of := rpctypes.Error(err); {
	case errors.Is(of, rpctypes.ErrAuthFailed):
		return refused("username", "correct the user or the password")
	case errors.Is(of, rpctypes.ErrUserEmpty):
		return refused("username", "etcd wants to know who asks: give username and password_file")
	case errors.Is(of, rpctypes.ErrPermissionDenied):
		return refused("username", "grant the user's role the keys under /millrace/, to read and write, or name another user")
	}
	if wayOut := secure.Refused(err); wayOut != "" {
		return refused("tls", wayOut)
	}
	return nil
}
