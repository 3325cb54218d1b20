package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
)

// Span is a piece of a partition: the offsets from From.Next up to and without
// To.
type Span struct {
	From kafka.Position
	To   millrace.Offset
}

// TailsConfig says where to read.
type TailsConfig struct {
	Brokers kafka.Brokers
	Topics  kafka.Topics
	Log     *slog.Logger // nil = silent
	// Until leaves out records that were logged after a time; 0 = none. All
	// records of a transaction have one time, so what is left are whole
	// transactions. It needs topics that keep the time of who wrote
	// (message.timestamp.type=CreateTime).
	Until millrace.Time
}

// errLogAppendTime says that a topic does not keep the time of who wrote.
var errLogAppendTime = errors.New("kafka: its records do not have the time of their transaction; set message.timestamp.type=CreateTime on the topic and read up to an offset, not a time")

// tailRecords is how many records ReadTails holds at a time beside what was
// fetched.
const tailRecords = 10_000

// ReadTails reads the committed records of pieces of any number of partitions,
// with one client and bounded memory, and returns when all are read, or when
// take fails, with its error. Each partition's records come in order; Next tells
// how far it is, and at last is the Span's To exactly.
//
// A partition whose log does not have all of its piece is told to take once
// with an Err that is ErrLostPosition, and is over; the others go on. Other
// faults (Err) pass or stay: reading goes on around them until ctx ends. A piece
// that holds an open transaction is waited for.
func ReadTails(ctx context.Context, cfg TailsConfig, spans map[kafka.TopicPartition]Span, take func(Fetched) error) error {
	c, err := NewConsumer(Config{Brokers: cfg.Brokers, Topics: cfg.Topics, Log: cfg.Log})
	if err != nil {
		return err
	}
	defer c.Close()
	t := tails{until: cfg.Until, left: map[kafka.TopicPartition]millrace.Offset{}, take: take}
	if err := t.begin(ctx, c, spans); err != nil {
		return err
	}
	for len(t.left) > 0 {
		all, err := c.Poll(ctx, tailRecords)
		if err != nil {
			return fmt.Errorf("kafka: %d of %d pieces of the log are not read: %w", len(t.left), len(spans), err)
		}
		var over []kafka.TopicPartition
		for _, f := range all {
			to, ok := t.left[f.TopicPartition]
			if !ok {
				continue // it is over
			}
			if f, err = t.cut(f, to); err != nil {
				return err
			}
			if f.Next >= to || errors.Is(f.Err, kafka.ErrLostPosition) {
				delete(t.left, f.TopicPartition)
				over = append(over, f.TopicPartition)
			}
			if err := take(f); err != nil {
				return err
			}
		}
		c.Remove(over...) // at once: each call ends all fetches that are under way
	}
	return nil
}

// tails is what ReadTails has still to read.
type tails struct {
	until millrace.Time
	left  map[kafka.TopicPartition]millrace.Offset // where each ends
	take  func(Fetched) error
}

// begin has the consumer read what the log has.
func (t *tails) begin(ctx context.Context, c *Consumer, spans map[kafka.TopicPartition]Span) error {
	var all []kafka.TopicPartition
	for tp, s := range spans {
		if s.From.Next < s.To {
			all = append(all, tp)
		}
	}
	var starts, ends map[kafka.TopicPartition]millrace.Offset
	err := kafka.Persist(ctx, nil, func(ctx context.Context) (err error) {
		if starts, err = c.StartOffsets(ctx, all...); err == nil {
			ends, err = c.HighWatermarks(ctx, all...)
		}
		return err
	})
	if err != nil {
		return err
	}
	at := map[kafka.TopicPartition]kafka.Position{}
	for _, tp := range all {
		s := spans[tp]
		f := Fetched{TopicPartition: tp, From: s.From.Next, Next: s.From.Next, Epoch: s.From.Epoch}
		switch {
		case starts[tp] > s.From.Next:
			f.Err = fmt.Errorf("kafka: read %s from %d: %w: the log begins at %d", tp, s.From.Next, kafka.ErrLostPosition, starts[tp])
		case ends[tp] < s.To:
			f.Err = fmt.Errorf("kafka: read %s to %d: %w: the log ends at %d", tp, s.To, kafka.ErrLostPosition, ends[tp])
		default:
			at[tp], t.left[tp] = s.From, s.To
			continue
		}
		if err := t.take(f); err != nil {
			return err
		}
	}
	c.Add(at)
	return nil
}

