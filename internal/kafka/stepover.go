package kafka

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka/patience"
)

// Closed is a batch that cannot be opened (decompressed and parsed), so that a reader
// skips it.
type Closed struct {
	Topic       string
	Partition   int32
	First, Next int64 // the offset of its first entry that was not read, and the one behind its last
	Why         error // nil: it is too large

	epoch int32 // the epoch of the leader that wrote it; -1: not known
}

func (c *Closed) Error() string {
	why := fmt.Sprintf("is of more than %d bytes once it is decompressed", MaxBatchBytes)
	if c.Why != nil {
		why = "is broken in the log: " + c.Why.Error()
	}
	return fmt.Sprintf("kafka: the batch of %s/%d from offset %d to %d %s", c.Topic, c.Partition, c.First, c.Next-1, why)
}

func (c *Closed) Unwrap() error { return c.Why }

// Written reports whether the batch is as its producer wrote it, and was not damaged since.
func (c *Closed) Written() bool { return c.Why == nil || errors.Is(c.Why, errEntries) }

// StepOver makes the client that polled these fetches go on behind batches that are too
// large to open. It returns these batches, and the first other failure. It is for readers
// that can do without some entries of a topic; partitioners and index nodes stop instead.
func StepOver(cl *kgo.Client, fetches kgo.Fetches) (over []*Closed, failed error) {
	over, faults := tooLarge(fetches)
	StepBehind(cl, over...)
	if len(faults) > 0 {
		failed = faults[0].Err
	}
	return over, failed
}

// tooLarge returns the batches that are too large, and the other faults.
func tooLarge(fetches kgo.Fetches) (over []*Closed, faults []kgo.FetchError) {
	for _, f := range fetches.Errors() {
		if bomb, ok := errors.AsType[*kgo.ErrDecompressTooLarge](f.Err); ok {
			over = append(over, &Closed{f.Topic, f.Partition, bomb.Offset, bomb.NextOffset, nil, bomb.Epoch})
		} else {
			faults = append(faults, f)
		}
	}
	return over, faults
}

// StepBehind makes a client go on behind batches.
func StepBehind(cl *kgo.Client, over ...*Closed) {
	to := map[string]map[int32]kgo.EpochOffset{}
	for _, c := range over {
		if to[c.Topic] == nil {
			to[c.Topic] = map[int32]kgo.EpochOffset{}
		}
		to[c.Topic][c.Partition] = kgo.EpochOffset{Epoch: c.epoch, Offset: c.Next}
	}
	cl.SetOffsets(to) // without any it does nothing
}

const (
	// stillAfter is how long a partition must bring nothing before Steps looks for the
	// reason. Franz-go fetches a batch whose entries do not parse again and again, and
	// reports no error.
	stillAfter = 5 * time.Second
	// looks is how many times a batch must come from Kafka with the same bytes before it is
	// taken to be broken there, and not on the way.
	looks      = 3
	lookPause  = 100 * time.Millisecond // between two such looks
	lookWithin = 5 * time.Second        // for all partitions together
	lookBytes  = 1 << 20                // how many bytes one look fetches
)

// Steps makes a client read on behind any batch that can never be read: one that is too
// large, and one that is broken in the log, because its checksum is wrong, it does not
// decompress, or its entries do not parse. Faults that Kafka's brokers report may pass by
// themselves, and nothing is skipped for them. It is for topics of exposures and
// outcomes, whose readers can do without some entries.
type Steps struct {
	cl     *kgo.Client
	looks  *Looks
	topic  string
	places func(context.Context) (map[int32]int64, error) // see NewSteps

	at     map[int32]int64 // what places returned last
	looked time.Time       // when that was, or when NewSteps was called
	next   map[int32]int64 // the offset that would come next if none were left out
	gaps   []gap           // offsets that were left out and not looked into yet
}

// NewSteps returns a Steps for a client that reads one topic: each partition from its
// offset in starts, or else from its beginning. places must return the next offset to be
// read of each partition that is not read to its end.
func NewSteps(cl *kgo.Client, topic string, starts map[int32]int64, places func(context.Context) (map[int32]int64, error)) *Steps {
	next := maps.Clone(starts)
	if next == nil {
		next = map[int32]int64{}
	}
	return &Steps{cl: cl, looks: NewLooks(cl), topic: topic, places: places, looked: time.Now(), next: next}
}

// Over makes the client read on behind batches that can never be read. Call it after each
// poll; fetches is what the poll returned, and places must count its records as read.
// Over returns the batches, including those that the client has skipped by itself, and
// the first other failure. A poll that ended without a record is no failure.
func (s *Steps) Over(ctx context.Context, fetches kgo.Fetches) (over []*Closed, failed error) {
	s.meet(fetches)
	over, failed = s.over(ctx, fetches)
	for _, c := range over {
		s.next[c.Partition] = c.Next
	}
	passed, err := s.passed(ctx)
	if failed == nil {
		failed = err
	}
	return append(over, passed...), failed
}

