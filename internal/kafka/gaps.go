package kafka

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/internal/kafka/patience"
)

// A reader may get two records one after the other that have offsets between them: a gap.
// The records there may be of aborted transactions, or compacted away. Or they are of a
// batch whose entries do not parse: if franz-go has fetched another batch with it, it
// skips the batch and reports no error. So the code here fetches a gap once more, as the
// log has it, and judges it.

// Looks fetches what the log has where a reader gets no records: in a gap (Between), or at
// the offset at which the reader stands still (At). Only one goroutine may use it.
type Looks struct {
	cl  *kgo.Client
	had stretch // what was fetched last; it may serve gaps that follow
}

// NewLooks returns a Looks that fetches by a client, whose decompressor must be bounded.
func NewLooks(cl *kgo.Client) *Looks { return &Looks{cl: cl} }

// stretch is a part of a partition as it is in the log.
type stretch struct {
	topic     string
	partition int32
	at        int64 // it has nothing before this offset
	raw       []byte
}

// gap is the offsets [at, end) between two records that the reader got.
type gap struct {
	partition int32
	at, end   int64
}

var errEntries = errors.New("its entries do not parse")

// meet notes the gaps between the records of fetches.
func (s *Steps) meet(fetches kgo.Fetches) {
	fetches.EachRecord(func(r *kgo.Record) {
		if at := s.next[r.Partition]; at < r.Offset {
			s.gaps = append(s.gaps, gap{r.Partition, at, r.Offset})
		}
		s.next[r.Partition] = r.Offset + 1
	})
}

// passed looks into the gaps, and returns the batches there that cannot be read. If Kafka
// does not answer, it keeps the gap for the next call.
func (s *Steps) passed(ctx context.Context) (broken []*Closed, err error) {
	for ; len(s.gaps) > 0; s.gaps = s.gaps[1:] {
		for g := &s.gaps[0]; g.at < g.end; {
			c, err := s.looks.Between(ctx, s.topic, g.partition, g.at, g.end)
			if err != nil {
				return broken, err
			}
			if c == nil {
				break
			}
			broken, g.at = append(broken, c), c.Next
		}
	}
	return broken, nil
}

// Between returns the first batch in [at, end) that can never be read; nil: there is
// none. A compacted topic has many gaps. What one call fetched serves the gaps behind it,
// so that at worst the topic is read twice.
func (l *Looks) Between(ctx context.Context, topic string, partition int32, at, end int64) (*Closed, error) {
	for at < end {
		c, next, err := l.judge(ctx, &Closed{topic, partition, at, end, nil, -1})
		if c != nil || err != nil {
			return c, err
		}
		at = next
	}
	return nil, nil
}

// judge looks at the first batch of a gap. It returns the batch if it cannot be read,
// else nil, and the offset behind it. If the entries of the batch do not parse, that is
// certain, since its checksum is right. Any other fault may be one of the network, and
// counts only once the same bytes have come looks times.
func (l *Looks) judge(ctx context.Context, gap *Closed) (c *Closed, next int64, err error) {
	var before []byte
	for same := 1; ; {
		batch, first, next, err := l.batch(ctx, gap.Topic, gap.Partition, gap.First)
		if err != nil {
			return nil, 0, err
		}
		if batch == nil || first >= gap.Next {
			return nil, gap.Next, nil
		}
		why := l.unreadable(gap.Topic, gap.Partition, batch, first)
		if why == nil {
			return nil, next, nil
		}
		if errors.Is(why, errEntries) || same == looks {
			return &Closed{gap.Topic, gap.Partition, max(first, gap.First), min(next, gap.Next), why, -1}, next, nil
		}
		if same++; !bytes.Equal(batch, before) {
			before, same = batch, 1
		}
		l.had = stretch{}
		if patience.Sleep(ctx, lookPause); ctx.Err() != nil {
			return nil, 0, ctx.Err()
		}
	}
}

