package cli

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/config"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/roles"
	"github.com/millrace/millrace/internal/admin"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/secure/authority"
)

const deploy = "../../deploy"

// configurations are where deployments have a file for each role.
var configurations = []string{"compose/millrace", "systemd/etc", "kustomize/base/config", "kustomize/secured/config"}

// deployed is a role's configuration, as a deployment has it.
type deployed struct {
	common *roles.Common
	own    []config.Setting // in which processes of the role differ
	data   string
	ports  map[string]string // by the key
	drain  time.Duration     // how long the role answers on when it is told to stop
}

func readDeployed(t *testing.T, file string) deployed {
	t.Helper()
	cfg, err := roles.Files().Named(strings.TrimSuffix(filepath.Base(file), ".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := document.ReadFile(file)
	if err == nil {
		err = document.Decode(text, cfg)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	d := deployed{own: ownOf(cfg), ports: map[string]string{}}
	d.common, _ = reflect.ValueOf(cfg).Elem().FieldByName("Common").Addr().Interface().(*roles.Common)
	cfg.Complete()
	for _, l := range config.LeavesOf(reflect.ValueOf(cfg).Elem(), "", false) {
		switch l.Path {
		case "data":
			d.data = l.Text()
		case "drain":
			d.drain = *l.Value.Interface().(*time.Duration)
		case "listen":
			d.ports["nodes"] = l.Text()
		case "admin", "http", "grpc":
			d.ports[l.Path] = l.Text()
		}
	}
	return d
}

// ownOf are the settings in which processes of a role differ.
func ownOf(cfg config.Configuration) []config.Setting {
	return slices.DeleteFunc(cfg.Settings(), func(s config.Setting) bool { return !s.Own })
}

func ownOfRole(role string) []config.Setting {
	cfg, _ := roles.Files().Named(role)
	return ownOf(cfg)
}

// Every configuration that a deployment has is one that config check takes, with
// what its deployment gives besides: variables of the environment, and files of
// certificates and secrets.
func TestDeployedConfigurations(t *testing.T) {
	drop, err := os.ReadFile(filepath.Join(deploy, "systemd", "millrace@.service.d", "secured.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range configurations {
		files, err := filepath.Glob(filepath.Join(deploy, dir, "*.yaml"))
		if err != nil || len(files) != 4 {
			t.Errorf("%s has %v, %v; want a file for each role", dir, files, err)
		}
		for _, file := range files {
			t.Run(file, func(t *testing.T) {
				of, secrets := authority.New(t).Issue("role", "127.0.0.1"), t.TempDir()
				place := func(name, from string) {
					text := []byte("a long enough secret")
					if from != "" {
						if text, err = os.ReadFile(from); err != nil {
							t.Fatal(err)
						}
					}
					name = filepath.Join(secrets, name)
					if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o700), os.WriteFile(name, text, 0o600)); err != nil {
						t.Fatal(err)
					}
				}
				for name, from := range map[string]string{
					"tls/ca.crt": of.CA, "tls/tls.crt": of.Cert, "tls/tls.key": of.Key, "kafka/ca.crt": of.CA, "etcd/ca.crt": of.CA, "kafka/password": "", "etcd/password": "",
					"ca.pem": of.CA, "role.pem": of.Cert, "role.key": of.Key, "kafka-ca.pem": of.CA, "etcd-ca.pem": of.CA, "kafka-password": "", "etcd-password": "",
				} {
					place(name, from)
				}
				for _, name := range []string{"ID", "INSTANCE", "NAME", "ZONE"} {
					t.Setenv("MILLRACE_"+name, "one")
				}
				if dir == "systemd/etc" {
					for _, m := range regexp.MustCompile(`(?m)^Environment=(MILLRACE_\w+)=(.*)$`).FindAllStringSubmatch(string(drop), -1) {
						t.Setenv(m[1], strings.ReplaceAll(m[2], "%d", secrets))
					}
				}
				text, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				laid := clitest.Written(t, strings.ReplaceAll(string(text), "/run/secrets/millrace", secrets))
				if out, err := said(t, "config", "check", laid); err != nil || !strings.HasPrefix(out, "ok: ") {
					t.Errorf("%v\n%s", err, out)
				}
				c := readDeployed(t, file)
				if secured := c.common.TLS.On() || dir == "systemd/etc"; secured == c.common.Insecure || secured != c.common.Authorization.On() {
					t.Error("TLS and authorization, or insecure: true, and not both")
				}
			})
		}
	}
}

// plain is a document as maps, lists and texts.
func plain(n *document.Node) any {
	switch {
	case n == nil || n.Kind == document.Null:
		return nil
	case n.Kind == document.List:
		var all []any
		for _, x := range n.Items {
			all = append(all, plain(x))
		}
		return all
	case n.Kind == document.Mapping:
		all := map[string]any{}
		for _, e := range n.Entries {
			all[e.Key] = plain(e.Value)
		}
		return all
	}
	return n.Text
}

// at walks down a document by keys and, in lists, by the names of their items;
// nil is where there is nothing.
func at(x any, path ...string) any {
	for _, key := range path {
		switch v := x.(type) {
		case map[string]any:
			x = v[key]
		case []any:
			i := slices.IndexFunc(v, func(item any) bool { return at(item, "name") == key })
			if i < 0 {
				return nil
			}
			x = v[i]
		default:
			return nil
		}
	}
	return x
}

func wordsIn(x any) (all []string) {
	list, _ := x.([]any)
	for _, v := range list {
		s, _ := v.(string)
		all = append(all, s)
	}
	return all
}

// parsed are the documents of a file in YAML.
func parsed(t *testing.T, file string) (all []any) {
	t.Helper()
	text, err := document.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		n, err := document.Parse([]byte(part))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, plain(n))
	}
	return all
}

