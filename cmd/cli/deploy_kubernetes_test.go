package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/cmd/cli/roles"
)

// manifests are the documents of the base, by kind and name.
func manifests(t *testing.T) map[string]map[string]any {
	t.Helper()
	dir := filepath.Join(deploy, "kustomize", "base")
	named := wordsIn(at(parsed(t, filepath.Join(dir, "kustomization.yaml"))[0], "resources"))
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]any{}
	for _, file := range files {
		switch base := filepath.Base(file); {
		case base == "kustomization.yaml":
			continue
		case !slices.Contains(named, base):
			t.Errorf("%s is no resource of the kustomization", base)
		}
		for _, m := range parsed(t, file) {
			kind, _ := at(m, "kind").(string)
			name, _ := at(m, "metadata", "name").(string)
			if kind == "" || name == "" || all[kind] != nil && all[kind][name] != nil {
				t.Errorf("%s: %q %q is nameless, or there twice", file, kind, name)
			}
			if all[kind] == nil {
				all[kind] = map[string]any{}
			}
			all[kind][name] = m
		}
	}
	if len(named) != len(files)-1 {
		t.Errorf("the kustomization names %v, and there are %d files", named, len(files)-1)
	}
	return all
}

const appLabel = "app.kubernetes.io/name"

// workload is what runs a role's pods.
type workload struct {
	*testing.T
	role    string
	pod     any // its spec
	c       any // its container
	secured any // what the overlay changes of the pod's spec
	config  deployed
}

func workloads(t *testing.T, all map[string]map[string]any) map[string]workload {
	ws := map[string]workload{}
	for _, kind := range []string{"StatefulSet", "Deployment"} {
		for role, m := range all[kind] {
			patch := parsed(t, filepath.Join(deploy, "kustomize", "secured", role+".yaml"))[0]
			w := workload{t, role, at(m, "spec", "template", "spec"), at(m, "spec", "template", "spec", "containers", role), at(patch, "spec", "template", "spec"), readDeployed(t, filepath.Join(deploy, "kustomize", "base", "config", role+".yaml"))}
			if w.c == nil || at(m, "spec", "selector", "matchLabels", appLabel) != role || at(m, "spec", "template", "metadata", "labels", appLabel) != role {
				t.Fatalf("%s: its pods and its container have other names", role)
			}
			if at(patch, "kind") != kind || at(patch, "metadata", "name") != role {
				t.Errorf("%s: the overlay changes another", role)
			}
			if data := w.config.data; kind == "StatefulSet" && data != "" && at(m, "spec", "volumeClaimTemplates") == nil {
				t.Errorf("%s: %s is in no volume that stays", role, data)
			}
			ws[role] = w
		}
	}
	return ws
}

