package kafka_test

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// secured is a Kafka with TLS, client certificates and users.
func secured(t *testing.T, a *authority.Authority, opts ...kfake.Opt) string {
	t.Helper()
	server := a.Issue("kafka", "127.0.0.1")
	c, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.TLS(a.Server(server, true)), kfake.EnableSASL()}, opts...)...)
	kafkatest.Must(t, err)
	t.Cleanup(c.Close)
	c.ControlKey(int16(kmsg.SASLAuthenticate), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.SASLAuthenticateRequest)
		if known(string(req.SASLAuthBytes)) {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		resp.ErrorCode = kerr.SaslAuthenticationFailed.Code
		return resp, nil, true
	})
	return c.ListenAddrs()[0]
}

// known reports whether what a client sends first is of a user. A Kafka tells who
// is not; the fake one hangs up. That of another password by SCRAM is for a real one.
func known(sent string) bool {
	return slices.Contains([]string{"\x00p\x00one", "\x00u\x00old"}, sent) || strings.HasPrefix(sent, "n,,n=s,") || strings.HasPrefix(sent, "n,,n=l,") || strings.HasPrefix(sent, "c=")
}

// passwordFile writes a file of a password.
func passwordFile(t *testing.T, password string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "password")
	kafkatest.Must(t, os.WriteFile(file, []byte(password+"\n"), 0o600))
	return file
}

// Every mechanism lets its user in, and work; a wrong certificate, name,
// authority, user, password or mechanism is refused at once, by the key of the
// configuration that is wrong.
func TestSecuredKafka(t *testing.T) {
	a, other := authority.New(t), authority.New(t)
	addr := secured(t, a, kfake.Superuser("PLAIN", "p", "one"), kfake.Superuser("SCRAM-SHA-256", "s", "two"), kfake.Superuser("SCRAM-SHA-512", "l", "three"))
	me := a.Issue("me")
	as := func(mechanism, user, password string) kafka.Access {
		return kafka.Access{TLS: me, SASL: kafka.SASL{Mechanism: mechanism, Login: secure.Login{Username: user, PasswordFile: passwordFile(t, password)}}}
	}
	for mechanism, at := range map[string]kafka.Access{"PLAIN": as("PLAIN", "p", "one"), "SCRAM-SHA-256": as("SCRAM-SHA-256", "s", "two"), "SCRAM-SHA-512": as("SCRAM-SHA-512", "l", "three")} {
		brokers := at.At(nil, addr)
		kafkatest.Must(t, kafka.WaitReady(kafkatest.Deadline(t), brokers))
		kafkatest.Must(t, kafka.EnsureContentTopic(kafkatest.Deadline(t), brokers, "by-"+mechanism, 1, nil))
		p, err := kafka.NewProducer(brokers, "", nil)
		kafkatest.Must(t, err)
		p.Produce(kafkatest.Deadline(t), kafka.Outgoing{Topic: "by-" + mechanism, Value: []byte("x")})
		kafkatest.Must(t, p.Flush(kafkatest.Deadline(t)))
		p.Close()
	}
	good := as("SCRAM-SHA-512", "l", "three")
	with := func(change func(*kafka.Access)) kafka.Access { x := good; change(&x); return x }
	stranger := other.Issue("me")
	for what, c := range map[string]struct {
		as   kafka.Access
		want string // the key
	}{
		"plain text":                      {kafka.Access{}, "connect.kafka.tls"},
		"no user":                         {with(func(x *kafka.Access) { x.SASL = kafka.SASL{} }), "connect.kafka.sasl"},
		"another password, plain":         {as("PLAIN", "p", "other"), "connect.kafka.sasl"},
		"another user":                    {as("SCRAM-SHA-256", "nobody", "two"), "connect.kafka.sasl"},
		"a user of another mechanism":     {as("PLAIN", "l", "three"), "connect.kafka.sasl"},
		"no certificate":                  {with(func(x *kafka.Access) { x.TLS = secure.TLS{CA: a.CA} }), "connect.kafka.tls"},
		"another authority's certificate": {with(func(x *kafka.Access) { x.TLS.Cert, x.TLS.Key = stranger.Cert, stranger.Key }), "connect.kafka.tls"},
		"another authority's broker":      {with(func(x *kafka.Access) { x.TLS.CA = other.CA }), "connect.kafka.tls"},
		"another name":                    {with(func(x *kafka.Access) { x.TLS.ServerName = "kafka.example" }), "connect.kafka.tls"},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		for door, try := range map[string]func() error{
			"ready":  func() error { return kafka.WaitReady(ctx, c.as.At(nil, addr)) },
			"topics": func() error { _, err := kafka.InspectTopics(ctx, c.as.At(nil, addr), kafka.Topics{}); return err },
		} {
			e := kafka.Refused(try())
			if ctx.Err() != nil || e == nil || !strings.HasPrefix(e.Field, c.want) || e.WayOut == "" || e.Detail == "" {
				t.Errorf("%s, %s: %v of %+v; want a fault of %s", what, door, e, e, c.want)
			}
		}
		cancel()
	}
}

