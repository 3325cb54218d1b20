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

// Span is a piece of a partition: the offsets from From.Next up to To, without To.
type Span struct {
	From kafka.Position
	To   millrace.Offset
}

// TailsConfig says where to read.
type TailsConfig struct {
	Brokers kafka.Brokers
	Topics  kafka.Topics
	Log     *slog.Logger // nil = silent
	// Until leaves out records with a later time; 0 = none are left out. All records of a
	// transaction have one time, so what is left are whole transactions. The topics must keep
	// the time that the producer sets (message.timestamp.type=CreateTime).
	Until millrace.Time
}

// errLogAppendTime says that a topic does not keep the time that the producer sets.
var errLogAppendTime = errors.New("kafka: its records do not have the time of their transaction; set message.timestamp.type=CreateTime on the topic and read up to an offset, not a time")

// tailRecords is how many records ReadTails holds at a time beside what was
// fetched.
const tailRecords = 10_000

// ReadTails reads the committed records of pieces of any number of partitions, with one
// client and bounded memory. It calls take with what each poll brings of a partition, and
// returns when all pieces are read, or with take's error. Each partition's records come in
// order. Next says how far a partition is read, and is exactly the Span's To at its end.
//
// If the log does not have all of a piece, take is called once with an Err that is an
// ErrLostPosition, and the piece is over; the others go on. Other faults (Err) may pass:
// reading is tried again until ctx ends. ReadTails waits for open transactions within a
// piece.
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
				continue // its piece is over
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
		c.Remove(over...) // together, since each call ends all fetches that are under way
	}
	return nil
}

// tails is what ReadTails has still to read.
type tails struct {
	until millrace.Time
	left  map[kafka.TopicPartition]millrace.Offset // where each piece ends that is not over
	take  func(Fetched) error
}

// begin has the consumer read the pieces that the log has, and tells take about the others.
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

// cut removes records behind the end of the piece, and those later than until. If the end is
// reached, it also removes a fault, which lies behind the piece.
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
		f.Epoch = -1 // unknown: the newest record may lie behind the end
	}
	return f, nil
}

// settled is how long after a time no record comes any more of a transaction that began
// before it: by then Kafka has aborted those that were open, provided that the clocks of
// partitioners differ by less than 50 s.
const settled = kafka.TransactionTimeout + 50*time.Second

// Instant says where each partition was at a time, by the times of records, which are when
// their transactions began. Its offsets are by stream and partition.
type Instant struct {
	// All are offsets before which all records are of the time or earlier.
	All [kafka.Streams][partition.Count]millrace.Offset
	// Any are offsets from which on all records are later, provided that the clocks of
	// partitioners and brokers agree within half a minute. Between All and Any are records
	// of both kinds, since transactions overlap; ReadTails with Until tells them apart.
	Any [kafka.Streams][partition.Count]millrace.Offset
}

// At returns the Instant of a time, which must be at least a minute ago, since transactions
// that began before it may still be under way.
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

// after sets out to the offset of the first record after a time in each partition, or to
// the end.
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