// takes fails where the program has no such command, flags or arguments.
func takes(t *testing.T, where string, line []string) {
	t.Helper()
	all := root()
	all.InitDefaultHelpCmd() // as it does before it runs a line
	c, rest, err := all.Find(line)
	if err == nil {
		err = c.ParseFlags(rest)
	}
	if err == nil {
		err = c.ValidateArgs(c.Flags().Args())
	}
	if err == nil {
		err = c.ValidateRequiredFlags()
	}
	if err != nil || c == c.Root() && len(line) > 0 && line[0] != "--help" {
		t.Errorf("%s: millrace %s: %v", where, strings.Join(line, " "), err)
	}
}

// variables are those of the environment that a role takes.
func variables(own []config.Setting) (names []string) {
	for _, s := range append(reach.SettingsOf(new(reach.Security)), own...) {
		names = append(names, s.Env)
	}
	return names
}

// The services of the compose file have images with tags, wait for services
// that there are, and give the program what it takes.
func TestComposedServices(t *testing.T) {
	dir := filepath.Join(deploy, "compose")
	services, _ := at(parsed(t, filepath.Join(dir, "compose.yaml"))[0], "services").(map[string]any)
	base := at(parsed(t, filepath.Join(dir, "role.yaml"))[0], "services", "role")
	if test := wordsIn(at(base, "healthcheck", "test")); len(test) < 3 || test[0] != "CMD" || test[1] != "/millrace" {
		t.Errorf("the health of roles is asked by %v", test)
	} else {
		takes(t, "the health of roles", test[2:])
	}
	roles := map[string]int{}
	for name, s := range services {
		for other := range maps.Keys(mapping(at(s, "depends_on"))) {
			if services[other] == nil {
				t.Errorf("%s waits for %s, which there is not", name, other)
			}
		}
		if at(s, "extends") == nil {
			if image, _ := at(s, "image").(string); !regexp.MustCompile(`^(\$\{\w+:-)?[a-z0-9-]+/[a-z0-9-]+:v?\d[\w.]*\}?$`).MatchString(image) {
				t.Errorf("the image of %s is %q", name, image)
			}
			continue
		}
		line := wordsIn(at(s, "command"))
		takes(t, name, line)
		if len(line) < 3 || line[1] != "--config" {
			continue
		}
		roles[line[0]]++
		c := readDeployed(t, filepath.Join(dir, strings.Replace(line[2], "/etc/", "", 1)))
		env := mapping(at(s, "environment"))
		for key := range env {
			if !slices.Contains(variables(c.own), key) {
				t.Errorf("%s: the role does not take %s", name, key)
			}
		}
		for _, x := range c.own {
			if env[x.Env] == nil && *x.Text == "" {
				t.Errorf("%s has no %s", name, x.Flag)
			}
		}
		if c.data != "" && !slices.Contains(wordsIn(at(s, "volumes")), name+":"+c.data) {
			t.Errorf("%s keeps nothing of %s", name, c.data)
		}
		if c.ports["nodes"] != "" && env["MILLRACE_ADVERTISE"] != name+portOf(c.ports["nodes"]) {
			t.Errorf("%s is reached at %v", name, env["MILLRACE_ADVERTISE"])
		}
	}
	if want := map[string]int{"partitioner": 2, "indexnode": 3, "broker": 2, "coordinator": 2}; !maps.Equal(roles, want) {
		t.Errorf("roles are %v, want %v", roles, want)
	}
	scrapes := parsed(t, filepath.Join(dir, "prometheus.yaml"))[0]
	for _, scraped := range at(scrapes, "scrape_configs").([]any) {
		for _, group := range at(scraped, "static_configs").([]any) {
			for _, target := range wordsIn(at(group, "targets")) {
				host, port, _ := strings.Cut(target, ":")
				role := wordsIn(at(services[host], "command"))
				if len(role) < 3 {
					t.Fatalf("%s is scraped, and is no role", target)
				}
				if job := at(scraped, "job_name"); job != "millrace-"+role[0] { // alerts go by it
					t.Errorf("%s is scraped as %v", target, job)
				}
				if c := readDeployed(t, filepath.Join(dir, "millrace", role[0]+".yaml")); portOf(c.ports["admin"]) != ":"+port {
					t.Errorf("%s is scraped, and its admin port is %s", target, c.ports["admin"])
				}
			}
		}
	}
	// Alerts and dashboards are where they are looked for.
	provided := at(parsed(t, filepath.Join(dir, "grafana", "dashboards", "millrace.yaml"))[0], "providers").([]any)[0]
	for _, c := range []struct{ service, files, of string }{
		{"prometheus", filepath.Dir(wordsIn(at(scrapes, "rule_files"))[0]), "alerts/broker.yaml"},
		{"grafana", fmt.Sprint(at(provided, "options", "path")), "dashboards/broker.json"},
	} {
		from := filepath.Join("..", "..", "ops", filepath.Dir(c.of))
		if mounts := wordsIn(at(services[c.service], "volumes")); !slices.Contains(mounts, from+":"+c.files+":ro") {
			t.Errorf("%s has no %s at %s: %v", c.service, from, c.files, mounts)
		}
		if _, err := os.Stat(filepath.Join(dir, from, filepath.Base(c.of))); err != nil {
			t.Error(err)
		}
	}
}