// Each pod has the ports, the directories, the user, the probes and the time to
// stop that its role's configuration and the image ask for, plain and secured.
func TestPods(t *testing.T) {
	image, err := os.ReadFile(filepath.Join(deploy, "container", "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	user := regexp.MustCompile(`(?m)^USER (\d+):(\d+)$`).FindStringSubmatch(string(image))
	ws := workloads(t, manifests(t))
	if len(ws) != 4 || user == nil {
		t.Fatalf("%d roles, user %v", len(ws), user)
	}
	for _, w := range ws {
		takes(t, w.role, wordsIn(at(w.c, "args")))
		for key, want := range map[string]string{"runAsUser": user[1], "runAsGroup": user[2], "fsGroup": user[2], "runAsNonRoot": "true"} {
			if got := at(w.pod, "securityContext", key); got != want {
				t.Errorf("%s: %s is %v, want %s", w.role, key, got, want)
			}
		}
		if at(w.c, "securityContext", "readOnlyRootFilesystem") != "true" || at(w.c, "securityContext", "allowPrivilegeEscalation") != "false" {
			t.Errorf("%s: %v", w.role, at(w.c, "securityContext"))
		}
		for name, addr := range w.config.ports {
			if got, _ := at(w.c, "ports", name, "containerPort").(string); ":"+got != portOf(addr) {
				t.Errorf("%s: port %s is %s, and the configuration says %s", w.role, name, got, addr)
			}
		}
		if got := at(w.c, "ports").([]any); len(got) != len(w.config.ports) {
			t.Errorf("%s has other ports than its configuration: %v", w.role, got)
		}
		w.probes()
		w.environment()
		w.volumes()
		w.memory()
		grace, _ := strconv.Atoi(at(w.pod, "terminationGracePeriodSeconds").(string))
		if time.Duration(grace)*time.Second <= w.config.drain+roles.FinishFor+roles.ClosesFor {
			t.Errorf("%s has %ds to drain for %v", w.role, grace, w.config.drain)
		}
	}
}

func (w workload) probes() {
	for probe, path := range map[string]string{"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"} {
		if get := at(w.c, probe, "httpGet"); at(get, "path") != path || at(get, "port") != "admin" || !serves(path) {
			w.Errorf("%s: %s asks %v", w.role, probe, get)
		}
		if at(w.secured, "containers", w.role, probe, "httpGet", "scheme") != "HTTPS" {
			w.Errorf("%s: the overlay's %s is not by TLS", w.role, probe)
		}
	}
	if c := readDeployed(w.T, filepath.Join(deploy, "kustomize", "secured", "config", w.role+".yaml")); !c.common.Authorization.Probes {
		w.Errorf("%s: the kubelet shows no certificate, and may not ask", w.role)
	}
}

func (w workload) environment() {
	env := at(w.c, "env").([]any)
	for _, e := range env {
		name := at(e, "name").(string)
		if strings.HasPrefix(name, "MILLRACE_") && !slices.Contains(variables(w.config.own), name) {
			w.Errorf("%s: the role does not take %s", w.role, name)
		}
	}
	for _, x := range w.config.own {
		if at(env, x.Env) == nil && *x.Text == "" && x.Flag != "name" { // which is the host's
			w.Errorf("%s has no %s", w.role, x.Flag)
		}
	}
}

// memory is what Go's collector keeps to: with what an index node's cache maps beside
// its heap, it is less than what the container has.
func (w workload) memory() {
	bytes := func(text any) float64 {
		var n float64
		var unit string
		if _, err := fmt.Sscanf(fmt.Sprint(text), "%f%s", &n, &unit); err != nil {
			w.Fatalf("%s: %v: %v", w.role, text, err)
		}
		return n * map[string]float64{"Mi": 1 << 20, "MiB": 1 << 20, "Gi": 1 << 30, "GiB": 1 << 30}[unit]
	}
	limit, taken := bytes(at(w.c, "resources", "limits", "memory")), bytes(at(w.c, "env", "GOMEMLIMIT", "value"))
	if w.role == "indexnode" {
		for _, kind := range []string{"base", "secured"} {
			if at(parsed(w.T, filepath.Join(deploy, "kustomize", kind, "config", "indexnode.yaml"))[0], "cache") != nil {
				w.Errorf("%s: the cache is of another size than half of the container", kind)
			}
		}
		taken += limit / 2 * 3 / 4
	}
	if taken == 0 || taken > limit*7/8 {
		w.Errorf("%s: Go's heap and caches may take %.0f of %.0f bytes", w.role, taken, limit)
	}
}

// volumes are what the configuration reads and writes, in the base and the
// overlay.
func (w workload) volumes() {
	mounted := map[string]string{} // the volume, by the directory
	for _, spec := range []any{w.pod, w.secured} {
		for _, m := range at(spec, "containers", w.role, "volumeMounts").([]any) {
			mounted[at(m, "mountPath").(string)] = at(m, "name").(string)
		}
	}
	for dir, name := range mounted {
		if name != "data" && at(w.pod, "volumes", name) == nil && at(w.secured, "volumes", name) == nil {
			w.Errorf("%s: there is no volume for %s", w.role, dir)
		}
	}
	if at(w.pod, "volumes", "config", "configMap", "name") != w.role || mounted["/etc/millrace"] != "config" {
		w.Errorf("%s has not its configuration", w.role)
	}
	if data := w.config.data; data != "" && mounted[data] == "" {
		w.Errorf("%s cannot write %s", w.role, data)
	}
	c := readDeployed(w.T, filepath.Join(deploy, "kustomize", "secured", "config", w.role+".yaml"))
	for _, s := range reach.SettingsOf(&c.common.Security) {
		if s.Text != nil && strings.HasPrefix(*s.Text, "/") && mounted[filepath.Dir(*s.Text)] == "" {
			w.Errorf("%s: nothing mounts %s", w.role, *s.Text)
		}
	}
	if at(w.secured, "volumes", "tls", "secret", "secretName") != "millrace-"+w.role+"-tls" {
		w.Errorf("%s has the certificate of another", w.role)
	}
}

// Services, budgets and policies are of pods that there are, and of their ports.
func TestWhatSelectsPods(t *testing.T) {
	all := manifests(t)
	ws := workloads(t, all)
	budgets := 0
	for _, m := range all["PodDisruptionBudget"] {
		if role, _ := at(m, "spec", "selector", "matchLabels", appLabel).(string); ws[role].c == nil {
			t.Errorf("there is no %s to disrupt", role)
		}
		budgets++
	}
	if budgets != len(ws) {
		t.Errorf("%d budgets of %d roles", budgets, len(ws))
	}
	for name, m := range all["Service"] {
		role, _ := at(m, "spec", "selector", appLabel).(string)
		for _, p := range at(m, "spec", "ports").([]any) {
			target, _ := at(p, "targetPort").(string)
			if got := at(ws[role].c, "ports", target, "containerPort"); got == nil || got != at(p, "port") {
				t.Errorf("service %s: %s has %v as port %s", name, role, got, target)
			}
		}
	}
	for name, m := range all["StatefulSet"] {
		if s, _ := at(m, "spec", "serviceName").(string); at(all["Service"][s], "spec", "clusterIP") != "None" {
			t.Errorf("%s has no service that names its pods", name)
		}
	}
	if at(ws["indexnode"].c, "env", "MILLRACE_ADVERTISE", "value") != "$(MILLRACE_ID).indexnode"+portOf(ws["indexnode"].config.ports["nodes"]) {
		t.Error("index nodes are not where their service is")
	}
	for name, m := range all["NetworkPolicy"] {
		role, one := at(m, "spec", "podSelector", "matchLabels", appLabel).(string)
		rules, _ := at(m, "spec", "ingress").([]any)
		for _, rule := range rules {
			for _, p := range at(rule, "ports").([]any) {
				port, _ := at(p, "port").(string)
				for r, w := range ws {
					if (!one || r == role) && at(w.c, "ports", port) == nil {
						t.Errorf("policy %s: %s has no port %s", name, r, port)
					}
				}
			}
		}
	}
}
