package ops

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/internal/document"
	"github.com/millrace/millrace/internal/minicluster"
)

// alert is a rule of Prometheus.
type alert struct {
	Alert       string `yaml:"alert"`
	Expr        string `yaml:"expr"`
	For         string `yaml:"for"`
	Labels      labels `yaml:"labels"`
	Annotations notes  `yaml:"annotations"`
}

type labels struct {
	Severity string `yaml:"severity"`
}

type notes struct {
	Summary     string `yaml:"summary"`
	Description string `yaml:"description"`
	Runbook     string `yaml:"runbook_url"`
}

// alerts reads all rules, by the name of their file.
func alerts(t *testing.T) map[string][]alert {
	t.Helper()
	all := map[string][]alert{}
	for _, name := range glob(t, "alerts/*.yaml") {
		var file struct {
			Groups []struct {
				Name  string  `yaml:"name"`
				Rules []alert `yaml:"rules"`
			} `yaml:"groups"`
		}
		if err := document.Decode(read(t, name), &file); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, g := range file.Groups {
			all[name] = append(all[name], g.Rules...)
		}
	}
	return all
}

// dashboard is what the tests look at of a dashboard of Grafana.
type dashboard struct {
	UID           string `json:"uid"`
	Title         string `json:"title"`
	SchemaVersion int    `json:"schemaVersion"`
	Templating    struct {
		List []struct{ Name, Type, Query string }
	} `json:"templating"`
	Panels []panel `json:"panels"`
}

type panel struct {
	ID          int    `json:"id"`
	Type        string `json:"type"`
	Title       string `json:"title"`
	Datasource  source `json:"datasource"`
	GridPos     place  `json:"gridPos"`
	FieldConfig struct {
		Defaults struct{ Unit string } `json:"defaults"`
	} `json:"fieldConfig"`
	Targets []struct {
		RefID, Expr, LegendFormat string
	} `json:"targets"`
}

type source struct{ Type, UID string }

type place struct{ X, Y, W, H int }

// dashboards reads all dashboards, by the name of their file.
func dashboards(t *testing.T) map[string]dashboard {
	t.Helper()
	all := map[string]dashboard{}
	for _, name := range glob(t, "dashboards/*.json") {
		var d dashboard
		if err := json.Unmarshal(read(t, name), &d); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		all[name] = d
	}
	return all
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(pattern)
	if err != nil || len(names) < 6 {
		t.Fatalf("%s: %d files, %v; want one a role, at least", pattern, len(names), err)
	}
	return names
}

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// expressions are those of all alerts and panels, by where they stand.
func expressions(t *testing.T) map[string]string {
	all := map[string]string{}
	for name, rules := range alerts(t) {
		for _, a := range rules {
			all[name+": "+a.Alert] = a.Expr
		}
	}
	for name, d := range dashboards(t) {
		for _, p := range d.Panels {
			for _, target := range p.Targets {
				all[name+": "+p.Title+" "+target.RefID] = target.Expr
			}
		}
	}
	return all
}

// description is how Prometheus prints what it knows of a metric.
var description = regexp.MustCompile(`fqName: "([^"]+)".*variableLabels: \{([^}]*)\}`)

// registered returns the metrics that roles register, with their labels.
func registered(t *testing.T) map[string][]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	bucket := "file://" + t.TempDir()
	c, err := minicluster.Start(ctx, minicluster.Config{Dir: t.TempDir(), Nodes: 1, Exposures: "exposures", Node: func(n *indexnode.Config) { n.Backup.To = bucket }})
	if err != nil {
		t.Fatal(err)
	}
	descs := make(chan *prometheus.Desc, 2000)
	err = c.WaitReady(ctx) // by then all have registered theirs
	c.Metrics().Describe(descs)
	if err := errors.Join(err, c.Close()); err != nil {
		t.Error(err)
	}
	// What a process registers beside its role.
	collectors.NewGoCollector().Describe(descs)
	collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}).Describe(descs)
	close(descs)
	all := map[string][]string{"up": nil} // Prometheus's own
	for d := range descs {
		m := description.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("not understood: %s", d)
		}
		all[m[1]] = strings.Split(m[2], ",")
	}
	return all
}