func mapping(x any) map[string]any {
	m, _ := x.(map[string]any)
	return m
}

// portOf is the port of an address, with its colon.
func portOf(addr string) string { return addr[strings.LastIndexByte(addr, ':'):] }

// The unit of systemd gives roles what they take, and more time to end than they
// need.
func TestUnit(t *testing.T) {
	dir := filepath.Join(deploy, "systemd")
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	unit := read("millrace@.service")
	line := regexp.MustCompile(`(?m)^ExecStart=/usr/bin/millrace (.*)$`).FindStringSubmatch(unit)
	stop := regexp.MustCompile(`(?m)^TimeoutStopSec=(\d+)$`).FindStringSubmatch(unit)
	if line == nil || stop == nil {
		t.Fatal("the unit has no line to start, or no time to stop")
	}
	seconds, _ := strconv.Atoi(stop[1])
	var own []config.Setting
	for _, role := range []string{"partitioner", "indexnode", "broker", "coordinator"} {
		words := strings.Fields(strings.ReplaceAll(line[1], "%i", role))
		takes(t, "the unit", words)
		c := readDeployed(t, filepath.Join(dir, "etc", filepath.Base(words[2])))
		own = append(own, c.own...)
		if c.data != "" && c.data != "/var/lib/millrace/"+role {
			t.Errorf("the unit does not make %s", c.data)
		}
		if c.common.Audit != "/var/log/millrace/"+role+"/audit.ndjson" {
			t.Errorf("the unit does not let %s be written", c.common.Audit)
		}
		if time.Duration(seconds)*time.Second <= c.drain+roles.FinishFor+roles.ClosesFor {
			t.Errorf("the unit gives %ds to a role that drains for %v", seconds, c.drain)
		}
	}
	// No role has the user, the certificate or the log of another.
	users, secured := read("millrace.sysusers"), read("millrace@.service.d/secured.conf")
	for _, role := range []string{"partitioner", "indexnode", "broker", "coordinator"} {
		if !strings.Contains(users, "\nu millrace-"+role+" - ") {
			t.Errorf("nobody makes the user of %s", role)
		}
	}
	for text, lines := range map[string][]string{
		unit:    {"User=millrace-%i", "Group=millrace-%i", "LogsDirectory=millrace/%i", "StateDirectory=millrace/%i"},
		secured: {"LoadCredential=role.pem:/etc/millrace/secrets/%i.pem", "LoadCredential=role.key:/etc/millrace/secrets/%i.key"},
	} {
		for _, line := range lines {
			if !strings.Contains(text, "\n"+line+"\n") {
				t.Errorf("there is no line %s", line)
			}
		}
	}
	known, credentials := variables(own), []string(nil)
	for _, m := range regexp.MustCompile(`(?m)^LoadCredential=([\w.-]+):`).FindAllStringSubmatch(secured, -1) {
		credentials = append(credentials, m[1])
	}
	for _, m := range regexp.MustCompile(`(?m)^(?:Environment=|#)?(MILLRACE_\w+)=(.*)$`).FindAllStringSubmatch(secured+read("etc/millrace.env"), -1) {
		if !slices.Contains(known, m[1]) {
			t.Errorf("no role takes %s", m[1])
		}
		if file, ok := strings.CutPrefix(m[2], "%d/"); ok && !slices.Contains(credentials, file) {
			t.Errorf("%s is no credential", m[2])
		}
	}
	if len(credentials) < 5 {
		t.Errorf("credentials are %v", credentials)
	}
}

