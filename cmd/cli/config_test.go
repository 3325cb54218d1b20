package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/roles"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/secure/authority"
)

// TestHostileConfigurations holds what each file is told, by config check and,
// in the same words, by its role. FILE stands for the file.
//
//	check role=ROLE [repeat=N] [env=VARIABLE:VALUE] [effective]
func TestHostileConfigurations(t *testing.T) {
	datadriven.RunTest(t, "testdata/configurations", func(t *testing.T, d *datadriven.TestData) string {
		role, repeat, env := "", 1, ""
		d.ScanArgs(t, "role", &role)
		d.MaybeScanArgs(t, "repeat", &repeat)
		if d.MaybeScanArgs(t, "env", &env); env != "" {
			name, value, _ := strings.Cut(env, ":")
			t.Setenv(name, value)
			defer os.Unsetenv(name)
		}
		input := d.Input
		if input != "" {
			input = strings.Repeat(input+"\n", repeat)
		}
		file := clitest.Written(t, input)
		line := []string{"config", "check", file, "--role", role}
		if d.HasArg("effective") {
			line = append(line, "--effective")
		}
		text, err := said(t, line...)
		if err == nil {
			return strings.ReplaceAll(text, file, "FILE")
		}
		if role != "contexts" {
			ended, end := context.WithCancel(t.Context())
			end() // a role that is not refused stops at once
			c := root()
			c.SetArgs([]string{role, "--config", file})
			if starts := command.Run(ended, c); starts == nil || starts.Error() != err.Error() {
				t.Errorf("%s: the role says otherwise than the check: %v", d.Pos, starts)
			}
		}
		return strings.ReplaceAll(err.Error(), file, "FILE") + "\n"
	})
}

// docs/configuration.md is what the program says of itself.
func TestConfigurationPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	if now, err := said(t, "config", "reference"); err != nil || now != string(page) {
		t.Errorf("make config-page writes it again: %v", err)
	}
}

// every calls do with an empty configuration of each kind, as a test of its own.
func every(t *testing.T, do func(t *testing.T, of string, cfg config.Configuration)) {
	for _, c := range roles.Files().All {
		t.Run(c.Of, func(t *testing.T) { do(t, c.Of, c.New()) })
	}
}

// Every key has its line in the reference, and what is said of it there in tags
// is something that the check can read.
func TestEveryKeyIsDocumented(t *testing.T) {
	every(t, func(t *testing.T, of string, cfg config.Configuration) {
		said := map[string]bool{}
		for _, k := range roles.Files().ReferenceOf(cfg) {
			said[k.Key] = true
		}
		for _, l := range config.LeavesOf(reflect.ValueOf(cfg).Elem(), "", true) {
			tag := l.Field.Tag.Get
			switch {
			case tag("doc") == "":
				t.Errorf("%s: nothing says what it is for", l.Path)
			case said[l.Path] == (tag("doc") == "-"):
				t.Errorf("%s: is in the reference: %t", l.Path, said[l.Path])
			case strings.Contains(tag("doc")+tag("default"), "|"):
				t.Errorf("%s would break the table", l.Path)
			case tag("default") != "" && !l.Value.IsZero(): // by complete
				t.Errorf("%s has the default %q in words, and %s in the code", l.Path, tag("default"), l.Text())
			case strings.Contains(l.Path, "..") || strings.HasSuffix(l.Path, "."):
				t.Errorf("%s: a mapping has no name for its keys", l.Path)
			}
			if least, most, ok := strings.Cut(tag("range"), ".."); ok {
				for _, end := range []string{least, most} {
					_, noTime := time.ParseDuration(end)
					_, noNumber := strconv.ParseFloat(end, 64)
					if end != "" && noTime != nil && noNumber != nil {
						t.Errorf("%s has a range to %s", l.Path, end)
					}
				}
			}
		}
	})
}

// A key of before is refused, and says what takes its place.
func TestKeysOfBeforeAreRefused(t *testing.T) {
	every(t, func(t *testing.T, of string, cfg config.Configuration) {
		for _, l := range config.LeavesOf(reflect.ValueOf(cfg).Elem(), "", true) {
			if l.Field.Tag.Get("doc") != "-" {
				continue
			}
			l.Value.Set(reflect.New(l.Value.Type().Elem()))
			if f := faultOf(cfg.Validate(), l.Path); f == nil || f.WayOut == "" {
				t.Errorf("%s is taken", l.Path)
			}
			l.Value.SetZero()
		}
	})
}