var (
	quoted    = regexp.MustCompile(`"[^"]*"`)
	window    = regexp.MustCompile(`\[[^\]]*\]|offset \w+`)
	grouping  = regexp.MustCompile(`\bby \(([^)]*)\)`)
	selector  = regexp.MustCompile(`([a-zA-Z_]\w*)(?:\{([^}]*)\})?`)
	word      = regexp.MustCompile(`[a-zA-Z_]\w*`)
	histogram = regexp.MustCompile(`_(bucket|sum|count)$`)
)

// language are words of PromQL that expressions use.
var language = []string{"sum", "max", "min", "count", "rate", "increase", "histogram_quantile", "absent", "and", "or", "unless", "on", "scalar", "max_over_time", "avg_over_time", "time"}

// scraped are labels that a metric has beside its own: Prometheus adds the first
// two, and le is of a histogram.
var scraped = []string{"instance", "job", "le"}

// Every metric and every label that an alert or a panel names is one that a role
// registers.
func TestMetricsExist(t *testing.T) {
	metrics := registered(t)
	for where, expr := range expressions(t) {
		bare := window.ReplaceAllString(quoted.ReplaceAllString(expr, ""), "")
		if strings.Count(bare, "(") != strings.Count(bare, ")") {
			t.Errorf("%s: a parenthesis is missing", where)
		}
		known := slices.Clone(scraped)
		named := false
		for _, m := range selector.FindAllStringSubmatch(grouping.ReplaceAllString(bare, ""), -1) {
			name := m[1]
			if slices.Contains(language, name) {
				continue
			}
			own, ok := metrics[name]
			if !ok {
				own, ok = metrics[histogram.ReplaceAllString(name, "")]
			}
			if !ok {
				t.Errorf("%s: no role registers %s", where, name)
				continue
			}
			named = true
			known = append(known, own...)
			for _, label := range word.FindAllString(m[2], -1) {
				if !slices.Contains(own, label) && !slices.Contains(scraped, label) {
					t.Errorf("%s: %s has no label %s", where, name, label)
				}
			}
		}
		if !named {
			t.Errorf("%s names no metric", where)
		}
		for _, m := range grouping.FindAllStringSubmatch(bare, -1) {
			for _, label := range word.FindAllString(m[1], -1) {
				if !slices.Contains(known, label) {
					t.Errorf("%s: no metric of it has a label %s", where, label)
				}
			}
		}
	}
}

const runbookURL = "https://github.com/millrace/millrace/blob/main/docs/runbook.md#"

var (
	heading = regexp.MustCompile(`(?m)^## (\w+)$`)
	tested  = regexp.MustCompile(`labels: '\{alertname="(\w+)"`)
)

// Every alert is complete, stands in the runbook's index, has a heading there that
// tells its severity, and a test beside its file, and no heading or test is without an alert.
func TestAlertsHavePagesAndTests(t *testing.T) {
	runbook := string(read(t, "../docs/runbook.md"))
	index, _, _ := strings.Cut(runbook, "\n## ")
	pages := map[string]bool{}
	for _, m := range heading.FindAllStringSubmatch(runbook, -1) {
		pages[m[1]] = true
	}
	tests := map[string]string{}
	for _, name := range glob(t, "alerts/tests/*.yaml") {
		text := string(read(t, name))
		if !strings.Contains(text, "name: an hour of normal load") {
			t.Errorf("%s has no hour of normal load", name)
		}
		for _, m := range tested.FindAllStringSubmatch(text, -1) {
			tests[m[1]] = filepath.Base(name)
		}
	}
	seen := map[string]bool{}
	for name, rules := range alerts(t) {
		for _, a := range rules {
			if seen[a.Alert] {
				t.Errorf("%s stands twice", a.Alert)
			}
			seen[a.Alert] = true
			if a.Labels.Severity != "page" && a.Labels.Severity != "ticket" {
				t.Errorf("%s: severity %q is neither page nor ticket", a.Alert, a.Labels.Severity)
			}
			if a.For == "" || a.Annotations.Summary == "" || a.Annotations.Description == "" {
				t.Errorf("%s lacks for, summary or description", a.Alert)
			}
			if want := runbookURL + strings.ToLower(a.Alert); a.Annotations.Runbook != want {
				t.Errorf("%s: runbook_url is %q, want %q", a.Alert, a.Annotations.Runbook, want)
			}
			if !strings.Contains(runbook, "\n## "+a.Alert+"\n\nSeverity: "+a.Labels.Severity+".\n") {
				t.Errorf("docs/runbook.md has no heading %s with the severity %s below it", a.Alert, a.Labels.Severity)
			}
			if !strings.Contains(index, "["+a.Alert+"](#"+strings.ToLower(a.Alert)+")") {
				t.Errorf("docs/runbook.md does not name %s before its first heading", a.Alert)
			}
			if tests[a.Alert] != filepath.Base(name) {
				t.Errorf("%s: alerts/tests/%s has no fault on which it fires", a.Alert, filepath.Base(name))
			}
			delete(pages, a.Alert)
			delete(tests, a.Alert)
		}
	}
	for name := range pages {
		t.Errorf("docs/runbook.md: there is no alert %s", name)
	}
	for name, file := range tests {
		t.Errorf("alerts/tests/%s: there is no alert %s", file, name)
	}
}

