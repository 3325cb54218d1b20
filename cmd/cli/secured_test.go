package cli

import (
	"context"
	"crypto/tls"
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

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/secure"
	"github.com/millrace/millrace/internal/secure/authority"
)

// estate is a company's Kafka and etcd, both with TLS, client certificates and
// users, roles that ask each other by mutual TLS, and somebody's contexts.
type estate struct {
	t                 *testing.T
	ctx               context.Context
	a                 *authority.Authority // of all but a real Kafka
	kafka             string
	kafkaAs           kafka.Access
	etcd              *etcdtest.Secured
	etcdPassword      string // the file
	prefix            string
	me                secure.TLS
	grpc, http, admin string // of the broker
	roles             []*process
}

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

// authorization is who may do what, in every role.
const authorization = `authorization:
  identities: {me: [operator], app: [caller], node-1: [node], node-2: [node], broker: [broker], coordinator: [operator], partitioner: [partitioner]}
  callers: {app: {feeds: [recent], may: [explain]}}
`

func startEstate(t *testing.T) *estate {
	t.Helper()
	ctx, failed := context.WithCancelCause(clitest.Bounded(t))
	e := &estate{t: t, ctx: ctx, a: authority.New(t), prefix: fmt.Sprintf("secured-%d-", rand.Uint32()), grpc: clitest.FreeAddr(t), http: clitest.FreeAddr(t), admin: clitest.FreeAddr(t)}
	e.kafka, e.kafkaAs = securedKafka(t, e.a)
	brokers := e.kafkaAs.At(nil, e.kafka)
	if err := errors.Join(kafka.EnsureTopics(ctx, brokers, kafka.Prefixed(e.prefix), nil), kafka.EnsureContentTopic(ctx, brokers, e.prefix+"activity", 4, nil)); err != nil {
		t.Fatal(err)
	}
	e.etcd = etcdtest.Start(t, e.a)
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
    %s`, e.kafka, e.prefix, e.etcd.Addr, e.grpc, e.admin, inYAML(e.me), e.connections("    "))
	t.Setenv("MILLRACE_CONTEXTS", contexts)
	run(t, "context", "use", "estate")
	run(t, "cluster", "assign", "--nodes", "node-1,node-2", "--replicas", "2", "--force")
	begin := func(name, command, format string, args ...any) {
		role := e.a.Issue(name, "127.0.0.1")
		e.roles = append(e.roles, start(t, failed, name, command, "--config", clitest.WriteConfig(t, name,
			"%s\ntopic_prefix: %s\nbrokers: [%q]\netcd: [%q]\ntls: %s\n"+authorization+"%s", fmt.Sprintf(format, args...), e.prefix, e.kafka, e.etcd.Addr, inYAML(role), e.connections(""))))
	}
	begin("partitioner", "partitioner", "content: [%sactivity]\ngroup: %sgroup\ninstance: one", e.prefix, e.prefix)
	for _, id := range []string{"node-1", "node-2"} {
		begin(id, "indexnode", "id: %s\ndata: %s\nlisten: %q", id, t.TempDir(), clitest.FreeAddr(t))
	}
	begin("broker", "broker", "grpc: %q\nhttp: %q\nadmin: %q", e.grpc, e.http, e.admin)
	begin("coordinator", "coordinator", "name: one")
	return e
}

// The whole way of a record, and every command on it, where everything has TLS
// and users; and at every door who comes with a wrong certificate, name or
// password, or by plain text, is refused and told what is wrong.
func TestSecured(t *testing.T) {
	clitest.StartsProcesses(t)
	e := startEstate(t)
	file := filepath.Join(t.TempDir(), "activity.ndjson")
	record := fmt.Sprintf(`{"id": "post:1", "actor": "member:1", "verb": "post", "created_at": %d, "text": "hello"}`+"\n", time.Now().Add(-time.Hour).UnixMilli())
	if err := os.WriteFile(file, []byte(record), 0o600); err != nil {
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
	clitest.WaitFor(e.ctx, t, "the broker to hear of a change", func() bool {
		text, err := output("trace", "--viewer", "member:9")
		return err == nil && strings.Contains(text, "\nheard by 1 broker\n")
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
	e.adminPorts(stranger)
	e.rotate()
	if text, err := output("record", "delete", "post:1", "--entity", "member:1", "--topic", e.prefix+"activity", "--apply", "--yes"); err != nil || !strings.Contains(text, "every replica that is there has applied it") {
		t.Errorf("a record is not deleted: %v\n%s", err, text)
	}
}

// adminPorts asks the broker's ports of HTTP: who shows a certificate of the
// authority is answered.
func (e *estate) adminPorts(stranger secure.TLS) {
	e.t.Helper()
	get := func(as secure.TLS, url string) error {
		as.CA = e.a.CA
		files, err := secure.Open(as, "tls", nil)
		if err != nil {
			e.t.Fatal(err)
		}
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: files.Client(), DisableKeepAlives: true}}
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
	for _, url := range []string{"https://" + e.admin + "/readyz", "https://" + e.admin + "/metrics", "https://" + e.http + "/v1/openapi.json"} {
		if err := get(e.me, url); err != nil {
			e.t.Errorf("%s: %v", url, err)
		}
		for what, as := range map[string]secure.TLS{"a stranger": stranger, "nobody": {}} {
			if get(as, url) == nil {
				e.t.Errorf("%s answers %s", url, what)
			}
		}
		if resp, err := http.Get("http" + strings.TrimPrefix(url, "https")); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				e.t.Errorf("%s answers by plain text", url)
			}
		}
	}
}

// rotate replaces the certificates of all roles and of the caller while it asks,
// each time by a connection of its own: no request fails.
func (e *estate) rotate() {
	e.t.Helper()
	s := reach.Security{TLS: e.me}
	served := map[string]bool{}
	for i := range 60 {
		if i%3 == 0 {
			for _, role := range []string{"node-1", "node-2", "broker"} {
				e.a.Issue(role, "127.0.0.1")
			}
			e.a.Issue("me")
		}
		how, err := s.Dial()
		if err != nil {
			e.t.Fatal(err)
		}
		c, err := client.Dial(e.grpc, how)
		if err != nil {
			e.t.Fatal(err)
		}
		resp, err := c.GetFeed(e.ctx, &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "member:9"}, Entities: []string{"member:1"}})
		if err != nil || len(resp.Items) != 1 || len(resp.Coverage.Missing) > 0 {
			e.t.Fatalf("request %d: %v, %v", i, resp, err)
		}
		c.Close()
		files, err := secure.Open(e.me, "tls", nil)
		if err != nil {
			e.t.Fatal(err)
		}
		conn, err := files.Dial(e.ctx, "tcp", e.admin)
		if err != nil {
			e.t.Fatal(err)
		}
		served[conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.String()] = true
		conn.Close()
	}
	if len(served) != 20 {
		e.t.Errorf("%d certificates were shown, of 20", len(served))
	}
}