func faultOf(err error, field string) *millrace.Error {
	for _, err := range config.Flat(err) {
		if e, ok := errors.AsType[*millrace.Error](err); ok && e.Field == field {
			return e
		}
	}
	return nil
}

// The roles that a file may be of are those that there are.
func TestRolesOfFiles(t *testing.T) {
	for _, l := range config.LeavesOf(reflect.ValueOf(new(roles.Common)).Elem(), "", true) {
		if want := roles.Files().Names(); l.Path == "role" && !slices.Equal(append(l.Choices(), "contexts"), want) {
			t.Errorf("files may be of %v, and there are %v", l.Choices(), want)
		}
	}
}

// enough is a file for each role, with what is required alone.
var enough = map[string]string{
	"partitioner": "role: partitioner\nbrokers: [\"127.0.0.1:1\"]\ncontent: [a]\ninstance: one\n",
	"indexnode":   "role: indexnode\nid: one\ndata: /data\nbrokers: [\"127.0.0.1:1\"]\netcd: [\"127.0.0.1:1\"]\nlisten: 127.0.0.1:0\n",
	"broker":      "role: broker\netcd: [\"127.0.0.1:1\"]\ngrpc: 127.0.0.1:0\n",
	"coordinator": "role: coordinator\netcd: [\"127.0.0.1:1\"]\n",
	"contexts":    "contexts: {prod: {broker: \"127.0.0.1:1\"}}\n",
}

// A file needs what the reference says is required, and nothing else, and what
// --effective shows of it is a file that says the same, without any default
// that is left to the code.
func TestEffectiveConfigurationsAreWhole(t *testing.T) {
	every(t, func(t *testing.T, of string, cfg config.Configuration) {
		file := clitest.Written(t, enough[of])
		whole, err := said(t, "config", "check", file, "--effective")
		if err != nil {
			t.Fatal(err)
		}
		again, err := said(t, "config", "check", clitest.Written(t, whole), "--effective")
		if err != nil || again != whole {
			t.Errorf("%v\n%s\nis read as\n%s", err, whole, again)
		}
		if err := document.Decode([]byte(whole), cfg); err != nil {
			t.Fatal(err)
		}
		values := map[string]string{}
		for _, l := range config.LeavesOf(reflect.ValueOf(cfg).Elem(), "", true) {
			values[l.Path] = l.Text()
		}
		fresh, _ := roles.Files().Named(of)
		for _, k := range roles.Files().ReferenceOf(fresh) {
			if k.Required {
				lines := slices.DeleteFunc(strings.Split(enough[of], "\n"), func(line string) bool { return strings.HasPrefix(line, k.Key+":") })
				if _, err := said(t, "config", "check", "--role", of, clitest.Written(t, strings.Join(lines, "\n"))); err == nil || !strings.Contains(err.Error(), " "+k.Key+": ") {
					t.Errorf("without %s: %v", k.Key, err)
				}
			}
			if fixed := k.Default; fixed != "" && !k.Required && values[k.Key] != fixed && !inWordsAlone(of, k.Key) {
				t.Errorf("%s: the reference says %s, and %s is used", k.Key, fixed, values[k.Key])
			}
		}
	})
}

// inWordsAlone reports whether a default is said in words.
func inWordsAlone(of, key string) bool {
	cfg, _ := roles.Files().Named(of)
	for _, l := range config.LeavesOf(reflect.ValueOf(cfg).Elem(), "", true) {
		if l.Path == key {
			return l.Field.Tag.Get("default") != ""
		}
	}
	return false
}

// A backup node answers nobody, and drains nothing.
func TestEffectiveDrain(t *testing.T) {
	file := clitest.Written(t, enough["indexnode"]+"serves: false\nbackup: {to: \"file:///backups\"}\n")
	if whole, err := said(t, "config", "check", file, "--effective"); err != nil || !strings.Contains(whole, "\ndrain: 0s\n") {
		t.Errorf("%v\n%s", err, whole)
	}
}

const hush = "xyzzy-hush-hush-xyzzy"

