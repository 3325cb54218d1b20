package cli

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
)

// onMadeUpSeriesAlone are the alerts that no test brings about on processes, and why.
// Those of ops/alerts/tests, by series that are made up, have all of them.
var onMadeUpSeriesAlone = map[string]string{
	"MillraceNodePanics": "needs a bug",
	"MillraceUnitsFull":  "needs as many viewers as fit a third of the machine's memory",
}

// TestAlertsAreBroughtAbout wants each alert in a table of TestFaultAlerts and those like
// it, or among those that are not, and none in both.
func TestAlertsAreBroughtAbout(t *testing.T) {
	found := func(pattern, what string) (names []string) {
		t.Helper()
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("no %s: %v", pattern, err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range regexp.MustCompile(what).FindAllString(string(text), -1) {
				names = append(names, regexp.MustCompile(`Millrace\w+`).FindAllString(part, -1)...)
			}
		}
		return names
	}
	all, brought := found("../../ops/alerts/*.yaml", `alert: \w+`), found("fault_alerts_*test.go", `fires\{"[^}]*\}`)
	for _, name := range all {
		_, left := onMadeUpSeriesAlone[name]
		switch is := slices.Contains(brought, name); {
		case !is && !left:
			t.Errorf("no fault brings about %s", name)
		case is && left:
			t.Errorf("%s is brought about, and named as one that is not", name)
		}
	}
	for _, name := range append(brought, slices.Collect(maps.Keys(onMadeUpSeriesAlone))...) {
		if !slices.Contains(all, name) {
			t.Errorf("there is no alert %s", name)
		}
	}
}
