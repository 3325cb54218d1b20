package topology

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// However much a node says, it fits, and no partition is left out.
func TestReportsAreBounded(t *testing.T) {
	long := strings.Repeat("é", 1000)
	for name, reason := range map[string]func(p int) string{
		"of one reason":       func(int) string { return "corrupt" },
		"of eight reasons":    func(p int) string { return fmt.Sprint("reason", p%8) },
		"of reasons no end":   func(p int) string { return fmt.Sprint("reason", p) },
		"of reasons too long": func(p int) string { return long + fmt.Sprint(p) },
	} {
		var reports []Report
		for p := range millrace.Partition(partition.Count) {
			r := Report{State: "quarantined", Reason: reason(int(p)), Detail: long, Since: time.Unix(1e9+int64(p), 0), Seconds: math.NaN()}
			r.Partitions.Add(p)
			reports = append(reports, r)
		}
		got, err := decodeReports(EncodeReports(reports))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var all Set
		for _, r := range got {
			all = all.Or(r.Partitions)
		}
		if all != All() {
			t.Errorf("%s: %d partitions are told", name, all.Len())
		}
		if !got[0].Since.Equal(time.Unix(1e9, 0)) {
			t.Errorf("%s: since %v", name, got[0].Since)
		}
	}
	if b := EncodeReports(nil); len(b) != 0 {
		t.Errorf("none are %q", b)
	}
}

// What is said of several reports together is no mere warning if one of them is a
// fault, whichever comes first.
func TestAFaultIsNoWarning(t *testing.T) {
	fault, warning := Report{State: "ready", Reason: "paused"}, Report{State: "ready", Reason: "paused", Warning: true}
	for i, c := range []struct {
		of   []Report
		want bool
	}{{[]Report{fault, warning}, false}, {[]Report{warning, fault}, false}, {[]Report{warning, warning}, true}} {
		if got := mergeReports(c.of); len(got) != 1 || got[0].Warning != c.want {
			t.Errorf("%d: %+v", i, got)
		}
	}
}

// What is malformed is told and left out; the rest of the map goes on.
func TestMalformedReportsAreIgnored(t *testing.T) {
	good := Report{State: "stale", Reason: "kafka_away", Partitions: All()}
	for name, body := range map[string]string{
		"not JSON": "{", "an object": "{}", "no partitions": `[{"state":"stale"}]`, "no state": strings.Replace(string(EncodeReports([]Report{good})), "stale", "", 1),
		"too large": "[" + strings.Repeat(" ", maxReportsBytes) + "]", "deep": strings.Repeat("[", maxReportsBytes),
		"a long detail": strings.Replace(string(EncodeReports([]Report{good})), "kafka_away", strings.Repeat("x", 1000), 1),
	} {
		next, err := NewMap(Assignment{}, nil, nil).Next(at(map[string][]byte{"state/n1": []byte(body), "state/n2": EncodeReports([]Report{good})}))
		if err == nil || !strings.Contains(err.Error(), "state/n1") || len(next.Reports("n1")) != 0 || len(next.Reports("n2")) != 1 {
			t.Errorf("%s: %v, %v", name, next.reports, err)
		}
	}
}

func FuzzDecodeReports(f *testing.F) {
	for _, seed := range []string{"", "[]", `[{"partitions":"AA=="}]`, string(EncodeReports([]Report{{State: "stale", Detail: "é", Partitions: All(), Seconds: 1e300}}))} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		reports, err := decodeReports(b)
		if err != nil || len(reports) == 0 {
			return
		}
		if _, err := decodeReports(EncodeReports(reports)); err != nil {
			t.Fatalf("written and read again: %v", err)
		}
	})
}
