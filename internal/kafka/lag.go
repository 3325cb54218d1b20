package kafka

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// Inspector looks at topics and groups from outside.
type Inspector struct {
	cl  *kgo.Client
	adm *kadm.Client
}

// NewInspector connects.
func NewInspector(brokers Brokers) (*Inspector, error) {
	cl, err := newClient(brokers, nil)
	if err != nil {
		return nil, err
	}
	return &Inspector{cl, kadm.NewClient(cl)}, nil
}

// Close disconnects.
func (i *Inspector) Close() { i.cl.Close() }

// Ends returns the offset after the last committed record of each partition of
// a topic.
func (i *Inspector) Ends(ctx context.Context, topic string) ([]millrace.Offset, error) {
	listed, err := i.adm.ListCommittedOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: ends of %s: %w", topic, err)
	}
	ends := make([]millrace.Offset, len(listed[topic]))
	listed.Each(func(o kadm.ListedOffset) { ends[o.Partition] = millrace.Offset(o.Offset) })
	return ends, nil
}

// Starts returns the oldest offset that each partition of a topic still has.
func (i *Inspector) Starts(ctx context.Context, topic string) ([]millrace.Offset, error) {
	listed, err := i.adm.ListStartOffsets(ctx, topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("kafka: beginnings of %s: %w", topic, err)
	}
	starts := make([]millrace.Offset, len(listed[topic]))
	listed.Each(func(o kadm.ListedOffset) { starts[o.Partition] = millrace.Offset(o.Offset) })
	return starts, nil
}

// Lag returns how many records of a topic a group has yet to consume.
func (i *Inspector) Lag(ctx context.Context, group, topic string) (int64, error) {
	ends, err := i.Ends(ctx, topic)
	if err != nil {
		return 0, err
	}
	committed, err := i.adm.FetchOffsetsForTopics(ctx, group, topic)
	if err == nil {
		err = committed.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("kafka: offsets of group %s: %w", group, err)
	}
	var lag int64
	for p, end := range ends {
		at := int64(0)
		if o, ok := committed.Lookup(topic, int32(p)); ok {
			at = max(0, o.At)
		}
		lag += max(0, int64(end)-at)
	}
	return lag, nil
}
