package groups

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/millrace/millrace"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/patience"
)

// Offsets are how far groups have consumed, by group, topic and partition.
type Offsets = map[string]map[string]map[int32]millrace.Offset

// SetOffsets makes groups go on at these offsets; offsets of other topics stay. It first
// waits until no group has a member, since Kafka keeps a member for a while after its
// process has ended.
func SetOffsets(ctx context.Context, brokers kafka.Brokers, all Offsets) error {
	cl, err := kafka.NewClient(brokers, nil)
	if err != nil {
		return err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	names := slices.Sorted(maps.Keys(all))
	if err := awaitIdle(ctx, adm, names); err != nil {
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

// awaitIdle waits until none of the groups has a member. If ctx ends before that, its error
// says which group has members.
func awaitIdle(ctx context.Context, adm *kadm.Client, names []string) error {
	for {
		described, err := adm.DescribeGroups(ctx, names...)
		for _, name := range names {
			if refused := described[name].Err; err == nil && !errors.Is(refused, kerr.GroupIDNotFound) {
				err = refused // then the group only seems to have no members
			}
		}
		busy := slices.IndexFunc(names, func(name string) bool { return len(described[name].Members) > 0 })
		if err == nil && busy < 0 {
			return nil
		}
		patience.Sleep(ctx, time.Second)
		switch {
		case ctx.Err() == nil:
		case err != nil:
			return fmt.Errorf("kafka: describe the groups %v: %w", names, err)
		default:
			return &millrace.Error{
				Reason: millrace.ReasonUnavailable, Field: "group-offsets", Detail: fmt.Sprintf("the group %s still has %d members", names[busy], len(described[names[busy]].Members)),
				WayOut: "stop its partitioners, and do it again a minute later",
			}
		}
	}
}
