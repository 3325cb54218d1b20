package command

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/hint"
	"github.com/millrace/millrace/internal/partition"
)

// Since reads how long ago, or when.
func Since(text string, now time.Time) (millrace.Time, error) {
	if ago, err := time.ParseDuration(text); err == nil {
		return millrace.TimeOf(now.Add(-ago)), nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "since", Detail: fmt.Sprintf("%q is neither a duration nor a time", text),
			WayOut: "say how long ago, such as 90m, or when by RFC 3339, such as 2026-03-01T12:00:00Z"}
	}
	return millrace.TimeOf(t), nil
}

// UnknownAmong is the refusal of a name that none of the answers has that were
// read, with the names that they have.
func UnknownAmong(field, name, what string, has map[string]bool) error {
	e := &millrace.Error{Reason: millrace.ReasonNotFound, Field: field, Detail: fmt.Sprintf("%s of %s %s", what, field, name), WayOut: "it has answers of no " + field}
	if len(has) > 0 {
		e.WayOut = hint.Nearest(name, slices.Sorted(maps.Keys(has)))
	}
	return e
}

// TimeFlag is Since of another flag.
func TimeFlag(flag, text string, now time.Time) (millrace.Time, error) {
	t, err := Since(text, now)
	if e := (*millrace.Error)(nil); errors.As(err, &e) {
		e.Field = flag
	}
	return t, err
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