// over is Over for the batches that the client does not get past by itself.
func (s *Steps) over(ctx context.Context, fetches kgo.Fetches) (over []*Closed, failed error) {
	over, faults := tooLarge(fetches)
	StepBehind(s.cl, over...)
	suspects := map[int32]bool{}
	for _, f := range faults {
		if f.Topic != s.topic || passes(f.Err) {
			if failed == nil && !errors.Is(f.Err, context.DeadlineExceeded) {
				failed = f.Err
			}
			continue
		}
		suspects[f.Partition] = true
	}
	still := time.Since(s.looked) >= stillAfter
	if len(suspects) == 0 && !still {
		return over, failed
	}
	limited, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	places, err := s.places(limited)
	if err != nil {
		return over, errors.Join(failed, err)
	}
	if still {
		for p, at := range places {
			if was, met := s.at[p]; met && was == at {
				suspects[p] = true
			}
		}
		s.at, s.looked = maps.Clone(places), time.Now()
	}
	broken := s.broken(limited, places, suspects)
	StepBehind(s.cl, broken...)
	for _, f := range faults {
		known := slices.ContainsFunc(broken, func(c *Closed) bool { return c.Partition == f.Partition })
		if failed == nil && f.Topic == s.topic && !passes(f.Err) && !known {
			failed = f.Err
		}
	}
	return append(over, broken...), failed
}

// passes reports whether a fault may pass by itself: one that a broker of Kafka reports
// may, and one of the bytes of a batch does not.
func passes(err error) bool {
	_, answer := errors.AsType[*kerr.Error](err)
	return answer || Lost(err) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}

// broken returns the broken batches at which the suspected partitions stand.
func (s *Steps) broken(ctx context.Context, places map[int32]int64, suspects map[int32]bool) (all []*Closed) {
	for _, p := range slices.Sorted(maps.Keys(suspects)) {
		at, ok := places[p]
		if !ok {
			continue
		}
		if c := s.looks.At(ctx, s.topic, p, at); c != nil {
			all = append(all, c)
		}
	}
	return all
}

// At returns the batch at an offset that no reader gets past. It looks several times, to
// be sure that the batch is broken in the log and not on the way. It returns nil if the
// offset can be read, or if it could not find out.
func (l *Looks) At(ctx context.Context, topic string, partition int32, at int64) *Closed {
	raw, c := l.look(ctx, topic, partition, at)
	for range looks - 1 {
		if c == nil {
			return nil
		}
		patience.Sleep(ctx, lookPause)
		again, same := l.look(ctx, topic, partition, at)
		if same == nil || !bytes.Equal(again, raw) {
			return nil
		}
	}
	return c
}

// look fetches what the log has at an offset. It returns the batch there that no reader
// gets past, with its bytes; nil if there is none, or Kafka does not answer.
func (l *Looks) look(ctx context.Context, topic string, partition int32, at int64) (raw []byte, c *Closed) {
	for {
		got, err := RawFetch{Topic: topic, Partition: partition, At: at, MaxBytes: lookBytes, Committed: true}.Do(ctx, l.cl)
		if err != nil {
			return nil, nil
		}
		read, next := kgo.ProcessFetchPartition(kgo.ProcessFetchPartitionOpts{
			KeepControlRecords: true, Offset: at, IsolationLevel: kgo.ReadCommitted(), Topic: topic, Partition: partition,
		}, got, l.open(), nil)
		if len(read.Records) > 0 { // the reader is about to get these
			return nil, nil
		}
		if read.Err == nil && next > at { // only records of aborted transactions were there
			at = next
			continue
		}
		why := read.Err
		if why == nil {
			why = errEntries
		}
		raw, _, first, behind := batchAt(got.RecordBatches, next)
		if raw == nil {
			return nil, nil
		}
		if behind > max(got.LastStableOffset, next+1) { // the header of the batch is damaged, too
			behind = next + 1
		}
		return raw, &Closed{topic, partition, max(first, at), behind, why, -1}
	}
}

// Where the fields of a batch in the log are, in bytes from its beginning. Its magic is the
// version of its format.
const (
	lengthAt     = 8  // how many bytes follow the length
	prefixBytes  = 12 // up to the end of the length
	magicAt      = 16 // one byte
	lastDeltaAt  = 23 // of magic 2: the last offset, less the first
	newestMagic  = 2
	headersBytes = 61 // of magic 2, all fields before the records
)

// batchAt returns the batch that ends behind an offset, the bytes that follow it, its first
// offset, and the offset behind its last; nil if no whole batch does. A batch of an unknown
// magic is returned wherever it ends.
func batchAt(raw []byte, at int64) (batch, rest []byte, first, next int64) {
	for len(raw) > magicAt {
		n := prefixBytes + int64(int32(binary.BigEndian.Uint32(raw[lengthAt:])))
		if n <= magicAt || n > int64(len(raw)) {
			break
		}
		batch, raw = raw[:n], raw[n:]
		first = int64(binary.BigEndian.Uint64(batch))
		next = first + 1
		if batch[magicAt] == newestMagic && n >= headersBytes {
			next += max(0, int64(int32(binary.BigEndian.Uint32(batch[lastDeltaAt:]))))
		}
		if len(raw) >= lengthAt { // the next batch's first offset is surer than this header, which may be damaged
			if follows := int64(binary.BigEndian.Uint64(raw)); follows > first {
				next = follows
			}
		}
		if next > at || batch[magicAt] > newestMagic {
			return batch, raw, first, next
		}
	}
	return nil, nil, 0, 0
}
