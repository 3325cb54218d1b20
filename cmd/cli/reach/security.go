package reach

import (
	"context"
	"crypto/tls"
	"log/slog"
	"strings"

	"google.golang.org/grpc"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/internal/grpctune"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/rpcerr"
	"github.com/millrace/millrace/internal/secure"
)

// Security is how a role's ports and calls are protected, and how it reaches other systems
// than Millrace. Without TLS a role listens and calls on loopback only, unless Insecure.
type Security struct {
	// TLS names the role's certificate and key, and the CA whose certificates
	// callers and callees must show.
	TLS         secure.TLS  `yaml:"tls,omitempty"`
	Insecure    bool        `yaml:"insecure,omitempty" doc:"true: Millrace's own ports and the calls to them are plain text beyond loopback, where other means guard the network"`
	Connections Connections `yaml:"connect,omitempty"`
}

// Plain returns the rule for plain text: to loopback only, or anywhere if Insecure.
func (s *Security) Plain() secure.Plain { return secure.Plain{Insecure: s.Insecure} }

// Dial returns how the role calls others by gRPC. It fails if its TLS files cannot be read.
func (s *Security) Dial() (grpc.DialOption, error) {
	if !s.TLS.On() {
		return grpc.WithTransportCredentials(grpctune.Plain(s.Plain().Check)), nil
	}
	files, err := secure.Open(s.TLS, "tls", slog.Default())
	if err != nil {
		return nil, err
	}
	return grpc.WithTransportCredentials(grpctune.Greeted(grpctune.TLS(func() *tls.Config {
		c := files.Client()
		c.MinVersion = tls.VersionTLS13
		return c
	}))), nil
}

// securityKey is the key in a command's context.Context of its *Security.
type securityKey struct{}

// Of returns how a command reaches the cluster that it works on, as [InContext] has set it;
// the zero Security if it has not.
func Of(ctx context.Context) *Security {
	if s, ok := ctx.Value(securityKey{}).(*Security); ok {
		return s
	}
	return new(Security)
}

// Exposed returns a line for each secret of a command whose file every user of the machine
// can read.
func Exposed(ctx context.Context) (lines []string) {
	for _, e := range config.ExposedOf("", Of(ctx), nil) {
		lines = append(lines, e.String())
	}
	return lines
}

// Kafka returns the Kafka at addrs, host:port each, as a command reaches it; the zero
// Brokers if there are no addrs.
func Kafka(ctx context.Context, addrs []string) kafka.Brokers {
	if len(addrs) == 0 {
		return kafka.Brokers{}
	}
	return Of(ctx).Connections.Kafka.At(slog.Default(), addrs...)
}

// Broker returns a client of the Millrace broker whose gRPC port is addr, host:port.
func Broker(ctx context.Context, addr string) (*client.Client, error) {
	s := Of(ctx)
	if !s.TLS.On() {
		if err := s.Plain().Check(addr); err != nil {
			return nil, err
		}
	}
	how, err := s.Dial()
	if err != nil {
		return nil, err
	}
	return client.Dial(addr, how, grpc.WithUnaryInterceptor(tellsHTTP(addr)))
}

// tellsHTTP replaces the error of calls to an address that answers in HTTP/1.1. The error
// says that this may be the broker's port for JSON; gRPC's own speaks of HTTP/2 frames.
func tellsHTTP(addr string) grpc.UnaryClientInterceptor {
	return func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		err := invoke(ctx, method, req, reply, cc, opts...)
		if err == nil || !strings.Contains(err.Error(), "looked like an HTTP/1.1 header") {
			return err
		}
		return rpcerr.Status(&millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "addr", Detail: addr + " answers in HTTP/1.1, as a broker's port for JSON does, and not in gRPC",
			WayOut: "name the broker's port for gRPC (grpc in its configuration, such as 127.0.0.1:9090; http is the one for JSON) by the flag, MILLRACE_BROKER, or broker in the context",
		})
	}
}