// cut takes away what is behind the end or after the time. A fault there is none of
// the piece's, which is read whole.
func (t *tails) cut(f Fetched, to millrace.Offset) (Fetched, error) {
	keep := f.Records[:0]
	for _, r := range f.Records {
		if t.until > 0 && r.appendTime {
			return f, fmt.Errorf("read %s at %d: %w", f.TopicPartition, r.Offset, errLogAppendTime)
		}
		if r.Offset < to && (t.until == 0 || r.Time <= t.until) {
			keep = append(keep, r)
		}
	}
	f.Records = keep
	if f.Next >= to {
		f.Next, f.Err = to, nil
		f.Epoch = -1 // of a record that may be behind the end
	}
	return f, nil
}

// settled is how long after a time no record of a transaction that began before
// it comes any more: Kafka has aborted those that were open, and the clocks of
// partitioners do not differ by as much.
const settled = kafka.TransactionTimeout + 50*time.Second

// Instant says where each partition was at a time, by the times that records
// have, which are those of their transactions' beginnings.
type Instant struct {
	// Before each of these offsets all records are of the time or earlier.
	All [kafka.Streams][partition.Count]millrace.Offset
	// From each of these offsets on, all are later, as far as the clocks of
	// partitioners and brokers agree within half a minute. In between are records
	// of both kinds, as transactions overlap; ReadTails with Until tells them
	// apart.
	Any [kafka.Streams][partition.Count]millrace.Offset
}

// At returns the Instant of a time, which must be over for a minute: what began
// then may still be under way.
func At(ctx context.Context, brokers kafka.Brokers, topics kafka.Topics, t millrace.Time) (Instant, error) {
	if over := t.Std().Add(settled); time.Now().Before(over) {
		return Instant{}, fmt.Errorf("kafka: offsets at %s: transactions of that time may be under way until %s; wait, or take a cut", t, millrace.TimeOf(over))
	}
	return instant(ctx, brokers, topics.WithDefaults(), t)
}

func instant(ctx context.Context, brokers kafka.Brokers, topics kafka.Topics, t millrace.Time) (at Instant, err error) {
	cl, err := kafka.NewClient(brokers, nil)
	if err != nil {
		return at, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	if err := after(ctx, adm, topics, t, &at.All); err != nil {
		return at, err
	}
	return at, after(ctx, adm, topics, t+millrace.Time(settled.Milliseconds()), &at.Any)
}

// after finds the first record after a time in each partition, or the end.
func after(ctx context.Context, adm *kadm.Client, topics kafka.Topics, t millrace.Time, out *[kafka.Streams][partition.Count]millrace.Offset) error {
	listed, err := kafka.ListSince(ctx, adm, t+1, topics.Timeline, topics.Features)
	if err == nil {
		err = listed.Error()
	}
	if err != nil {
		return fmt.Errorf("kafka: offsets after %s: %w", t, err)
	}
	for s := range out {
		topic := topics.Of(kafka.Stream(s))
		for p := range out[s] {
			o, ok := listed.Lookup(topic, int32(p))
			if !ok {
				return fmt.Errorf("kafka: offsets after %s: %s/%d: %w", t, topic, p, kafka.Missing(ok))
			}
			out[s][p] = millrace.Offset(o.Offset)
		}
	}
	return nil
}
