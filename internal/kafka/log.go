package kafka

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
)

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
	Topics  [streams]TopicID
}

// Logs print as "cluster/timeline's id/features' id".
func (l LogID) String() string {
	return fmt.Sprintf("%s/%s/%s", l.Cluster, l.Topics[Timeline], l.Topics[Features])
}

// LogID returns which log is there now.
func (c *Consumer) LogID(ctx context.Context) (l LogID, err error) {
	m, err := c.adm.Metadata(ctx, c.topics[:]...)
	if err != nil {
		return l, fmt.Errorf("kafka: describe the log: %w", err)
	}
	l.Cluster = m.Cluster
	for s, name := range c.topics {
		t, ok := m.Topics[name]
		if !ok || t.Err != nil {
			return l, fmt.Errorf("kafka: describe topic %s: %w", name, errors.Join(t.Err, missing(ok)))
		}
		l.Topics[s] = TopicID(t.ID)
	}
	return l, nil
}