// A password and certificates that change are used by the next connection, also
// of a client that was there before.
func TestSecretsOfKafkaRotate(t *testing.T) {
	a := authority.New(t)
	addr := secured(t, a, kfake.Superuser("PLAIN", "u", "old"))
	file := passwordFile(t, "wrong")
	brokers := kafka.Access{TLS: a.Issue("me"), SASL: kafka.SASL{Mechanism: "PLAIN", Login: secure.Login{Username: "u", PasswordFile: file}}}.At(nil, addr)
	if e := kafka.Refused(kafka.WaitReady(kafkatest.Deadline(t), brokers)); e == nil || !strings.HasPrefix(e.Field, "connect.kafka.sasl") {
		t.Fatalf("a wrong password: %v", e)
	}
	look, err := kafka.NewInspector(brokers)
	kafkatest.Must(t, err)
	defer look.Close()
	kafkatest.Must(t, os.WriteFile(file, []byte("old"), 0o600))
	a.Issue("me")
	kafkatest.Must(t, kafka.WaitReady(kafkatest.Deadline(t), brokers))
	if _, err := look.Ends(kafkatest.Deadline(t), "none"); kafka.Refused(err) != nil {
		t.Errorf("a client that was there before: %v", err)
	}
}

func TestSASLIsValidated(t *testing.T) {
	file := passwordFile(t, "p")
	user := secure.Login{Username: "u", PasswordFile: file}
	for what, c := range map[string]struct {
		as   kafka.SASL
		want string
	}{
		"no mechanism":            {kafka.SASL{Login: user}, "connect.kafka.sasl.mechanism"},
		"an unknown one":          {kafka.SASL{Mechanism: "GSSAPI", Login: user}, "connect.kafka.sasl.mechanism"},
		"a token for a user":      {kafka.SASL{Mechanism: "PLAIN", Login: user, TokenFile: file}, "connect.kafka.sasl.token_file"},
		"a user for a token":      {kafka.SASL{Mechanism: "OAUTHBEARER", Login: user, TokenFile: file}, "connect.kafka.sasl.username"},
		"no token":                {kafka.SASL{Mechanism: "OAUTHBEARER"}, "connect.kafka.sasl.token_file"},
		"no file of a token":      {kafka.SASL{Mechanism: "OAUTHBEARER", TokenFile: file + "-none"}, "connect.kafka.sasl.token_file"},
		"two tokens":              {kafka.SASL{Mechanism: "OAUTHBEARER", Token: "t", TokenFile: file}, "connect.kafka.sasl.token_file"},
		"a fixed token of a user": {kafka.SASL{Mechanism: "PLAIN", Login: user, Token: "t"}, "connect.kafka.sasl.token_file"},
		"no user":                 {kafka.SASL{Mechanism: "SCRAM-SHA-512"}, "connect.kafka.sasl.username"},
		"no file of the password": {kafka.SASL{Mechanism: "PLAIN", Login: secure.Login{Username: "u", PasswordFile: file + "-none"}}, "connect.kafka.sasl.password_file"},
	} {
		err := kafka.Access{SASL: c.as}.At(nil, "127.0.0.1:1").Validate()
		if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != c.want || e.WayOut == "" {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := (kafka.Access{}).At(nil, "127.0.0.1:1", "kafka-1:9092").Validate(); err == nil || !strings.Contains(err.Error(), "connect.kafka") || !strings.Contains(err.Error(), "insecure: true") {
		t.Errorf("plain text beyond loopback: %v", err)
	}
	if err := (kafka.Access{Insecure: true}).At(nil, "kafka-1:9092").Validate(); err != nil {
		t.Errorf("plain text that is allowed: %v", err)
	}
	if err := (kafka.Brokers{}).Validate(); err == nil {
		t.Error("no address")
	}
}

// Kafka is told the token that the file of OAUTHBEARER has at each login; one that is
// emptied, as while it is written, leaves the last one.
func TestTheTokenOfKafkaIsReadAgain(t *testing.T) {
	file := passwordFile(t, "first")
	m, err := kafka.OpenSASL(kafka.SASL{Mechanism: "OAUTHBEARER", TokenFile: file})
	kafkatest.Must(t, err)
	for _, c := range []struct{ holds, want string }{{"first\n", "first"}, {"the second\n", "the second"}, {"", "the second"}} {
		kafkatest.Must(t, os.WriteFile(file, []byte(c.holds), 0o600))
		_, said, err := m.Authenticate(t.Context(), "kafka:9092")
		kafkatest.Must(t, err)
		if want := "n,,\x01auth=Bearer " + c.want + "\x01\x01"; string(said) != want {
			t.Errorf("of %q Kafka is told %q, want %q", c.holds, said, want)
		}
	}
}

// Every mechanism that the reference names is taken.
func TestMechanismsAreAll(t *testing.T) {
	f, _ := reflect.TypeFor[kafka.SASL]().FieldByName("Mechanism")
	for _, name := range strings.Split(f.Tag.Get("choices"), ", ") {
		as := kafka.SASL{Mechanism: name, Login: secure.Login{Username: "u", Password: "p"}}
		if name == "OAUTHBEARER" {
			as = kafka.SASL{Mechanism: name, Token: "a token"}
		}
		m, err := kafka.OpenSASL(as)
		if err != nil || m.Name() != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Files and the user are looked at together.
func TestFaultsOfKafkaAreToldAtOnce(t *testing.T) {
	err := kafka.Access{TLS: secure.TLS{CA: "/does/not/exist"}, SASL: kafka.SASL{Mechanism: "PLAIN"}}.At(nil, "127.0.0.1:1").Validate()
	if err == nil || !strings.Contains(err.Error(), "connect.kafka.tls.ca") || !strings.Contains(err.Error(), "connect.kafka.sasl.username") {
		t.Errorf("%v", err)
	}
}

// The token of OAUTHBEARER is that of the file, as it is now.
func TestTokensAreReadAgain(t *testing.T) {
	file := passwordFile(t, "first")
	m, err := kafka.OpenSASL(kafka.SASL{Mechanism: "OAUTHBEARER", TokenFile: file})
	kafkatest.Must(t, err)
	for _, token := range []string{"first", "second"} {
		kafkatest.Must(t, os.WriteFile(file, []byte(token), 0o600))
		_, sent, err := m.Authenticate(t.Context(), "127.0.0.1:1")
		if err != nil || !strings.Contains(string(sent), "auth=Bearer "+token) {
			t.Errorf("sends %q, %v; want %s", sent, err, token)
		}
	}
}

// A broker that names others beyond loopback does not have them called by plain
// text.
func TestBrokersThatAreNamedAreHeldToTheRules(t *testing.T) {
	b := kafka.At("127.0.0.1:1")
	kafkatest.Must(t, b.Validate())
	if c, err := kafka.Plain(b).Dial(t.Context(), "tcp", net.JoinHostPort("192.0.2.1", "9092")); err == nil || !strings.Contains(err.Error(), "insecure") {
		if c != nil {
			c.Close()
		}
		t.Errorf("called: %v", err)
	}
}

// TestThrough: clients of a Kafka that is reached through another network dial
// by nothing else.
func TestThrough(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dialled := make(chan string, 1)
	brokers := kafka.At("127.0.0.1:1").Through(func(_ context.Context, _, addr string) (net.Conn, error) {
		select {
		case dialled <- addr:
			cancel()
		default:
		}
		return nil, errors.New("there is no way")
	})
	if err := kafka.WaitReady(ctx, brokers); err == nil {
		t.Fatal("it is ready")
	}
	if addr := <-dialled; addr != "127.0.0.1:1" {
		t.Errorf("%s was dialled", addr)
	}
}
