package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/secure"
)

// Access is how a Kafka is reached: by which TLS, and as which user. Its zero value is
// plain text without a user, which is allowed only on loopback.
type Access struct {
	TLS      secure.TLS `yaml:"tls,omitempty"`
	SASL     SASL       `yaml:"sasl,omitempty"`
	Insecure bool       `yaml:"insecure,omitempty" doc:"true: plain text beyond loopback, where other means guard the network"`
}

// SASL is the user that clients log in as. Its zero value is no user, or the one that the
// client's certificate names.
type SASL struct {
	Mechanism    string `yaml:"mechanism,omitempty" choices:"PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER" doc:"how Kafka knows the user; left out: by its certificate, or not"`
	secure.Login `yaml:",inline"`
	Token        secure.Secret `yaml:"token,omitempty" doc:"the token of OAUTHBEARER; better in a file, or in the environment"`
	TokenFile    string        `yaml:"token_file,omitempty" form:"file" secret:"file" doc:"a file with the token of OAUTHBEARER alone, read again when it changes"`
}

// accessField is the key of the configuration that has the Access.
const accessField = "connect.kafka"

// Brokers is a Kafka: its addresses, and how they are reached. The zero value
// is no Kafka.
type Brokers struct {
	addrs []string
	via   *via
}

// via is the access that all clients of a Kafka share, with what its files hold.
type via struct {
	access  Access
	log     *slog.Logger
	open    sync.Once                     // opens files and sasl
	fault   error                         // what failed in open; nil: nothing
	files   *secure.Files                 // nil: there is no TLS
	sasl    sasl.Mechanism                // nil: there is no user
	metrics atomic.Pointer[clientMetrics] // nil: nobody collects them
	dial    Dial                          // nil: connections are opened as access says
}

// Dial opens a connection to a broker at host:port.
type Dial func(ctx context.Context, network, addr string) (net.Conn, error)

// At returns a Kafka on loopback that is reached by plain text; addresses are
// host:port each.
func At(addrs ...string) Brokers { return Access{}.At(nil, addrs...) }

// At returns the Kafka at these addresses, host:port each, that is reached by this
// access. It does not check the access; [Brokers.Validate] and every use do. A nil log is
// slog.Default().
func (a Access) At(log *slog.Logger, addrs ...string) Brokers {
	return Brokers{addrs, &via{access: a, log: log}}
}

// Through returns the same Kafka, whose clients open their connections by dial, for example
// over a network in memory. They use no TLS, whatever the access says.
func (b Brokers) Through(dial Dial) Brokers {
	return Brokers{b.addrs, &via{access: b.via.access, log: b.via.log, dial: dial}}
}

// None reports whether there is no Kafka.
func (b Brokers) None() bool { return len(b.addrs) == 0 }

// String returns the addresses in a line.
func (b Brokers) String() string { return strings.Join(b.addrs, ", ") }

// Validate reports what is wrong with the addresses and the access. The first call reads
// the access's files.
func (b Brokers) Validate() error {
	if b.None() {
		return errors.New("kafka: brokers: none given; name at least one host:port")
	}
	b.via.open.Do(func() { b.via.fault = b.via.openFiles() })
	if b.via.access.TLS.On() {
		return b.via.fault
	}
	for _, addr := range b.addrs {
		if err := b.plain().Check(addr); err != nil {
			return errors.Join(b.via.fault, err)
		}
	}
	return b.via.fault
}

func (b Brokers) plain() secure.Plain {
	return secure.Plain{Field: accessField, Insecure: b.via.access.Insecure}
}

// options returns the options by which a client reaches these brokers. Brokers that Kafka
// itself names are dialed by the same rules as those that the configuration names.
func (b Brokers) options() ([]kgo.Opt, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	dial := b.plain().Dial
	if b.via.files != nil {
		dial = b.via.files.Dial
	}
	if b.via.dial != nil {
		dial = b.via.dial
	}
	opts := []kgo.Opt{kgo.SeedBrokers(b.addrs...), kgo.WithHooks(clientHook{b.via}), kgo.Dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		return dial(ctx, network, addr)
	})}
	if b.via.sasl != nil {
		opts = append(opts, kgo.SASL(b.via.sasl))
	}
	return opts, nil
}