// batch returns the batch with an offset, or else the one behind it, its first offset and
// the offset behind its last. It takes it from what was fetched last, or from Kafka. A
// nil batch: there is none.
func (l *Looks) batch(ctx context.Context, topic string, partition int32, at int64) (batch []byte, first, next int64, err error) {
	if h := &l.had; h.topic == topic && h.partition == partition && h.at <= at {
		if batch, first, next = h.batch(at); batch != nil {
			return batch, first, next, nil
		}
	}
	limited, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	for {
		got, err := RawFetch{Topic: topic, Partition: partition, At: at, MaxBytes: lookBytes, Committed: true}.Do(limited, l.cl)
		if errors.Is(err, ErrLostPosition) { // the log has dropped the offset since
			return nil, 0, 0, nil
		}
		if err == nil {
			l.had = stretch{topic, partition, at, got.RecordBatches}
			batch, first, next = l.had.batch(at)
			return batch, first, next, nil
		}
		if patience.Sleep(limited, lookPause); limited.Err() != nil {
			return nil, 0, 0, err
		}
	}
}

// batch returns the batch with an offset, or else the one behind it; nil: there is none.
// It drops from the stretch what comes before that batch.
func (h *stretch) batch(at int64) (batch []byte, first, next int64) {
	batch, rest, first, next := batchAt(h.raw, at)
	if h.raw = h.raw[len(h.raw)-len(rest)-len(batch):]; batch == nil {
		h.raw = nil
	}
	h.at = max(h.at, at)
	return batch, first, next
}

// unreadable returns why a batch cannot be read; nil: it can.
func (l *Looks) unreadable(topic string, partition int32, batch []byte, first int64) error {
	read, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		KeepControlRecords: true, Offset: first, Topic: topic, Partition: partition,
	}, &kmsg.FetchResponseTopicPartition{Partition: partition, RecordBatches: batch}, l.open(), nil)
	if read.Err != nil {
		return read.Err
	}
	if _, _, _, behind := batchAt(batch, first); next < behind {
		return errEntries
	}
	return nil
}

// open returns the decompressor of the client, which is bounded.
func (l *Looks) open() kgo.Decompressor {
	return l.cl.OptValue(kgo.WithDecompressor).(kgo.Decompressor)
}

// If the entries of the last batch of a partition do not parse, franz-go fetches it again
// and again, as fast as it comes, and its polls report no error. Standing finds such
// partitions.

// Standing notes which partitions a client fetches again and again while no poll returns a
// record of them: they stand still. It is a hook of that client. While records wait to be
// polled, franz-go fetches nothing more from their broker, so no partition seems to stand
// still only because its reader is slow.
type Standing struct {
	mu struct {
		sync.Mutex
		fetches map[int32]int64         // how many fetches came from each broker, by its id
		vain    map[PartitionOf]*inVain // fetches since a poll last returned a record of the partition
	}
}

// NewStanding returns a hook for one client.
func NewStanding() *Standing {
	s := new(Standing)
	s.mu.fetches, s.mu.vain = map[int32]int64{}, map[PartitionOf]*inVain{}
	return s
}

// PartitionOf is a partition of a topic, which may be any topic.
type PartitionOf struct {
	Topic     string
	Partition int32
}

// inVain counts the fetches with data of a partition of which no poll returned a record.
// last is the number of the fetch that was counted last; -1: none.
type inVain struct{ last, times int64 }

const (
	// vainFetches is after how many fetches in vain a partition is to be looked at. A few
	// are usual: franz-go throws some away when partitions are added and removed.
	vainFetches = 10
	// stillAtOnce bounds how many partitions Polled returns after one poll.
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

// Polled must be told what each poll returned. It returns the partitions that are to be
// looked at ([Looks.At]): those that were fetched vainFetches times in vain, and those of
// which something came that cannot be opened.
func (s *Standing) Polled(fetches kgo.Fetches) (still []PartitionOf) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fetches.EachPartition(func(p kgo.FetchTopicPartition) {
		var answer *kerr.Error
		switch at := (PartitionOf{p.Topic, p.Partition}); {
		case len(p.Records) > 0:
			delete(s.mu.vain, at)
		case p.Err != nil && (Lost(p.Err) || errors.As(p.Err, &answer)):
			delete(s.mu.vain, at) // Kafka says what is wrong
		case p.Err != nil && p.Topic != "": // a batch came that cannot be opened
			s.mu.vain[at] = &inVain{last: -1, times: vainFetches}
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
