package minicluster

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/indexnode"
)

// description is how Prometheus prints what it knows of a metric.
var description = regexp.MustCompile(`fqName: "([^"]+)", help: "([^"]*)".*variableLabels: \{([^}]*)\}`)

// docs/operations.md lists every metric of the roles with its labels and its
// help, and no other.
func TestMetricsAreDocumented(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	bucket := "file://" + t.TempDir()
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 1, Exposures: "exposures", Node: func(n *indexnode.Config) { n.Backup.To = bucket }})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.WaitReady(ctx); err != nil { // some are registered by then
		t.Error(err)
	}
	descs := make(chan *prometheus.Desc, 1000)
	c.metrics.Describe(descs)
	close(descs)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	var want []string
	for d := range descs {
		m := description.FindStringSubmatch(d.String())
		if m == nil {
			t.Fatalf("not understood: %s", d)
		}
		labels := "" // of the role, not those that tell this test's nodes apart
		if m[3] != "" {
			labels = "`" + strings.Join(strings.Split(m[3], ","), "`, `") + "`"
		}
		want = append(want, fmt.Sprintf("| `%s` | %s | %s |", m[1], labels, m[2]))
	}
	slices.Sort(want)
	want = slices.Compact(want)
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(page)) {
		if strings.HasPrefix(line, "| `millrace_") {
			got = append(got, strings.TrimSpace(line))
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("docs/operations.md does not list the metrics as they are, in order:\n%s", strings.Join(want, "\n"))
	}
}
