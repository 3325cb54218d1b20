//go:build linux

package cli

import (
	"bufio"
	"bytes"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestFaultAlertsOfWeeks does what TestFaultAlerts does by a Prometheus that has seen the same
// load one and two weeks before.
func TestFaultAlertsOfWeeks(t *testing.T) {
	w := startWatched(t, watchedConfig{nodes: 2, coordinator: "grace: 1h\n", past: weeksBefore})
	w.normal()
	w.breaks(
		alertFault{
			"a producer writes what it writes under another type", fires{"MillraceTypeStopped", "MillraceTypeDoubled"}, nil,
			func() { w.verb = "share" }, func() { w.verb = "post" },
		},
		alertFault{
			"somebody deletes half of a type", fires{"MillraceTypeShrinks"}, nil,
			func() {
				var lines [][]byte
				for i, line := range loadLines() {
					if i%2 == 0 && bytes.Contains(line, []byte(`"share"`)) {
						lines = append(lines, append(bytes.TrimSuffix(line, []byte("}")), `,"deleted":true}`...))
					}
				}
				publish(w.ctx, t, w.kafka, w.prefix, lines)
			}, nil, // for good
		},
	)
}

// weeksBefore is what nodes say now, as they would have said a day, a week, and two weeks
// ago, while ten posts a second came.
func weeksBefore(w *watched) string {
	const day, lasts, step, posts = 24 * 60 * 60, 60 * 60, 15, 10
	var b strings.Builder
	for _, metric := range []string{"type_in_total", "type_records", "ready_partitions"} {
		for _, admin := range w.admin {
			for _, line := range sayings(w, admin, "millrace_indexnode_"+metric) {
				of, text, _ := strings.Cut(line, " ")
				value, err := strconv.ParseFloat(text, 64)
				if err != nil {
					w.t.Fatal(err)
				}
				name, labels, some := strings.Cut(strings.TrimSuffix(of, "}"), "{")
				if some {
					labels += ","
				}
				perSecond := 0.0
				if metric == "type_in_total" && strings.Contains(labels, `"post"`) {
					perSecond = posts
				}
				for _, days := range []int64{14, 7, 1} {
					for s := int64(0); s < lasts; s += step {
						at := time.Now().Unix() - days*day - lasts/4 + s
						fmt.Fprintf(&b, "%s{%sinstance=%q,job=\"millrace-indexnode\"} %f %d\n", name, labels, admin, value+perSecond*float64(s), at)
					}
					value += perSecond * lasts
				}
			}
		}
	}
	return b.String() + "# EOF\n"
}

// sayings are the lines of a metric that a process says.
func sayings(w *watched, admin, metric string) (lines []string) {
	w.t.Helper()
	resp, err := http.Get("http://" + admin + "/metrics")
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), metric); ok && (rest[0] == '{' || rest[0] == ' ') {
			lines = append(lines, s.Text())
		}
	}
	return lines
}
