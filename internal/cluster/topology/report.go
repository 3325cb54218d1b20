package topology

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"
	"unicode/utf8"
)

// Report says why partitions of a node are in a state other than ready.
type Report struct {
	State  string // a state of a replica, such as "catching_up" or "quarantined"
	Reason string // a stable word, such as "log_begins_later" or "disk_full"
	Detail string // for people
	// Partitions are those that the report is about.
	Partitions Set
	Since      time.Time // the earliest of them
	Seconds    float64   // that the answers of the oldest of them may be behind; 0: not known
	Warning    bool      // all is well with them, and something is to be known
}

// The reasons of a [Report] that say what operators have done, and end.
const (
	PausedReason     = "paused"      // the node applies nothing for a time: what it answers grows old
	ByOperatorReason = "by_operator" // replicas are out of service until they are released
)

// The reasons of a [Report] of a node whose store takes nothing in: for want of space, or as
// it cannot be written or read.
const (
	DiskFullReason     = "disk_full"
	StoreFailingReason = "store_failing"
)

const (
	maxReportsBytes = 64 << 10
	maxMerged       = 20 // and one more fit, whatever JSON makes of their texts
	maxDetailBytes  = 300
	maxWordBytes    = 40
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

// EncodeReports returns the reports as etcd holds them, nothing for none. If
// they are too long, those of a state and reason become one, with the detail of
// the first.
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

// whole returns a time that JSON can say, to the second.
func whole(t time.Time) time.Time {
	if t = t.UTC(); t.Year() < 0 || t.Year() > 9999 {
		return time.Time{}
	}
	return t.Truncate(time.Second)
}

// short returns a text that is UTF-8, cut at a character.
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

// mergeReports makes one of the reports of each state and reason, and one more
// of those beyond the first maxMerged.
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
