package command

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/internal/partition"
)

// skew is how far clocks may differ: whose is behind may be told a time that has come
// elsewhere.
const skew = time.Minute

// Since reads a flag that says from when on something is meant: how long ago, or when.
func Since(flag, text string, now time.Time) (millrace.Time, error) {
	t, err := Until(flag, text, now)
	if err == nil && t > millrace.TimeOf(now.Add(skew)) {
		return 0, notThen(flag, fmt.Sprintf("%q has not come yet", text))
	}
	return t, err
}

// Until is Since of a flag that says up to when, which may be to come.
func Until(flag, text string, now time.Time) (millrace.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil {
		if ago < 0 {
			return 0, notThen(flag, fmt.Sprintf("%q is no time ago", text))
		}
		return millrace.TimeOf(now.Add(-ago)), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, notThen(flag, fmt.Sprintf("%q is neither a duration nor a time", text))
	}
	return millrace.TimeOf(t), nil
}

func notThen(flag, detail string) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: flag, Detail: detail, WayOut: "say how long ago, such as 90m, or when by RFC 3339, such as 2026-03-01T12:00:00Z"}
}

// UnknownAmong is the refusal of a name that none of the answers has that were
// read, with the names that they have. Then says of which time these are, such as
// " since 90m"; empty: of all.
func UnknownAmong(field, name, what, then string, has map[string]bool) error {
	e := &millrace.Error{Reason: millrace.ReasonNotFound, Field: field, Detail: fmt.Sprintf("%s of %s %s%s", what, field, name, then), WayOut: "it has answers of no " + field}
	if len(has) > 0 {
		e.WayOut = hint.Nearest(name, slices.Sorted(maps.Keys(has)))
	}
	if then != "" {
		e.WayOut += then + "; there may be some of another time"
	}
	return e
}

// Partition reads the number of a partition.
func Partition(text string) (millrace.Partition, error) {
	set, err := topology.ParseSet(text)
	if err == nil && set.Len() == 1 {
		for p := range set.All() {
			return p, nil
		}
	}
	return 0, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "partition", Detail: fmt.Sprintf("%.40q is no partition", text), WayOut: fmt.Sprintf("name one of 0 to %d", partition.Count-1)}
}