// units are those of Grafana that panels use.
var units = []string{"reqps", "ops", "percentunit", "s", "bytes", "Bps", "short"}

// Dashboards are what Grafana takes: each panel has a place of its own, a title,
// a unit and the data source that the reader chooses.
func TestDashboards(t *testing.T) {
	uids := map[string]bool{}
	for name, d := range dashboards(t) {
		if d.UID == "" || uids[d.UID] || d.Title == "" || d.SchemaVersion == 0 {
			t.Errorf("%s: the uid %q or the title %q is missing or stands twice, or there is no schemaVersion", name, d.UID, d.Title)
		}
		uids[d.UID] = true
		if l := d.Templating.List; len(l) != 1 || l[0].Name != "datasource" || l[0].Type != "datasource" || l[0].Query != "prometheus" {
			t.Errorf("%s: variables are %v, want the data source alone", name, l)
		}
		if n := len(d.Panels); n < 6 || n > 14 {
			t.Errorf("%s has %d panels, want a screen of them", name, n)
		}
		ids, places := map[int]bool{}, map[[2]int]bool{}
		for _, p := range d.Panels {
			at := [2]int{p.GridPos.X, p.GridPos.Y}
			if ids[p.ID] || places[at] || p.GridPos.W == 0 || p.GridPos.H == 0 || p.GridPos.X+p.GridPos.W > 24 {
				t.Errorf("%s: %q has the id or the place of another panel, or is outside the screen", name, p.Title)
			}
			ids[p.ID], places[at] = true, true
			if p.Title == "" || p.Type == "" || !slices.Contains(units, p.FieldConfig.Defaults.Unit) {
				t.Errorf("%s: panel %d has no title or type, or its unit %q is not known", name, p.ID, p.FieldConfig.Defaults.Unit)
			}
			if p.Datasource != (source{"prometheus", "${datasource}"}) {
				t.Errorf("%s: %q reads %v, want the variable", name, p.Title, p.Datasource)
			}
			if len(p.Targets) == 0 {
				t.Errorf("%s: %q shows nothing", name, p.Title)
			}
			for _, target := range p.Targets {
				if target.RefID == "" || target.LegendFormat == "" {
					t.Errorf("%s: %q has a target without a refId or a legend", name, p.Title)
				}
			}
		}
	}
}

// Prometheus itself can read every expression of the dashboards.
func TestDashboardsParse(t *testing.T) {
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("needs promtool, of Debian's package prometheus")
	}
	type rule struct {
		Record string `json:"record"`
		Expr   string `json:"expr"`
	}
	var rules []rule
	for where, expr := range expressions(t) {
		record := "panel:" + regexp.MustCompile(`\W+`).ReplaceAllString(where, "_")
		rules = append(rules, rule{record, strings.ReplaceAll(expr, "$__rate_interval", "5m")})
	}
	file, err := json.Marshal(map[string]any{"groups": []any{map[string]any{"name": "panels", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "panels.yaml") // JSON is YAML
	if err := os.WriteFile(name, file, 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), promtool, "check", "rules", "--lint=none", name).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
