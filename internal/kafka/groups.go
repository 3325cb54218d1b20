package kafka

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
)

// GroupOffsets are how far groups have consumed, by group, topic and partition.
type GroupOffsets = map[string]map[string]map[int32]millrace.Offset

// SetGroupOffsets has groups go on at these offsets. No group may have a member.
// The offsets of other topics stay.
func SetGroupOffsets(ctx context.Context, brokers []string, all GroupOffsets) error {
	cl, err := newClient(brokers, nil)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	names := slices.Sorted(maps.Keys(all))
	if err := idle(ctx, adm, names); err != nil {
		return err
	}
	for _, name := range names {
		var to kadm.Offsets
		for topic, partitions := range all[name] {
			for p, at := range partitions {
				to.AddOffset(topic, p, int64(at), -1)
			}
		}
		if err := adm.CommitAllOffsets(ctx, name, to); err != nil {
			return fmt.Errorf("kafka: set the offsets of the group %s: %w", name, err)
		}
	}
	return nil
}

// idle refuses groups that somebody is a member of.
func idle(ctx context.Context, adm *kadm.Client, names []string) error {
	described, err := adm.DescribeGroups(ctx, names...)
	if err != nil {
		return fmt.Errorf("kafka: describe the groups %v: %w", names, err)
	}
	for _, name := range names {
		if g, ok := described[name]; ok && len(g.Members) > 0 {
			return &millrace.Error{
				Reason: millrace.ReasonInvalid, Field: "group-offsets", Detail: fmt.Sprintf("the group %s is at work: it has %d members", name, len(g.Members)),
				WayOut: "stop its partitioners first",
			}
		}
	}
	return nil
}