// serves reports whether an admin port has a path.
func serves(path string) bool {
	w := httptest.NewRecorder()
	admin.Handler(prometheus.NewRegistry(), func() error { return nil }, http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code == http.StatusOK
}

// What the page on deployments says exists: commands, flags, targets of make, and
// files.
func TestDeployPage(t *testing.T) {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	page := read("docs/deploy.md")
	words := func(pattern, text string, do func(string)) {
		found := regexp.MustCompile(pattern).FindAllStringSubmatch(text, -1)
		if len(found) == 0 {
			t.Errorf("the page has no %s", pattern)
		}
		for _, m := range found {
			do(m[1])
		}
	}
	targets := read("Makefile")
	words("(?m)(?:^|`)make ([a-z-]+)", page, func(target string) {
		if !strings.Contains(targets, "\n"+target+":") {
			t.Errorf("make has no %s", target)
		}
	})
	exists := func(name string) {
		if _, err := os.Stat(filepath.Join("..", "..", strings.ReplaceAll(name, "ROLE", "broker"))); err != nil {
			t.Error(err)
		}
	}
	words("[\\s(/`]((?:deploy/(?:container|compose|kustomize|systemd)|scripts)\\b[\\w./@-]*)", page, exists)
	words(`\]\(([a-z]+\.md)`, page, func(name string) { exists("docs/" + name) })
	words("(?m)(?:^|`|`/|-- /)millrace ([a-z][^#`\n]*)", page, func(line string) { takes(t, "the page", strings.Fields(line)) })
	flags := map[string]bool{"read-only": true, "check": true} // of Docker and of sha256sum
	commands(root(), func(_ string, c *cobra.Command) {
		for _, set := range []*pflag.FlagSet{c.LocalFlags(), c.InheritedFlags()} {
			set.VisitAll(func(f *pflag.Flag) { flags[f.Name] = true })
		}
	})
	words("(?m)[ `]--([a-z-]+[a-z])", page[:strings.Index(page, "## systemd")], func(flag string) {
		if !flags[flag] {
			t.Errorf("no command has --%s", flag)
		}
	})
	known := strings.Join(variables(slices.Concat(ownOfRole("indexnode"), ownOfRole("partitioner"), ownOfRole("coordinator"))), " ")
	words("`(MILLRACE_[A-Z]+)`", page, func(name string) {
		if !strings.Contains(known, name) {
			t.Errorf("no role takes %s", name)
		}
	})
	if !strings.Contains(read("README.md"), "(docs/deploy.md)") {
		t.Error("the README does not lead to the page")
	}
}

// Who says who may do what has it written down.
func TestSecuredDeploymentsAreAudited(t *testing.T) {
	secured := 0
	for _, dir := range configurations {
		files, err := filepath.Glob(filepath.Join(deploy, dir, "*.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			c := readDeployed(t, file).common
			if !c.Authorization.On() {
				continue
			}
			if secured++; !strings.HasPrefix(c.Audit, "/var/") {
				t.Errorf("%s: the audit log is %q", file, c.Audit)
			}
		}
	}
	if secured != 8 {
		t.Errorf("%d configurations are secured", secured)
	}
}
