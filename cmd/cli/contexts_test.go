package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/secure"
)

// writeContexts makes a file of contexts the one of the test.
func writeContexts(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "contexts.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("MILLRACE_CONTEXTS", file)
	return file
}

// said runs a command line in this process.
func said(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	c := root()
	c.SetArgs(args)
	c.SetOut(&out)
	c.SetErr(&out)
	err := command.Run(t.Context(), c)
	return out.String(), err
}

// reached is how a command would reach a cluster: it ends before it does.
func reached(t *testing.T, args ...string) (flags map[string]string, how *reach.Security, err error) {
	t.Helper()
	c := root()
	flags = map[string]string{}
	commands(c, func(_ string, c *cobra.Command) {
		if c.RunE != nil {
			c.RunE = func(c *cobra.Command, _ []string) error {
				for _, name := range []string{"addr", "grpc", "brokers", "etcd", "cluster", "topic-prefix"} {
					if f := c.Flags().Lookup(name); f != nil {
						flags[name] = strings.Trim(f.Value.String(), "[]")
					}
				}
				how = reach.Of(c.Context())
				return nil
			}
		}
	})
	c.SetArgs(args)
	err = command.Run(context.Background(), c)
	return flags, how, err
}

const twoContexts = `# mine
current: prod   # for now
contexts:
  prod:
    broker: feed.example:9090
    brokers: [kafka-1:9093, kafka-2:9093]
    topic_prefix: p-
    etcd: [etcd-1:2379]
    cluster: live
    tls: {ca: ca.pem, cert: me.pem, key: /keys/me.key}
    connect:
      kafka: {tls: {ca: system}, sasl: {mechanism: PLAIN, username: me, password: geheim}}
      etcd: {insecure: true}
  local: {}
`

// What a flag says goes before the environment, that before the context, and that
// before the default.
func TestContextsAreDefaults(t *testing.T) {
	file := writeContexts(t, twoContexts)
	dir := filepath.Dir(file)
	flags, how, err := reached(t, "doctor")
	want := map[string]string{"grpc": "feed.example:9090", "brokers": "kafka-1:9093,kafka-2:9093", "etcd": "etcd-1:2379", "cluster": "live", "topic-prefix": "p-"}
	if err != nil || !reflect.DeepEqual(flags, want) {
		t.Errorf("doctor reaches %v, %v; want %v", flags, err, want)
	}
	if k := how.Connections.Kafka; how.TLS != (secure.TLS{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "me.pem"), Key: "/keys/me.key"}) ||
		k.TLS.CA != "system" || k.SASL.Password != "geheim" || !how.Connections.Etcd.Insecure || how.Connections.SchemaRegistry.Insecure {
		t.Errorf("by %+v", how)
	}
	t.Setenv("MILLRACE_ETCD", "etcd-9:2379")
	t.Setenv("MILLRACE_KAFKA_PASSWORD", "other")
	t.Setenv("MILLRACE_KAFKA_USERNAME", "somebody")
	t.Setenv("MILLRACE_CLUSTER", "second")
	t.Setenv("MILLRACE_SCHEMA_REGISTRY_INSECURE", "true")
	flags, how, err = reached(t, "doctor", "--cluster", "third", "--kafka-username", "nobody", "--etcd-insecure=false")
	if k := how.Connections.Kafka.SASL; err != nil || flags["etcd"] != "etcd-9:2379" || flags["cluster"] != "third" || k.Username != "nobody" || k.Password != "other" || k.Mechanism != "PLAIN" ||
		how.Connections.Etcd.Insecure || !how.Connections.SchemaRegistry.Insecure {
		t.Errorf("%v, %+v, %v", flags, how, err)
	}
	if flags, _, err := reached(t, "feed", "--context", "local", "--viewer", "a"); err != nil || flags["addr"] != "127.0.0.1:9090" {
		t.Errorf("another context: %v, %v", flags, err)
	}
	t.Setenv("MILLRACE_CONTEXT", "local")
	if flags, _, err := reached(t, "why", "--record", "r"); err != nil || flags["addr"] != "127.0.0.1:9090" {
		t.Errorf("the environment's context: %v, %v", flags, err)
	}
	t.Setenv("MILLRACE_INSECURE", "perhaps")
	if _, _, err := reached(t, "why", "--record", "r"); err == nil || !strings.Contains(err.Error(), "MILLRACE_INSECURE") {
		t.Errorf("neither true nor false: %v", err)
	}
}

