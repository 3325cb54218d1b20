package kafka

import (
	"bytes"
	"context"
	"errors"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/internal/kafka/patience"
)

// Offsets between two records that follow each other in a reading are of transactions
// that were aborted, or were compacted away. Or they are of a batch whose entries do not
// parse: where franz-go fetches another one with it, it reads on behind it and says
// nothing. So what is there is fetched as it is in the log.

// gap is a run of offsets that the reading went over.
type gap struct {
	partition int32
	at, end   int64
}

var errEntries = errors.New("its entries do not parse")

// meet notes which offsets records leave out.
func (s *Steps) meet(fetches kgo.Fetches) {
	fetches.EachRecord(func(r *kgo.Record) {
		if at := s.next[r.Partition]; at < r.Offset {
			s.gaps = append(s.gaps, gap{r.Partition, at, r.Offset})
		}
		s.next[r.Partition] = r.Offset + 1
	})
}

// passed looks into the gaps, and returns the batches there that cannot be read. A gap
// that Kafka tells nothing of stays for the next time.
func (s *Steps) passed(ctx context.Context) (broken []*Closed, err error) {
	var had stretch
	for ; len(s.gaps) > 0; s.gaps = s.gaps[1:] {
		for g := &s.gaps[0]; g.at < g.end; {
			c, err := s.judge(ctx, g, &had)
			if err != nil {
				return broken, err
			}
			if c != nil {
				broken = append(broken, c)
			}
		}
	}
	return broken, nil
}

// stretch is a part of a partition as it is in the log.
type stretch struct {
	partition int32
	raw       []byte
}

// judge looks at the next batch of a gap, goes behind it, and returns it if it cannot be
// read. That its entries do not parse is sure, since its checksum is right; any other
// fault may be of the way, and counts once the same bytes have come so often.
func (s *Steps) judge(ctx context.Context, g *gap, had *stretch) (*Closed, error) {
	var before []byte
	for same := 1; ; {
		batch, first, next, err := s.batch(ctx, g, had)
		if err != nil {
			return nil, err
		}
		if batch == nil || first >= g.end {
			g.at = g.end
			return nil, nil
		}
		why := s.unreadable(g.partition, batch, first)
		if why == nil || errors.Is(why, errEntries) || same == looks {
			c := &Closed{s.topic, g.partition, max(first, g.at), min(next, g.end), why, -1}
			if g.at = next; why == nil {
				return nil, nil
			}
			return c, nil
		}
		if same++; !bytes.Equal(batch, before) {
			before, same = batch, 1
		}
		had.raw = nil
		if patience.Sleep(ctx, lookPause); ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// batch returns the next batch of a gap: of what is at hand, or of what Kafka has; nil: it
// has none.
func (s *Steps) batch(ctx context.Context, g *gap, had *stretch) (batch []byte, first, next int64, err error) {
	if had.partition == g.partition {
		if batch, had.raw, first, next = batchAt(had.raw, g.at); batch != nil {
			return batch, first, next, nil
		}
	}
	limited, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	for {
		got, err := RawFetch{Topic: s.topic, Partition: g.partition, At: g.at, MaxBytes: lookBytes, Committed: true}.Do(limited, s.cl)
		if errors.Is(err, ErrLostPosition) { // it has been dropped since
			return nil, 0, 0, nil
		}
		if err == nil {
			had.partition = g.partition
			batch, had.raw, first, next = batchAt(got.RecordBatches, g.at)
			return batch, first, next, nil
		}
		if patience.Sleep(limited, lookPause); limited.Err() != nil {
			return nil, 0, 0, err
		}
	}
}

// unreadable says why a batch cannot be read; nil: it can.
func (s *Steps) unreadable(partition int32, batch []byte, first int64) error {
	open := s.cl.OptValue(kgo.WithDecompressor).(kgo.Decompressor) // which is bounded
	read, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
		KeepControlRecords: true, Offset: first, Topic: s.topic, Partition: partition,
	}, &kmsg.FetchResponseTopicPartition{Partition: partition, RecordBatches: batch}, open, nil)
	if read.Err != nil {
		return read.Err
	}
	if _, _, _, behind := batchAt(batch, first); next < behind {
		return errEntries
	}
	return nil
}
