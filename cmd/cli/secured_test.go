package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// estate is a company's Kafka and etcd, both with TLS, client certificates and
// users, roles that ask each other by mutual TLS, and somebody's contexts.
type estate struct {
	t            *testing.T
	ctx          context.Context
	a            *authority.Authority // of the roles, and of those who call them
	theirs       *authority.Authority // of etcd, and of a Kafka that is not real
	kafka        string
	kafkaAs      kafka.Access
	etcd         *etcdtest.Secured
	etcdPassword string // the file
	prefix       string
	me           secure.TLS
	roles        map[string]*process
	at           map[string]ports // where they listen
	signer       *signer          // of tokens that the second broker believes
	tokens       string           // its file of those that have a name
	audits       string           // where the nodes' audit logs are
}

// ports are those of a role: "" where it has none.
type ports struct{ grpc, http, admin string }

func (p ports) all() (addrs []string) {
	return slices.DeleteFunc([]string{p.grpc, p.http, p.admin}, func(addr string) bool { return addr == "" })
}

// both are the brokers, as a client takes them.
func (e *estate) both() string { return e.at["broker"].grpc + "," + e.at["broker-2"].grpc }

// securedKafka returns a Kafka and how it is reached: the real one that the
// environment names, or one in this process.
func securedKafka(t *testing.T, a *authority.Authority) (string, kafka.Access) {
	t.Helper()
	if addr := os.Getenv("MILLRACE_KAFKA_SECURED"); addr != "" {
		dir := os.Getenv("MILLRACE_KAFKA_SECRETS")
		user, err := os.ReadFile(filepath.Join(dir, "user"))
		if err != nil {
			t.Fatal(err)
		}
		return addr, kafka.Access{
			TLS:  secure.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "client.pem"), Key: filepath.Join(dir, "client.key")},
			SASL: kafka.SASL{Mechanism: "SCRAM-SHA-512", Login: secure.Login{Username: string(user), PasswordFile: filepath.Join(dir, "password")}},
		}
	}
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.TLS(a.Server(a.Issue("kafka", "127.0.0.1"), true)), kfake.EnableSASL(), kfake.Superuser("SCRAM-SHA-512", "millrace", "secret"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	password := filepath.Join(t.TempDir(), "kafka-password")
	if err := os.WriteFile(password, []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return c.ListenAddrs()[0], kafka.Access{TLS: a.Issue("kafka-caller"), SASL: kafka.SASL{Mechanism: "SCRAM-SHA-512", Login: secure.Login{Username: "millrace", PasswordFile: password}}}
}

func inYAML(t secure.TLS) string {
	return fmt.Sprintf("{ca: %q, cert: %q, key: %q}", t.CA, t.Cert, t.Key)
}

// connections are those of a role's configuration, and of a context.
func (e *estate) connections(indent string) string {
	k := e.kafkaAs
	return strings.ReplaceAll(fmt.Sprintf(`connect:
  kafka: {tls: %s, sasl: {mechanism: %s, username: %s, password_file: %q}}
  etcd: {tls: %s, username: millrace, password_file: %q}
`, inYAML(k.TLS), k.SASL.Mechanism, k.SASL.Username, k.SASL.PasswordFile, inYAML(e.etcd.Me), e.etcdPassword), "\n", "\n"+indent)
}

// authorization is who may do what, in every role. The second broker takes tokens, too.
const (
	authorization = `authorization:
  identities: {me: [operator], app: [caller], node-1: [node], node-2: [node], broker: [broker], broker-2: [broker], coordinator: [operator], partitioner: [partitioner]%s}
  callers: {app: {feeds: [recent], may: [explain]}%s}
`
	ofTokens       = `, "token:jobs": [caller], "jwt:home": [caller]`
	mayByTokens    = `, "token:jobs": {feeds: [recent]}, "jwt:home": {feeds: [recent]}`
	whereTokensAre = `  tokens: %q
  jwt: {jwks: %q, issuer: %q, audience: %q}
`
)

func startEstate(t *testing.T) *estate {
	t.Helper()
	ctx, failed := context.WithCancelCause(clitest.Bounded(t))
	e := &estate{
		t: t, ctx: ctx, a: authority.New(t), theirs: authority.New(t), prefix: fmt.Sprintf("secured-%d-", rand.Uint32()),
		roles: map[string]*process{}, at: map[string]ports{}, signer: newSigner(t), tokens: clitest.Written(t, "jobs "+firstToken+"\n"), audits: t.TempDir(),
	}
	for _, name := range []string{"partitioner", "node-1", "node-2", "broker", "broker-2", "coordinator"} {
		at := ports{admin: clitest.FreeAddr(t)}
		if name != "partitioner" && name != "coordinator" {
			at.grpc = clitest.FreeAddr(t)
		}
		if strings.HasPrefix(name, "broker") {
			at.http = clitest.FreeAddr(t)
		}
		e.at[name] = at
	}
	e.kafka, e.kafkaAs = securedKafka(t, e.theirs)
	brokers := e.kafkaAs.At(nil, e.kafka)
	if err := errors.Join(kafka.EnsureTopics(ctx, brokers, kafka.Prefixed(e.prefix), nil), kafka.EnsureContentTopic(ctx, brokers, e.prefix+"activity", 4, nil)); err != nil {
		t.Fatal(err)
	}
	e.etcd = etcdtest.Start(t, e.theirs)
	e.etcdPassword = e.etcd.PasswordFile("old")
	e.me = e.a.Issue("me")
	contexts := clitest.WriteConfig(t, "contexts", `current: none
contexts:
  estate:
    brokers: [%q]
    topic_prefix: %s
    etcd: [%q]
    broker: %q
    admin: [%q]
    tls: %s
    %s`, e.kafka, e.prefix, e.etcd.Addr, e.at["broker"].grpc, e.at["broker"].admin, inYAML(e.me), e.connections("    "))
	t.Setenv("MILLRACE_CONTEXTS", contexts)
	run(t, "context", "use", "estate")
	run(t, "cluster", "assign", "--nodes", "node-1,node-2", "--replicas", "2", "--force")
	begin := func(name, command, format string, args ...any) {
		who := fmt.Sprintf(authorization, "", "")
		if name == "broker-2" {
			who = fmt.Sprintf(authorization+whereTokensAre, ofTokens, mayByTokens, e.tokens, e.signer.file, issuer, audience)
		}
		e.roles[name] = start(t, failed, name, command, "--config", clitest.WriteConfig(t, name,
			"%s\nadmin: %q\ntopic_prefix: %s\nbrokers: [%q]\netcd: [%q]\ntls: %s\n%s%s", fmt.Sprintf(format, args...), e.at[name].admin,
			e.prefix, e.kafka, e.etcd.Addr, inYAML(e.a.Issue(name, "127.0.0.1")), who, e.connections("")))
	}
	begin("partitioner", "partitioner", "content: [%sactivity]\ngroup: %sgroup\ninstance: one", e.prefix, e.prefix)
	for _, id := range []string{"node-1", "node-2"} {
		begin(id, "indexnode", "id: %s\ndata: %s\nlisten: %q\naudit: %s\ndrain: 3s", id, t.TempDir(), e.at[id].grpc, e.acts(id))
	}
	for _, name := range []string{"broker", "broker-2"} {
		begin(name, "broker", "grpc: %q\nhttp: %q\ndrain: 3s", e.at[name].grpc, e.at[name].http)
	}
	begin("coordinator", "coordinator", "name: one")
	return e
}

// post is a line of a file of records.
func post(id, author string) string {
	return fmt.Sprintf(`{"id": %q, "actor": %q, "verb": "post", "created_at": %d, "text": "hello"}`+"\n", id, author, time.Now().Add(-time.Hour).UnixMilli())
}

// The whole way of a record, and every command on it, where everything has TLS
// and users; and at every door who comes with a wrong certificate, name or
// password, or by plain text, is refused and told what is wrong.
func TestSecured(t *testing.T) {
	clitest.StartsProcesses(t)
	e := startEstate(t)
	file := filepath.Join(t.TempDir(), "activity.ndjson")
	if err := os.WriteFile(file, []byte(post("post:1", "member:1")+e.erasable()), 0o600); err != nil {
		t.Fatal(err)
	}
	// A partitioner that takes long to join its group has load refuse the topic.
	clitest.WaitFor(e.ctx, t, "the record to be loaded", func() bool {
		_, err := output("load", "--topic", e.prefix+"activity", file)
		return err == nil
	})
	feed := []string{"feed", "--viewer", "member:9", "--entities", "member:1", "--explain"}
	clitest.WaitFor(e.ctx, t, "the record to be in a feed", func() bool {
		text, err := output(feed...)
		return err == nil && strings.Contains(text, "post:1")
	})
	clitest.WaitFor(e.ctx, t, "doctor to find all well", func() bool {
		text, err := output("doctor")
		return err == nil && strings.Contains(text, "ok    roles are ready")
	})
	for want, line := range map[string][]string{
		"post:1 in member:1/post": {"why", "--record", "post:1", "--viewer", "member:9", "--entities", "member:1"},
		"millrace.Activity":       {"schema", "list"},
		"node-2":                  {"node", "list"},
		"secured-":                {"topics", "show"},
		"are equal":               {"partition", "check", "17"},
		"read from 0 to":          {"timeline", "history", "member:1"},
		"would go to topic":       {"record", "delete", "post:1", "--entity", "member:1"},
		"password_file":           {"context", "show"},
		"* estate":                {"context", "list"},
		"goes by all there is":    {"cluster", "show"},
	} {
		if text, err := output(line...); err != nil || !strings.Contains(text, want) {
			t.Errorf("millrace %v does not say %q: %v\n%s", line, want, err, text)
		}
	}
	clitest.WaitFor(e.ctx, t, "the brokers to hear of a change", func() bool {
		text, err := output("trace", "--viewer", "member:9")
		return err == nil && strings.Contains(text, "\nheard by 2 brokers\n")
	})

	other := authority.New(t)
	stranger := other.Issue("me")
	app, noCaller := e.a.Issue("app"), e.a.Issue("partitioner", "127.0.0.1")
	if text, err := output(append(feed, "--cert", app.Cert, "--key", app.Key)...); err != nil {
		t.Errorf("a caller is not served: %v\n%s", err, text)
	}
	wrong := e.etcd.PasswordFile("wrong")
	topics, nodes := []string{"topics", "show", "--wait", "20s"}, []string{"node", "list"}
	for what, door := range map[string]struct {
		line, flags []string
		want        string
	}{
		"Kafka: authority":    {topics, []string{"--kafka-ca", other.CA}, "connect.kafka.tls: "},
		"Kafka: certificate":  {topics, []string{"--kafka-cert", stranger.Cert, "--kafka-key", stranger.Key}, "connect.kafka.tls: "},
		"Kafka: name":         {topics, []string{"--kafka-server-name", "kafka.example"}, "connect.kafka.tls: "},
		"Kafka: password":     {topics, []string{"--kafka-password-file", wrong}, "connect.kafka.sasl: "},
		"Kafka: user":         {topics, []string{"--kafka-username", "nobody"}, "connect.kafka.sasl: "},
		"Kafka: load":         {[]string{"load", "--topic", e.prefix + "activity", file}, []string{"--kafka-password-file", wrong}, "connect.kafka.sasl: "},
		"etcd: authority":     {nodes, []string{"--etcd-ca", other.CA}, "connect.etcd.tls: "},
		"etcd: certificate":   {nodes, []string{"--etcd-cert", stranger.Cert, "--etcd-key", stranger.Key}, "connect.etcd.tls: "},
		"etcd: name":          {nodes, []string{"--etcd-server-name", "etcd.example"}, "connect.etcd.tls: "},
		"etcd: password":      {nodes, []string{"--etcd-password-file", wrong}, "connect.etcd.username: "},
		"etcd: user":          {nodes, []string{"--etcd-username", "nobody"}, "connect.etcd.username: "},
		"broker: authority":   {feed, []string{"--ca", other.CA}, "name the authority"},
		"broker: certificate": {feed, []string{"--cert", stranger.Cert, "--key", stranger.Key}, "show a certificate"},
		"broker: name":        {feed, []string{"--server-name", "broker.example"}, "server_name"},
		"node: certificate":   {[]string{"partition", "check", "17"}, []string{"--cert", stranger.Cert, "--key", stranger.Key}, "certificate"},
		"node: a caller":      {[]string{"partition", "check", "17"}, []string{"--cert", app.Cert, "--key", app.Key}, "app has the roles [caller]"},
		"admin: certificate":  {[]string{"timeline", "get", "member:1"}, []string{"--cert", stranger.Cert, "--key", stranger.Key}, "certificate"},
		"admin: a caller":     {[]string{"record", "delete", "post:1", "--entity", "member:1"}, []string{"--cert", app.Cert, "--key", app.Key}, "app has the roles [caller]"},
		"broker: no caller":   {feed, []string{"--cert", noCaller.Cert, "--key", noCaller.Key}, "partitioner has the roles [partitioner]"},
		"broker: a filter":    {append(slices.Clone(feed), "--filter", "true"), []string{"--cert", app.Cert, "--key", app.Key}, "app has no right to filter"},
		"plain text":          {feed, []string{"--addr", "feed.example:9090", "--context", "plain"}, "insecure: true"},
	} {
		if door.want == "connect.kafka.sasl: " && os.Getenv("MILLRACE_KAFKA_SECURED") == "" {
			continue // a fake Kafka hangs up on wrong passwords, and does not say so
		}
		if what == "plain text" {
			text, err := os.ReadFile(os.Getenv("MILLRACE_CONTEXTS"))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(os.Getenv("MILLRACE_CONTEXTS"), append(text, "\n  plain: {}\n"...), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		text, err := output(append(door.line, door.flags...)...)
		if err == nil || !strings.Contains(text, door.want) {
			t.Errorf("%s: millrace %v: %v; want %q\n%s", what, door.flags, err, door.want, text)
		}
	}
	e.everyPort(stranger)
	e.byTokens()
	e.rotate()
	e.erase()
}

// everyPort asks all roles' ports: who shows a certificate of the authority is
// answered, and nobody else.
func (e *estate) everyPort(stranger secure.TLS) {
	e.t.Helper()
	for name, at := range e.at {
		urls := []string{"https://" + at.admin + "/readyz", "https://" + at.admin + "/metrics"}
		if at.http != "" {
			urls = append(urls, "https://"+at.http+"/v1/openapi.json")
		}
		for _, url := range urls {
			if err := e.get(e.me, url); err != nil {
				e.t.Errorf("%s: %s: %v", name, url, err)
			}
			for what, as := range map[string]secure.TLS{"a stranger": stranger, "nobody": {}} {
				if e.get(as, url) == nil {
					e.t.Errorf("%s: %s answers %s", name, url, what)
				}
			}
			if resp, err := http.Get("http" + strings.TrimPrefix(url, "https")); err == nil {
				resp.Body.Close()
				if resp.StatusCode == http.StatusOK {
					e.t.Errorf("%s: %s answers by plain text", name, url)
				}
			}
		}
		if at.grpc == "" {
			continue
		}
		if err := e.health(e.me, at.grpc); err != nil {
			e.t.Errorf("%s: %v", name, err)
		}
		for what, as := range map[string]secure.TLS{"a stranger": stranger, "nobody": {}} {
			if e.health(as, at.grpc) == nil {
				e.t.Errorf("%s answers %s by gRPC", name, what)
			}
		}
	}
}

func (e *estate) files(as secure.TLS) *secure.Files {
	e.t.Helper()
	as.CA = e.a.CA
	files, err := secure.Open(as, "tls", nil)
	if err != nil {
		e.t.Fatal(err)
	}
	return files
}

func (e *estate) get(as secure.TLS, url string) error {
	e.t.Helper()
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: e.files(as).Client(), DisableKeepAlives: true}}
	resp, err := c.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}

// health asks a port of gRPC for what every role may ask.
func (e *estate) health(as secure.TLS, addr string) error {
	e.t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(e.files(as).Client())))
	if err != nil {
		e.t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(e.ctx, clitest.Patience)
	defer cancel()
	_, err = healthv1.NewHealthClient(conn).Check(ctx, &healthv1.HealthCheckRequest{})
	return err
}