// Every secret of every configuration has a file and, in roles, a variable that
// give it as well, and is shown by nothing.
func TestSecretsAreNeverShown(t *testing.T) {
	secrets := 0
	every(t, func(t *testing.T, of string, cfg config.Configuration) {
		file := clitest.Written(t, enough[of])
		keys := map[string]config.Key{}
		for _, k := range roles.Files().ReferenceOf(cfg) {
			keys[k.Key] = k
		}
		shown := func(what string, text string) {
			if strings.Contains(text, hush) {
				t.Errorf("%s shows it:\n%s", what, text)
			}
		}
		for _, k := range keys {
			if k.Secret != "" && k.Variable == "" && of != "contexts" {
				t.Errorf("%s: no variable gives it", k.Key)
			}
			if k.Secret != "value" {
				continue
			}
			secrets++
			if keys[k.Key+"_file"].Secret != "file" {
				t.Errorf("%s: no file gives it", k.Key)
			}
			if k.Variable == "" {
				continue
			}
			t.Setenv(k.Variable, hush)
			for _, more := range [][]string{nil, {"-o", "json"}, {"--effective"}} {
				text, err := said(t, slices.Concat([]string{"config", "check", file}, more)...)
				shown(k.Variable, fmt.Sprint(text, err))
			}
			os.Unsetenv(k.Variable)
		}
		// In the file, all at once, as its role says it at its start.
		for _, l := range config.LeavesOf(reflect.ValueOf(cfg).Elem(), "", true) {
			if l.IsSecret() && l.Value.CanSet() {
				l.Value.SetString(hush)
			}
		}
		if c, ok := cfg.(*reach.Contexts); ok {
			x := reach.Context{}
			for _, l := range config.LeavesOf(reflect.ValueOf(&x).Elem(), "", true) {
				if l.IsSecret() {
					l.Value.SetString(hush)
				}
			}
			c.Contexts = map[string]reach.Context{"prod": x}
		}
		text, err := document.Encode(cfg)
		if err != nil || strings.Count(string(text), "(hidden)") < 4 {
			t.Errorf("%v\n%s", err, text)
		}
		asJSON, _ := json.Marshal(cfg)
		shown("the start", fmt.Sprintf("%s %s %v %+v %#v", text, asJSON, cfg, cfg, cfg))
		for _, l := range config.LeavesOf(reflect.ValueOf(cfg).Elem(), "", false) {
			shown("the summary", l.Text())
		}
		whole := strings.ReplaceAll(string(text), "(hidden)", hush) // refused for having too many
		told, err := said(t, "config", "check", "--role", of, clitest.Written(t, whole))
		shown("a file", fmt.Sprint(told, err))
	})
	if secrets < 20 {
		t.Errorf("%d secrets in all", secrets)
	}
}

// What a role logs first is its configuration, without its secrets.
func TestTheFirstLineHasNoSecrets(t *testing.T) {
	clitest.StartsProcesses(t)
	for _, name := range []string{"KAFKA", "ETCD", "SCHEMA_REGISTRY"} {
		t.Setenv("MILLRACE_"+name+"_PASSWORD", hush)
	}
	for _, role := range roles.Files().Names()[:4] {
		// It ends behind that line: a directory takes no lines.
		file := clitest.Written(t, enough[role]+"audit: /\nconnect: {kafka: {sasl: {mechanism: PLAIN, username: me}}, etcd: {username: me}, schema_registry: {username: me}}\n")
		out, err := output(role, "--config", file, "--log-level", "INFO")
		if err == nil || strings.Contains(out, hush) || strings.Count(out, "(hidden)") != 3 || !strings.Contains(out, "starting") || !strings.Contains(out, "audit: open /") {
			t.Errorf("%s: %v\n%s", role, err, out)
		}
	}
}

