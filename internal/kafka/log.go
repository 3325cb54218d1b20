package kafka

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
)

// Stream is one of the two topics that index nodes read.
type Stream uint8

// The streams.
const (
	Timeline Stream = iota // content records
	Features               // relevance features
)

// Streams is how many there are.
const Streams = 2

// String returns the default name of the stream's topic.
func (s Stream) String() string { return [Streams]string{"timeline", "features"}[s] }

// TopicPartition is a partition of a stream.
type TopicPartition struct {
	Stream    Stream
	Partition millrace.Partition
}

// String returns the stream and the partition, such as "timeline/644".
func (tp TopicPartition) String() string { return fmt.Sprintf("%s/%d", tp.Stream, tp.Partition) }

// Position is where to read on: the next offset, and the epoch of the leader that wrote
// the record before it; -1: not known. By the epoch Kafka tells whether the log was cut
// and grew again.
type Position struct {
	Next  millrace.Offset
	Epoch int32
}

// TopicID is Kafka's id of a topic: one that is deleted and created again
// under the same name has another.
type TopicID [16]byte

// String returns the id as Kafka's own tools print it.
func (id TopicID) String() string { return base64.RawURLEncoding.EncodeToString(id[:]) }

// MarshalText implements encoding.TextMarshaler.
func (id TopicID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (id *TopicID) UnmarshalText(b []byte) error {
	if len(b) == base64.RawURLEncoding.EncodedLen(len(id)) { // Decode panics where there is no room for the result
		if n, err := base64.RawURLEncoding.Strict().Decode(id[:], b); err == nil && n == len(id) {
			return nil
		}
	}
	return fmt.Errorf("kafka: %.40q is no topic id", b)
}

// LogID identifies the log that a consumer reads. An offset of one log means nothing in
// another.
type LogID struct {
	Cluster string // Kafka's id of itself
	Topics  [Streams]TopicID
}

// String returns "cluster/timeline's id/features' id".
func (l LogID) String() string {
	return fmt.Sprintf("%s/%s/%s", l.Cluster, l.Topics[Timeline], l.Topics[Features])
}

// LogNow returns the id of the log that the streams' topics are now. A topic that does
// not exist is an error.
func LogNow(ctx context.Context, cl *kgo.Client, topics [Streams]string) (l LogID, err error) {
	cluster, ids, err := TopicsNow(ctx, cl, topics[:]...)
	if err != nil {
		return l, fmt.Errorf("kafka: describe the log: %w", err)
	}
	l.Cluster = cluster
	for s, name := range topics {
		id, ok := ids[name]
		if !ok {
			return l, fmt.Errorf("kafka: describe topic %s: %w", name, Missing(ok))
		}
		l.Topics[s] = id
	}
	return l, nil
}

// TopicsNow asks Kafka for its cluster id, and for the ids that topics have now, by name.
// A topic that does not exist is not in ids. A partitioner asks before each commit, and a
// node every two seconds, so the request must be cheap. It asks for one partition of each
// topic (KIP-966). A Kafka before 3.8 cannot do that, and describes all 720.
func TopicsNow(ctx context.Context, cl *kgo.Client, topics ...string) (cluster string, ids map[string]TopicID, err error) {
	type now struct {
		cluster string
		ids     map[string]TopicID
	}
	told, err := Ask(ctx, func() (n now, err error) {
		n.cluster, n.ids, err = topicsNow(ctx, cl, topics)
		return n, err
	})
	return told.cluster, told.ids, err
}

// Ask returns what question returns, or an error when ctx ends. Franz-go does not stop at
// the end of its context while it waits for a connection on which nobody answers, ten
// seconds and more. Ask then drops what question returns later.
func Ask[T any](ctx context.Context, question func() (T, error)) (T, error) {
	type answer struct {
		is  T
		err error
	}
	told := make(chan answer, 1)
	go func() {
		is, err := question()
		told <- answer{is, err}
	}()
	select {
	case a := <-told:
		return a.is, a.err
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("kafka: no answer: %w", context.Cause(ctx))
	}
}

func topicsNow(ctx context.Context, cl *kgo.Client, topics []string) (cluster string, ids map[string]TopicID, err error) {
	found := make([]*TopicID, len(topics))
	var asked errgroup.Group
	asked.Go(func() error {
		resp, err := kmsg.NewPtrDescribeClusterRequest().RequestWith(ctx, cl)
		if err == nil {
			cluster, err = resp.ClusterID, kerr.ErrorForCode(resp.ErrorCode)
		}
		return err
	})
	for i, topic := range topics {
		asked.Go(func() (err error) {
			found[i], err = topicNow(ctx, cl, topic)
			return err
		})
	}
	if asked.Wait() != nil { // Kafka does not know these requests, or something else is wrong
		return metadata(ctx, cl, topics)
	}
	ids = make(map[string]TopicID, len(topics))
	for i, topic := range topics {
		if found[i] != nil {
			ids[topic] = *found[i]
		}
	}
	return cluster, ids, nil
}

// topicNow returns the id of a topic; nil if there is none.
func topicNow(ctx context.Context, cl *kgo.Client, topic string) (*TopicID, error) {
	req := kmsg.NewPtrDescribeTopicPartitionsRequest()
	req.Topics = []kmsg.DescribeTopicPartitionsRequestTopic{{Topic: topic}}
	req.ResponsePartitionLimit = 1
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return nil, err
	}
	if len(resp.Topics) != 1 {
		return nil, kerr.UnknownServerError
	}
	t := &resp.Topics[0]
	switch err := kerr.ErrorForCode(t.ErrorCode); {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return (*TopicID)(&t.TopicID), nil
}

// metadata is [TopicsNow] by a request that describes all partitions. It does not use
// kadm, which may answer from what the client knew a moment ago.
func metadata(ctx context.Context, cl *kgo.Client, topics []string) (cluster string, ids map[string]TopicID, err error) {
	ids = map[string]TopicID{}
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{} // nil would ask for all topics there are
	for _, topic := range topics {
		asked := kmsg.NewMetadataRequestTopic()
		asked.Topic = &topic
		req.Topics = append(req.Topics, asked)
	}
	resp, err := req.RequestWith(ctx, cl)
	if err != nil {
		return "", nil, fmt.Errorf("kafka: describe topics: %w", err)
	}
	if resp.ClusterID != nil {
		cluster = *resp.ClusterID
	}
	for _, t := range resp.Topics {
		switch err := kerr.ErrorForCode(t.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition):
		case err != nil || t.Topic == nil:
			return "", nil, fmt.Errorf("kafka: describe topics: %w", err)
		default:
			ids[*t.Topic] = TopicID(t.TopicID)
		}
	}
	return cluster, ids, nil
}