// Contexts are listed, chosen and shown; secrets are not.
func TestContextCommands(t *testing.T) {
	file := writeContexts(t, twoContexts)
	if text, err := said(t, "context", "list"); err != nil || text != "  local\n* prod\n" {
		t.Errorf("list: %q, %v", text, err)
	}
	if text, err := said(t, "context", "show"); err != nil || strings.Contains(text, "geheim") || !strings.Contains(text, "(hidden)") || !strings.Contains(text, "kafka-2:9093") {
		t.Errorf("show: %v\n%s", err, text)
	}
	if _, err := said(t, "context", "use", "local"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if want := strings.Replace(twoContexts, "current: prod   # for now", `current: "local"`, 1); err != nil || string(text) != want {
		t.Errorf("use wrote\n%s", text)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("its rights are %v, %v", info.Mode(), err)
	}
	if text, err := said(t, "context", "list"); err != nil || text != "* local\n  prod\n" {
		t.Errorf("list: %q, %v", text, err)
	}
	for line, want := range map[string]string{
		"context use prdo":                       "did you mean prod?",
		"context show prdo":                      "did you mean prod?",
		"doctor --context prdo":                  "did you mean prod?",
		"demo --context prod":                    "--context",
		"dev --kafka-ca ca.pem":                  "--kafka-ca",
		"broker --config x.yaml --context prod":  "--context",
		"context show --context prod":            "--context",
		"feed --viewer a --addr far:9090":        "insecure: true",
		"topics show --brokers far:9092":         "connect.kafka.insecure: true",
		"cluster show --etcd far:2379":           "connect.etcd.insecure: true",
		"schema list --kafka-sasl GSSAPI":        "SCRAM-SHA-512",
		"cluster show --etcd-ca /does/not/exist": "connect.etcd.tls",
	} {
		if _, err := said(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := said(t, "context", "list"); err == nil || !strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("passwords that others may read: %v", err)
	}
	writeContexts(t, "contexts: {a: {etcd: ['x:1']}}\n")
	if _, err := said(t, "context", "show"); err == nil || !strings.Contains(err.Error(), "no current context") {
		t.Errorf("no current context: %v", err)
	}
	none := filepath.Join(t.TempDir(), "none")
	t.Setenv("MILLRACE_CONTEXTS", none)
	for _, line := range [][]string{{"context", "list"}, {"doctor"}, {"feed", "--viewer", "a", "--addr", "127.0.0.1:1"}} {
		if _, err := said(t, line...); err == nil || !strings.Contains(err.Error(), "MILLRACE_CONTEXTS: there is no file "+none) || !strings.Contains(err.Error(), "unset") {
			t.Errorf("%v, with a file named that is not there: %v", line, err)
		}
	}
	t.Setenv("MILLRACE_CONTEXTS", "")
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	if text, err := said(t, "context", "list"); err != nil || !strings.HasPrefix(text, "There are no contexts") {
		t.Errorf("no file: %q, %v", text, err)
	}
	if _, err := said(t, "doctor", "--context", "prod"); err == nil || !strings.Contains(err.Error(), "help context") {
		t.Errorf("no file: %v", err)
	}
}

// Every value of a connection has a flag or, if it is secret, a variable alone,
// and the help on connections tells of both.
func TestEveryConnectionHasItsFlags(t *testing.T) {
	text, err := said(t, "help", "connections")
	if err != nil {
		t.Fatal(err)
	}
	found := map[any]bool{}
	var s reach.Security
	for _, x := range reach.SettingsOf(&s) {
		if !strings.Contains(text, x.Env) || x.Flag != "" && !strings.Contains(text, "--"+x.Flag+" ") {
			t.Errorf("the help does not tell of %s and %s", x.Flag, x.Env)
		}
		if x.Text != nil {
			found[x.Text] = true
		} else {
			found[x.On] = true
		}
	}
	var count func(v reflect.Value, path string)
	count = func(v reflect.Value, path string) {
		for i := range v.NumField() {
			f, at := v.Field(i), path+"."+v.Type().Field(i).Name
			switch p := f.Addr().Interface().(type) {
			case *string:
				if !found[p] {
					t.Errorf("no flag gives %s", at)
				}
			case *bool:
				if !found[p] {
					t.Errorf("no flag gives %s", at)
				}
			case *secure.Secret:
				if !found[(*string)(p)] {
					t.Errorf("no variable gives %s", at)
				}
			default:
				count(f, at)
			}
		}
	}
	count(reflect.ValueOf(&s).Elem(), "")
}

// A role's flags go before its configuration.
func TestRolesTakeTheFlags(t *testing.T) {
	config := clitest.WriteConfig(t, "partitioner", "brokers: [\"127.0.0.1:1\"]\ncontent: [a]\ninstance: one\nconnect: {kafka: {sasl: {mechanism: PLAIN, username: u, password_file: /does/not/exist}}}\n")
	for want, flags := range map[string][]string{
		"connect.kafka.sasl.password_file": nil,
		"connect.kafka.sasl.token_file":    {"--kafka-sasl", "OAUTHBEARER", "--kafka-username", "", "--kafka-password-file", ""},
		"connect.kafka.tls.ca":             {"--kafka-ca", "/does/not/exist"},
	} {
		_, err := said(t, append([]string{"partitioner", "--config", config}, flags...)...)
		if e, ok := errors.AsType[*millrace.Error](err); !ok || e.Field != want {
			t.Errorf("%v: %v, want a fault of %s", flags, err, want)
		}
	}
}
