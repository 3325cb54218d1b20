package topology

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// Report says why partitions of a node are in a state other than ready, or warns about them.
type Report struct {
	State  string // a state of a replica, such as "catching_up" or "quarantined"
	Reason string // a stable word, such as "log_begins_later" or "disk_full"
	Detail string // for people
	// Partitions are those that the report is about.
	Partitions Set
	Since      time.Time // since when the first of them is in the state
	Seconds    float64   // by how much the oldest of their answers may be behind the log; 0: not known
	Warning    bool      // the partitions are served well; the report is a warning about them
}

// The reasons of a [Report] for what an operator has done, until the operator ends it.
const (
	PausedReason     = "paused"      // the node applies nothing, and its answers grow old
	ByOperatorReason = "by_operator" // replicas are out of service until they are released
)

// The reasons of a [Report] of a node whose store takes no new records.
const (
	DiskFullReason     = "disk_full"
	StoreFailingReason = "store_failing" // it cannot be written or read
)

const (
	maxReportsBytes = 64 << 10 // of all reports of a node, encoded
	maxMerged       = 20       // so many merged reports and one more fit, however JSON escapes their texts
	maxDetailBytes  = 300      // of Detail
	maxWordBytes    = 40       // of State and Reason
)

// reportDoc is a Report as etcd holds it.
type reportDoc struct {
	State      string    `json:"state"`
	Reason     string    `json:"reason,omitempty"`
	Detail     string    `json:"detail,omitempty"`
	Partitions []byte    `json:"partitions"`
	Since      time.Time `json:"since"`
	Seconds    float64   `json:"seconds,omitempty"`
	Warning    bool      `json:"warning,omitempty"`
}

// EncodeReports returns the reports as etcd holds them; nil if there are none. Long texts are
// cut. If the result is longer than maxReportsBytes, reports of the same state and reason
// are merged into one, with the detail of the first.
func EncodeReports(reports []Report) []byte {
	if len(reports) == 0 {
		return nil
	}
	told := make([]Report, len(reports))
	for i, r := range reports {
		r.State, r.Reason, r.Detail = short(r.State, maxWordBytes), short(r.Reason, maxWordBytes), short(r.Detail, maxDetailBytes)
		told[i] = r
	}
	body := marshalReports(told)
	if len(body) > maxReportsBytes {
		body = marshalReports(mergeReports(told))
	}
	return body
}

func marshalReports(reports []Report) []byte {
	docs := make([]reportDoc, len(reports))
	for i, r := range reports {
		if math.IsNaN(r.Seconds) || math.IsInf(r.Seconds, 0) {
			r.Seconds = 0
		}
		docs[i] = reportDoc{r.State, r.Reason, r.Detail, r.Partitions.Encode(), whole(r.Since), r.Seconds, r.Warning}
	}
	body, err := json.Marshal(docs)
	if err != nil {
		panic(fmt.Sprintf("cluster: reports: %v", err)) // they hold nothing that JSON cannot say
	}
	return body
}

// whole returns a time in UTC truncated to seconds; the zero time if JSON cannot express it.
func whole(t time.Time) time.Time {
	if t = t.UTC(); t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}
	}
	return t.Truncate(time.Second)
}

// short returns a text as valid UTF-8, cut to so many bytes between two characters.
func short(s string, bytes int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= bytes {
		return s
	}
	for bytes > 0 && !utf8.RuneStart(s[bytes]) {
		bytes--
	}
	return s[:bytes]
}

// mergeReports merges the reports of each state and reason into one. Those beyond the first
// maxMerged become a single report with the reason "others".
func mergeReports(reports []Report) []Report {
	type key struct{ state, reason string }
	at := map[key]int{}
	var out []Report
	for _, r := range reports {
		k := key{r.State, r.Reason}
		i, ok := at[k]
		switch {
		case !ok && len(out) < maxMerged:
			at[k] = len(out)
			out = append(out, r)
			continue
		case !ok:
			if len(out) == maxMerged {
				out = append(out, Report{State: r.State, Reason: "others", Since: r.Since, Warning: r.Warning})
			}
			i = maxMerged
		}
		out[i].Partitions = out[i].Partitions.Or(r.Partitions)
		out[i].Seconds = max(out[i].Seconds, r.Seconds)
		out[i].Warning = out[i].Warning && r.Warning
		if r.Since.Before(out[i].Since) {
			out[i].Since = r.Since
		}
	}
	return out
}

func decodeReports(b []byte) ([]Report, error) {
	if len(b) > maxReportsBytes {
		return nil, fmt.Errorf("reports of %d bytes are longer than %d", len(b), maxReportsBytes)
	}
	var docs []reportDoc
	if err := json.Unmarshal(b, &docs); err != nil {
		return nil, err
	}
	reports := make([]Report, len(docs))
	for i, d := range docs {
		set, err := decodeSet(d.Partitions)
		switch {
		case err != nil:
			return nil, err
		case d.State == "":
			return nil, fmt.Errorf("report %d has no state", i)
		case max(len(d.State), len(d.Reason)) > maxWordBytes || len(d.Detail) > maxDetailBytes:
			return nil, fmt.Errorf("report %d is too long", i)
		}
		reports[i] = Report{d.State, d.Reason, d.Detail, set, d.Since.UTC(), d.Seconds, d.Warning}
	}
	return reports, nil
}