func (v *via) openFiles() error {
	var tls, sasl error
	if v.access.TLS.On() {
		v.files, tls = secure.Open(v.access.TLS, accessField+".tls", v.log)
	}
	v.sasl, sasl = v.access.SASL.open(v.log)
	return errors.Join(tls, sasl)
}

// open returns the mechanism, which uses the current password or token for each
// connection; nil if there is none.
func (s SASL) open(log *slog.Logger) (sasl.Mechanism, error) {
	const field = accessField + ".sasl"
	invalid := func(key, detail, wayOut string) error {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: field + "." + key, Detail: detail, WayOut: wayOut}
	}
	switch s.Mechanism {
	case "":
		if s != (SASL{}) {
			return nil, invalid("mechanism", "there is a user or a token, and no mechanism", "say PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER")
		}
		return nil, nil
	case "OAUTHBEARER":
		if s.Login.On() {
			return nil, invalid("username", "OAUTHBEARER has a token, and no user", "leave the user and its password out")
		}
		if s.TokenFile == "" && s.Token == "" {
			return nil, invalid("token_file", "OAUTHBEARER has no token", "name a file that holds it")
		}
		if s.TokenFile != "" && s.Token != "" {
			return nil, invalid("token_file", "there are two tokens", "leave one out, of the file, the configuration and the environment")
		}
		if s.Token != "" {
			return oauth.Auth{Token: string(s.Token)}.AsMechanism(), nil
		}
		token, err := secure.OpenSource(s.TokenFile, field+".token_file", log)
		if err != nil {
			return nil, err
		}
		return oauth.Oauth(func(context.Context) (oauth.Auth, error) { return oauth.Auth{Token: token.Current()}, nil }), nil
	case "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512":
	default:
		return nil, invalid("mechanism", fmt.Sprintf("%.40q is not known", s.Mechanism), "say PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER")
	}
	if s.TokenFile != "" || s.Token != "" {
		return nil, invalid("token_file", s.Mechanism+" has a user, and no token", "leave the token out")
	}
	password, err := s.Login.Open(field, log)
	if err != nil {
		return nil, err
	}
	scrams := func(context.Context) (scram.Auth, error) {
		return scram.Auth{User: s.Username, Pass: password.Current()}, nil
	}
	switch s.Mechanism {
	case "SCRAM-SHA-256":
		return scram.Sha256(scrams), nil
	case "SCRAM-SHA-512":
		return scram.Sha512(scrams), nil
	}
	return plain.Plain(func(context.Context) (plain.Auth, error) {
		return plain.Auth{User: s.Username, Pass: password.Current()}, nil
	}), nil
}

// Refused returns why a Kafka refused a client, as the fault of a key of the
// configuration; nil if err is no such refusal.
func Refused(err error) *millrace.Error {
	if e, ok := errors.AsType[*millrace.Error](err); ok && strings.HasPrefix(e.Field, accessField+".") {
		return e // it has been told
	}
	refused := func(key, wayOut string) *millrace.Error {
		return &millrace.Error{Reason: millrace.ReasonForbidden, Field: accessField + "." + key, Detail: err.Error(), WayOut: wayOut}
	}
	var end *kgo.ErrFirstReadEOF
	switch {
	case errors.Is(err, kerr.SaslAuthenticationFailed):
		return refused("sasl", "correct the user, the password or the token")
	case errors.Is(err, kerr.UnsupportedSaslMechanism), errors.Is(err, kerr.IllegalSaslState):
		return refused("sasl.mechanism", "name the mechanism of the listener that is asked")
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed), errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		return refused("sasl", "give the user the rights in Kafka that it needs, or name another")
	case errors.As(err, &end) && strings.Contains(end.Error(), "SASL is required"):
		return refused("sasl", "give sasl as the listener wants it")
	case errors.As(err, &end):
		return refused("tls", "give tls where the listener has it, and leave it out where it has none")
	}
	if wayOut := secure.Refused(err); wayOut != "" {
		return refused("tls", wayOut)
	}
	return nil
}
