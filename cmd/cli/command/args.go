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

// skew is how far clocks may differ. A clock that is behind may get a time that is past
// on another machine, and in the future by its own.
const skew = time.Minute

// Since reads the text of a flag that says from when on something is meant: a duration,
// which is how long ago, or a time as of RFC 3339. A time more than skew ahead is refused.
func Since(flag, text string, now time.Time) (millrace.Time, error) {
	t, err := Until(flag, text, now)
	if err == nil && t > millrace.TimeOf(now.Add(skew)) {
		return 0, notThen(flag, fmt.Sprintf("%q has not come yet", text))
	}
	return t, err
}

// Until is Since for a flag that says up to when, which may be in the future.
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

// UnknownAmong returns the refusal of a name that is in none of the answers that were
// read. The parameter field says what kind of name it is, and has holds the names that the
// answers have. The parameter what is the beginning of the message. The parameter then says
// of which time the answers are, such as " since 90m"; empty: of any time.
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
