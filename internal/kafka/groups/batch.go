package groups

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
)

// Unreadable is a fault of a partition that does not pass by itself: a batch that cannot be
// opened (decompressed and parsed), or an offset that the log does not have. It is an
// ErrLostPosition.
type Unreadable struct {
	Topic     string
	Partition int32
	// The batch begins at Offset and ends before Next. If Next is 0, neither is
	// known; Locate finds them.
	Offset, Next millrace.Offset
	Kind         progress.Kind // Recreated if that is known; Locate finds other kinds
	Err          error

	from millrace.Offset // what the session was to read next; 0: not known. Locate prefers a higher committed offset
}

func (u *Unreadable) Error() string {
	return fmt.Sprintf("kafka: read %s/%d: position lost: %s", u.Topic, u.Partition, u.Err)
}

// Unwrap returns ErrLostPosition and the cause.
func (u *Unreadable) Unwrap() []error { return []error{kafka.ErrLostPosition, u.Err} }

// unreadable returns a fault of a partition as an Unreadable. It returns nil if the fault may
// pass by itself, as errors that a broker of Kafka answers may. A fault in a batch does not
// pass, since batches do not change.
func unreadable(topic string, partition int32, err error) *Unreadable {
	u := &Unreadable{Topic: topic, Partition: partition, Err: err}
	var bomb *kgo.ErrDecompressTooLarge
	var session *kgo.ErrGroupSession
	var answer *kerr.Error
	switch {
	case errors.As(err, &bomb):
		u.Offset, u.Next = millrace.Offset(bomb.Offset), millrace.Offset(bomb.NextOffset)
		u.Err = fmt.Errorf("a batch of more than %d bytes once it is decompressed", kafka.MaxBatchBytes)
	case kafka.Lost(err):
	case topic == "", errors.As(err, &session), errors.As(err, &answer), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return nil
	}
	return u
}

// errRecreated is the cause if a topic is not the one that the group has read.
var errRecreated = errors.New("the topic was deleted and created again")

// Locate returns where a group is stuck, why, and where it could go on. Beside an error, the
// place is not complete: it says what u says, and perhaps not where the group could go on.
func Locate(ctx context.Context, brokers kafka.Brokers, group string, u *Unreadable) (progress.Stuck, error) {
	s := progress.Stuck{Topic: u.Topic, Partition: u.Partition, Offset: u.Offset, Next: u.Next, Kind: u.Kind, Reason: u.Err.Error()}
	if u.Next > 0 {
		return s, nil
	}
	cl, err := kafka.NewClient(brokers, nil)
	if err != nil {
		return s, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	committed, err := adm.FetchOffsets(ctx, group)
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return s, fmt.Errorf("kafka: offsets of group %s: %w", group, err)
	}
	s.Offset = u.from
	if c, ok := committed.Lookup(u.Topic, u.Partition); ok {
		s.Offset = max(s.Offset, millrace.Offset(c.At))
	}
	starts, err := adm.ListStartOffsets(ctx, u.Topic)
	if err != nil {
		return s, fmt.Errorf("kafka: beginning of %s: %w", u.Topic, err)
	}
	start, _ := starts.Lookup(u.Topic, u.Partition)
	if start.Err != nil || s.Kind == progress.Recreated {
		s.Next = millrace.Offset(start.Offset)
		return s, start.Err
	}
	b, err := fetchBatch(ctx, cl, u.Topic, u.Partition, s.Offset)
	if errors.Is(err, kafka.ErrLostPosition) { // it lies before the log's beginning, or after its end
		s.Kind, s.Next = progress.CutShort, millrace.Offset(start.Offset)
		if s.Offset < s.Next {
			s.Kind = progress.Trimmed
		}
		return s, nil
	}
	s.Offset, s.Next = max(s.Offset, b.First), b.Next
	return s, err
}

// Batch is a batch of records as the log has it, not decompressed.
type Batch struct {
	First, Next millrace.Offset // of its records; Next is behind the last
	Bytes       []byte          // with the header
}

// batchHeaderBytes is the length of the part of a batch that is never compressed. As the bound
// of a fetch it brings one batch: Kafka gives the first batch whole, however large it is.
const batchHeaderBytes = 61

// FetchBatch fetches the batch that has an offset, and does not decompress it. For an offset
// that the log does not have it gives ErrLostPosition.
func FetchBatch(ctx context.Context, brokers kafka.Brokers, topic string, partition int32, at millrace.Offset) (Batch, error) {
	cl, err := kafka.NewClient(brokers, nil)
	if err != nil {
		return Batch{}, err
	}
	defer cl.Close()
	return fetchBatch(ctx, cl, topic, partition, at)
}

func fetchBatch(ctx context.Context, cl *kgo.Client, topic string, partition int32, at millrace.Offset) (Batch, error) {
	got, err := kafka.RawFetch{Topic: topic, Partition: partition, At: int64(at), MaxBytes: batchHeaderBytes}.Do(ctx, cl)
	if err != nil {
		return Batch{}, fmt.Errorf("kafka: fetch the batch of %s/%d at %d: %w", topic, partition, at, err)
	}
	// A batch begins with its first offset (8 bytes) and the length of what follows (4 bytes).
	// At byte 23 is its last offset, less the first (4 bytes).
	raw := got.RecordBatches
	if len(raw) < batchHeaderBytes {
		return Batch{}, fmt.Errorf("kafka: fetch the batch of %s/%d at %d: %w: there is none", topic, partition, at, kafka.ErrLostPosition)
	}
	b := Batch{First: millrace.Offset(binary.BigEndian.Uint64(raw)), Bytes: raw}
	if n := 12 + int64(binary.BigEndian.Uint32(raw[8:])); n < int64(len(raw)) {
		b.Bytes = raw[:n]
	}
	b.Next = b.First + millrace.Offset(binary.BigEndian.Uint32(raw[23:])) + 1
	if b.Next <= at { // the header is damaged: go on behind the offset
		b.Next = at + 1
	}
	return b, nil
}
