package kafka

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"

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

// Streams print as their topic's default name.
func (s Stream) String() string { return [Streams]string{"timeline", "features"}[s] }

// TopicPartition is a partition of a stream.
type TopicPartition struct {
	Stream    Stream
	Partition millrace.Partition
}

// TopicPartitions print as "timeline/644".
func (tp TopicPartition) String() string { return fmt.Sprintf("%s/%d", tp.Stream, tp.Partition) }

// Position is where to read on: the next offset, and the epoch of the leader
// that wrote the record before it, by which Kafka tells a log that was cut and
// grew again; -1 if that is not known.
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
	n, err := base64.RawURLEncoding.Strict().Decode(id[:], b)
	if err != nil || n != len(id) || len(b) != base64.RawURLEncoding.EncodedLen(len(id)) {
		return fmt.Errorf("kafka: %.40q is no topic id", b)
	}
	return nil
}

// LogID is which log a consumer reads: an offset means nothing in another.
type LogID struct {
	Cluster string // Kafka's id of itself
	Topics  [Streams]TopicID
}

// Logs print as "cluster/timeline's id/features' id".
func (l LogID) String() string {
	return fmt.Sprintf("%s/%s/%s", l.Cluster, l.Topics[Timeline], l.Topics[Features])
}

// LogNow returns which log the streams' topics are now.
func LogNow(ctx context.Context, adm *kadm.Client, topics [Streams]string) (l LogID, err error) {
	m, err := adm.Metadata(ctx, topics[:]...)
	if err != nil {
		return l, fmt.Errorf("kafka: describe the log: %w", err)
	}
	l.Cluster = m.Cluster
	for s, name := range topics {
		t, ok := m.Topics[name]
		if !ok || t.Err != nil {
			return l, fmt.Errorf("kafka: describe topic %s: %w", name, errors.Join(t.Err, Missing(ok)))
		}
		l.Topics[s] = TopicID(t.ID)
	}
	return l, nil
}
