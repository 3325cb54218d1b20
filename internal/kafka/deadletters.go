package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// DeadLetter is a record that was refused, as the topic of dead letters has it.
type DeadLetter struct {
	Offset millrace.Offset // of the letter
	Time   millrace.Time   // when it was written to the topic
	Reason string          // why it was refused: a stable word
	Detail string          // the same for people
	Source string          // where the record was read: topic/partition/offset
	Batch  string          // only of a batch that was kept aside: see HeaderBatch
	Piece  string          // which part of that batch it is: see HeaderPiece
	Key    []byte
	Value  []byte // nil is a null value
}

func readDeadLetter(r *kgo.Record) DeadLetter {
	d := DeadLetter{Offset: millrace.Offset(r.Offset), Time: millrace.TimeOf(r.Timestamp), Key: r.Key, Value: r.Value}
	for _, h := range r.Headers { // Millrace's are behind the producer's, which may have the same names
		switch h.Key {
		case HeaderReason:
			d.Reason = string(h.Value)
		case HeaderDetail:
			d.Detail = string(h.Value)
		case HeaderSource:
			d.Source = string(h.Value)
		case HeaderBatch:
			d.Batch = string(h.Value)
		case HeaderPiece:
			d.Piece = string(h.Value)
		}
	}
	return d
}

// DeadLetterLog is the topic of dead letters as it was when it was opened.
type DeadLetterLog struct {
	First, End millrace.Offset // what it holds: from First up to and without End

	brokers Brokers
	topic   string
}

// OpenDeadLetters looks where the topic begins and ends. It fails with a [millrace.Error]
// if there is no such topic.
func OpenDeadLetters(ctx context.Context, brokers Brokers, topic string) (*DeadLetterLog, error) {
	look, err := NewInspector(brokers)
	if err != nil {
		return nil, err
	}
	defer look.Close()
	l := &DeadLetterLog{brokers: brokers, topic: topic}
	starts, err := look.Starts(ctx, topic)
	if errors.Is(err, kerr.UnknownTopicOrPartition) || err == nil && len(starts) == 0 {
		return nil, &millrace.Error{
			Reason: millrace.ReasonUnknown, Field: "topic-prefix", Detail: fmt.Sprintf("there is no topic %s", topic),
			WayOut: "give the topic_prefix of the partitioners' configuration; a partitioner that starts creates the topic",
		}
	}
	if err != nil {
		return nil, err
	}
	ends, err := look.Ends(ctx, topic)
	if err != nil {
		return nil, err
	}
	l.First, l.End = starts[0], ends[0]
	return l, nil
}

// Since returns the offset of the first letter of the time t or later; End if there is
// none.
func (l *DeadLetterLog) Since(ctx context.Context, t millrace.Time) (millrace.Offset, error) {
	cl, err := NewClient(l.brokers, nil)
	if err != nil {
		return 0, err
	}
	defer cl.Close()
	listed, err := ListSince(ctx, kadm.NewClient(cl), t, l.topic)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("kafka: dead letters since %s: %w", t, err)
	}
	o, _ := listed.Lookup(l.topic, 0)
	return min(max(millrace.Offset(o.Offset), l.First), l.End), nil
}

// Read calls take for the letters from an offset up to and without another, the oldest
// first. Both must be within First and End. It keeps no more than one fetch in memory.
func (l *DeadLetterLog) Read(ctx context.Context, from, to millrace.Offset, take func(DeadLetter)) error {
	if from >= to {
		return nil
	}
	// Control records are read, too: if the letters before to are of an aborted
	// transaction, only the control record that ends it shows that they were passed. A
	// batch of letters may be larger than one of any other topic.
	cl, err := NewClient(l.brokers, nil, kgo.KeepControlRecords(), kgo.MaxDecompressBatchBytes(maxDeadLetterBytes),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{l.topic: {0: kgo.NewOffset().At(int64(from))}}))
	if err != nil {
		return err
	}
	defer cl.Close()
	for next := from; next < to; {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("kafka: read %s at %d: %w", l.topic, next, err)
		}
		for r := range fetches.RecordsAll() {
			if next = millrace.Offset(r.Offset) + 1; next <= to && !r.Attrs.IsControl() {
				take(readDeadLetter(r))
			}
		}
	}
	return nil
}
