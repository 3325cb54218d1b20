package kafka

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
)

// clientID is how clients of Millrace name themselves to Kafka.
const clientID = "millrace"

// Consumption says who consumes a topic.
type Consumption struct {
	// Group consumes the topic; empty: no group does.
	Group string
	// Running says that a partitioner is at work in Group or another group. A
	// group that has only committed offsets may start again.
	Running bool
	// Topics are what running partitioners consume, sorted.
	Topics []string
}

// Consumption tells which partitioners consume a topic. Running ones decide;
// where there are none, a group that committed offsets of the topic counts.
func (i *Inspector) Consumption(ctx context.Context, topic string) (Consumption, error) {
	groups, err := i.groups(ctx)
	if err != nil {
		return Consumption{}, fmt.Errorf("kafka: who consumes %s: %w", topic, err)
	}
	var c Consumption
	for _, g := range groups.Sorted() {
		for _, m := range g.Members {
			joined, ok := m.Join.AsConsumer()
			if !ok || m.ClientID != clientID {
				continue
			}
			c.Running = true
			c.Topics = append(c.Topics, joined.Topics...)
			if slices.Contains(joined.Topics, topic) {
				c.Group = g.Group
			}
		}
	}
	slices.Sort(c.Topics)
	c.Topics = slices.Compact(c.Topics)
	if !c.Running {
		c.Group = i.committed(ctx, groups, topic)
	}
	return c, nil
}

func (i *Inspector) groups(ctx context.Context) (kadm.DescribedGroups, error) {
	listed, err := i.adm.ListGroups(ctx)
	if err != nil || len(listed) == 0 {
		return nil, err
	}
	return i.adm.DescribeGroups(ctx, listed.Groups()...)
}

// committed returns a group that has committed offsets of a topic; empty if
// none has.
func (i *Inspector) committed(ctx context.Context, groups kadm.DescribedGroups, topic string) string {
	all := i.adm.FetchManyOffsets(ctx, groups.Names()...)
	for _, g := range groups.Names() {
		for _, o := range all[g].Fetched[topic] {
			if o.At >= 0 {
				return g
			}
		}
	}
	return ""
}

// Exists reports whether a topic exists.
func (i *Inspector) Exists(ctx context.Context, topic string) (bool, error) {
	all, err := i.adm.ListTopics(ctx, topic)
	if err != nil {
		return false, fmt.Errorf("kafka: describe topic %s: %w", topic, err)
	}
	return all.Has(topic), nil
}