// Files of certificates and secrets are looked into, all of them at once.
func TestFilesAreLookedInto(t *testing.T) {
	dir := t.TempDir()
	good := authority.New(t).Issue("role", "127.0.0.1")
	empty := filepath.Join(dir, "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := said(t, "config", "check", clitest.Written(t, enough["indexnode"]+fmt.Sprintf(`tls: {ca: %s, cert: %s/none.pem, key: %s/none.key}
authorization: {identities: {a: [node]}, tokens: %[4]s/tokens}
connect:
  kafka: {tls: {ca: %[4]s/kafka.pem}, sasl: {mechanism: PLAIN, username: me, password_file: %[1]s}}
  etcd: {tls: {ca: %[5]s, cert: %[5]s, key: %[6]s}, username: me, password_file: %[4]s/password}
`, empty, dir, dir, dir, good.CA, good.Key)))
	for _, want := range []string{
		"line 7, column 7: tls.ca: " + empty + ": it holds no certificate;", "tls.cert: open " + dir + "/none.pem", "tls.key: open " + dir + "/none.key",
		"authorization.tokens: stat " + dir + "/tokens", "connect.kafka.tls.ca: open " + dir + "/kafka.pem", "connect.kafka.sasl.password_file: " + empty + " is empty",
		"connect.etcd.tls.cert: ", "connect.etcd.password_file: stat " + dir + "/password", ": 8 faults\n",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in\n%v", want, err)
		}
	}
}

// A certificate that has ended is found before a role starts with it, and so are the
// secrets of a Kafka that is there for copies of the audit log alone.
func TestWhatRolesWouldFindOnlyLater(t *testing.T) {
	a := authority.New(t)
	ended := a.IssueUntil("role", time.Now().Add(-time.Hour), "127.0.0.1")
	for _, role := range []string{"broker", "coordinator"} {
		_, err := said(t, "config", "check", clitest.Written(t, enough[role]+fmt.Sprintf(`tls: {ca: %s, cert: %s, key: %s}
brokers: ["127.0.0.1:9092"]
audit: %s
audit_topic: audits
connect: {kafka: {sasl: {mechanism: PLAIN, username: me, password_file: /nonexistent}}}
`, ended.CA, ended.Cert, ended.Key, filepath.Join(t.TempDir(), "audit"))))
		for _, want := range []string{"tls.cert: ", "it ended on ", "connect.kafka.sasl.password_file: stat /nonexistent", ": 2 faults\n"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: want %q in\n%v", role, want, err)
			}
		}
	}
}

// Each context is reached for, as commands would, from the directory of the file.
func TestContextsAreChecked(t *testing.T) {
	text := strings.NewReplacer("broker: feed.example:9090", "broker: feed.example:9090\n    admin: [\"far.example:1\"]", "local: {}", "local: {broker: \"far.example:1\", connect: {kafka: {tls: {ca: ca.pem}}}, brokers: [\"a:1\"]}", "current: prod ", "current: prdo ").Replace(twoContexts)
	file := writeContexts(t, text)
	_, err := said(t, "config", "check", file)
	dir := filepath.Dir(file)
	for _, want := range []string{
		"line 2, column 1: current: " + file + ` has no context "prdo"; did you mean prod?`,
		"contexts.prod.tls.ca: open " + dir + "/ca.pem", "contexts.prod.tls.cert: open " + dir + "/me.pem", "contexts.prod.tls.key: open /keys/me.key",
		"contexts.local.connect.kafka.tls.ca: open " + dir + "/ca.pem", "contexts.local.broker: far.example:1 is beyond loopback",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q in\n%v", want, err)
		}
	}
	if err != nil && strings.Contains(err.Error(), "geheim") {
		t.Errorf("a password is shown: %v", err)
	}
	good := writeContexts(t, "current: a\ncontexts: {a: {broker: \"127.0.0.1:1\", admin: [\"127.0.0.1:2\"]}}\n")
	if out, err := said(t, "config", "check", good); err != nil || !strings.HasPrefix(out, "ok: "+good+" (contexts)\n") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A file says of which role it is, or its caller does; both forms of output tell
// the same.
func TestConfigCheckCommand(t *testing.T) {
	file := clitest.Written(t, strings.TrimPrefix(enough["broker"], "role: broker\n"))
	for line, want := range map[string]string{
		"config check " + file:                           "say --role, or write it into the file",
		"config check --role brokr " + file:              "did you mean broker?",
		"config check --role dev " + file:                "millrace help dev",
		"config check --role broker -o xml " + file:      "say text or json",
		"config check --role broker --context a " + file: "--context",
		"config check " + file + ".none --role broker":   "no such file",
		"config check --role indexnode " + file:          "listen: ",
		"config reference brokr":                         "did you mean broker?",
		"config reference broker -o xml":                 "say markdown or json",
	} {
		if _, err := said(t, strings.Fields(line)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	zoned := clitest.Written(t, enough["indexnode"]+"zone: "+strings.Repeat("z", 5000)+"\n")
	if _, err := said(t, "config", "check", zoned); err == nil || !strings.Contains(err.Error(), "zone: it has 5000 bytes") {
		t.Errorf("a zone that no registration has room for: %v", err)
	}
	t.Setenv("MILLRACE_ZONE", "b")
	out, err := said(t, "config", "check", "--role", "broker", file, "--kafka-username", "me")
	for _, want := range []string{"ok: " + file + " (broker)\n", "  grpc ", "127.0.0.1:0  line 2\n", "  zone ", "MILLRACE_ZONE\n", "--kafka-username\n"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("want %q in %v\n%s", want, err, out)
		}
	}
	var got struct {
		Role   string
		Given  []config.Given
		Faults []config.Fault
	}
	out, err = said(t, "config", "check", "--role", "broker", file, "-o", "json")
	if json.Unmarshal([]byte(out), &got) != nil || err != nil || got.Role != "broker" || len(got.Given) != 3 || len(got.Faults) != 0 {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = said(t, "config", "check", "--role", "coordinator", file, "-o", "json")
	if json.Unmarshal([]byte(out), &got) != nil || err == nil || !strings.HasSuffix(err.Error(), ": 1 fault") || len(got.Faults) != 1 || got.Faults[0].Line != 2 || got.Faults[0].Field != "grpc" {
		t.Errorf("%v\n%s", err, out)
	}
	var keys map[string][]config.Key
	out, err = said(t, "config", "reference", "contexts", "-o", "json")
	if json.Unmarshal([]byte(out), &keys) != nil || err != nil || len(keys) != 1 || keys["contexts"][0].Key != "current" {
		t.Errorf("%v\n%s", err, out)
	}
}

// Nothing that a file holds ends the process: what is refused is told by its
// place or its key, and what is taken is taken again as it is shown. Files that it
// names are not looked into.
func FuzzConfigurations(f *testing.F) {
	for _, text := range enough {
		f.Add(text)
	}
	f.Add("cache: {memory: 1}\nretention: {a: {age: -1s}}\nquotas: {a: {per_second: .nan}}")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := document.Parse([]byte(text))
		if err != nil {
			toldWhere(t, err)
			return
		}
		n.Find("a.b[1].c")
		for _, of := range roles.Files().All {
			cfg := of.New()
			if err := n.Decode(cfg); err != nil {
				toldWhere(t, err)
				continue
			}
			bad := false
			for _, l := range config.LeavesOf(reflect.ValueOf(cfg).Elem(), "", false) {
				n.Find(l.Path)
				for _, err := range l.Validate() {
					bad = true
					if e, ok := errors.AsType[*millrace.Error](err); !ok || !strings.HasPrefix(e.Field, l.Path) || e.WayOut == "" {
						t.Errorf("%s: %s is told by %v", of.Of, l.Path, err)
					}
				}
			}
			given(t, n, cfg)
			cfg.Complete()
			whole, err := document.Encode(cfg)
			if err != nil {
				t.Fatal(err)
			}
			if err := document.Decode(whole, of.New()); err != nil && !bad {
				t.Errorf("%s: %v\n%s", of.Of, err, whole)
			}
		}
	})
}

// toldWhere holds an error of a file to the place of each fault.
func toldWhere(t *testing.T, err error) {
	t.Helper()
	e, ok := errors.AsType[*document.Error](err)
	if !ok || len(e.Faults) == 0 {
		t.Fatalf("not told by where it is: %v", err)
	}
	for _, f := range e.Faults {
		if f.Line < 1 || f.Col < 1 || f.Detail == "" {
			t.Errorf("a fault without a place: %+v", f)
		}
	}
}

// given holds what was decoded to the keys of the file: the text of none is
// dropped for a default.
func given(t *testing.T, n *document.Node, cfg config.Configuration) {
	t.Helper()
	if n == nil {
		return
	}
	leaves := map[string]config.Leaf{}
	for _, l := range config.LeavesOf(reflect.ValueOf(cfg).Elem(), "", false) {
		leaves[l.Path] = l
	}
	var walk func(n *document.Node, path string)
	walk = func(n *document.Node, path string) {
		for _, e := range n.Entries {
			if strings.Contains(e.Key, ".") {
				continue // its path could be another's
			}
			at := strings.TrimPrefix(path+"."+e.Key, ".")
			if l, ok := leaves[at]; ok && l.Value.Kind() == reflect.String && e.Value.Kind == document.String && l.Value.String() != e.Value.Text {
				t.Errorf("%s is %q, and not %q", at, l.Value.String(), e.Value.Text)
			}
			walk(e.Value, at)
		}
	}
	walk(n, "")
}
