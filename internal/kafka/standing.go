package kafka

import (
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Where the last batch of a partition is one whose entries do not parse, franz-go fetches
// it again and again, as fast as it comes, and its polls say nothing.

// Standing notes which partitions a client fetches again and again without a record that
// a poll could return. It is a hook of that client. While records wait to be polled
// franz-go fetches nothing from their broker, so a reader that is slow stands nowhere.
type Standing struct {
	mu struct {
		sync.Mutex
		fetches map[int32]int64         // from each broker
		vain    map[PartitionOf]*inVain // since a poll returned something of it
	}
}

// NewStanding is of one client that is to have it as a hook.
func NewStanding() *Standing {
	s := new(Standing)
	s.mu.fetches, s.mu.vain = map[int32]int64{}, map[PartitionOf]*inVain{}
	return s
}

// PartitionOf is a partition of any topic.
type PartitionOf struct {
	Topic     string
	Partition int32
}

// inVain is how often a partition was fetched.
type inVain struct{ last, times int64 }

const (
	// vainFetches are so many that a partition is looked at: where partitions are added
	// and removed some fetches are thrown away.
	vainFetches = 10
	// stillAtOnce bounds how many partitions one poll has looked at.
	stillAtOnce = 4
)

// OnBrokerRead implements kgo.HookBrokerRead.
func (s *Standing) OnBrokerRead(from kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, _ error) {
	if key != int16(kmsg.Fetch) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.fetches[from.NodeID]++
}

// OnFetchBatchRead implements kgo.HookFetchBatchRead.
func (s *Standing) OnFetchBatchRead(from kgo.BrokerMetadata, topic string, partition int32, _ kgo.FetchBatchMetrics) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := PartitionOf{topic, partition}
	v := s.mu.vain[at]
	if v == nil {
		v = &inVain{last: -1}
		s.mu.vain[at] = v
	}
	if fetch := s.mu.fetches[from.NodeID]; fetch != v.last {
		v.last = fetch
		v.times++
	}
}

// Polled takes what a poll returned, and returns the partitions that are to be looked at
// ([Looks.At]): each once in so many fetches.
func (s *Standing) Polled(fetches kgo.Fetches) (still []PartitionOf) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		if len(p.Records) > 0 || p.Err != nil {
			delete(s.mu.vain, PartitionOf{p.Topic, p.Partition})
		}
	})
	for at, v := range s.mu.vain {
		if v.times >= vainFetches && len(still) < stillAtOnce {
			still = append(still, at)
			delete(s.mu.vain, at)
		}
	}
	return still
}
