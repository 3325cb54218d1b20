package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// TopicSpan is what a topic has from a time on, up to where committed reads ended when
// the span was opened. Each reading takes the same records.
type TopicSpan struct {
	brokers  Brokers
	topic    string
	id       kadm.TopicID
	from, to map[int32]int64 // of the partitions that have something
	ends     Ends
	starts   map[int32]int64 // of all partitions
	since    millrace.Time   // entries before the first of that time are left out; 0: there are none
	size     int64
	passed   atomic.Int64
}

// answersWithin bounds how long a Kafka that is there takes to say where a topic
// begins and ends, and to hand over the next records.
const answersWithin = 10 * time.Second

// silence is an error of a Kafka that did not answer in time, with its addresses.
func silence(brokers Brokers, topic string, err error) error {
	return unanswered{fmt.Errorf("kafka: read %s: no answer from %v within %s: %w", topic, brokers, answersWithin, err)}
}

// unanswered tells by Timeout, as errors of the network do, that it was only waited for.
type unanswered struct{ error }

func (unanswered) Timeout() bool { return true }

func (u unanswered) Unwrap() error { return u.error }

// OpenTopic looks where a topic begins and ends. A Kafka that does not answer for ten
// seconds is an error.
func OpenTopic(ctx context.Context, brokers Brokers, topic string, from millrace.Time) (*TopicSpan, error) {
	look, err := NewClient(brokers, nil)
	if err != nil {
		return nil, err
	}
	defer look.Close()
	adm := kadm.NewClient(look)
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	failed := func(err error) error {
		if ctx.Err() != nil && whole.Err() == nil {
			return silence(brokers, topic, err)
		}
		return fmt.Errorf("kafka: read %s: %w", topic, err)
	}
	starts, begins, err := StartsAfter(ctx, adm, topic, from)
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return nil, &millrace.Error{Reason: millrace.ReasonUnknown, Field: "topic", Detail: "there is no topic " + topic, WayOut: "name the topic that brokers' configuration has under exposures, or that outcomes are written to"}
	}
	if err != nil {
		return nil, failed(err)
	}
	ends, err := ListEnds(ctx, adm, topic)
	if err != nil {
		return nil, failed(err)
	}
	all, err := adm.ListTopics(ctx, topic)
	if err != nil {
		return nil, failed(err)
	}
	s := &TopicSpan{brokers: brokers, topic: topic, id: all[topic].ID, from: map[int32]int64{}, to: map[int32]int64{}, ends: ends, starts: starts}
	if begins < from {
		s.since = from
	}
	for p, end := range ends.Stable {
		if start, ok := s.starts[p]; ok && start < end {
			s.from[p], s.to[p] = start, end
			s.size += end - start
		}
	}
	return s, nil
}

// Kafka counts milliseconds from 1970, and reads a time before as one of its special
// offsets: -1 is the end of a log. No record is of before, so that is the beginning.

func millisOf(t millrace.Time) int64 { return max(0, int64(t)) }

// ListSince returns, for each partition of topics, the offset of the first record that
// was logged at a time or later; the end where there is none.
func ListSince(ctx context.Context, adm *kadm.Client, t millrace.Time, topics ...string) (kadm.ListedOffsets, error) {
	return Ask(ctx, func() (kadm.ListedOffsets, error) { return adm.ListOffsetsAfterMilli(ctx, millisOf(t), topics...) })
}

// Since is where a client begins to read what was logged at a time or later.
func Since(t millrace.Time) kgo.Offset { return kgo.NewOffset().AfterMilli(millisOf(t)) }

// StartsAfter returns where partitions have entries from a time on. Kafka does not say so
// where that entry is in a batch that is broken: then it is where they have entries
// from an earlier time on (begins).
func StartsAfter(ctx context.Context, adm *kadm.Client, topic string, from millrace.Time) (starts map[int32]int64, begins millrace.Time, err error) {
	begins = from
	for earlier := millrace.Time(1000); ; earlier *= 2 {
		var listed kadm.ListedOffsets
		if begins > 0 {
			listed, err = ListSince(ctx, adm, begins, topic)
		} else {
			listed, err = Ask(ctx, func() (kadm.ListedOffsets, error) { return adm.ListStartOffsets(ctx, topic) })
		}
		if err == nil {
			err = listed.Error()
		}
		broken := errors.Is(err, kerr.CorruptMessage) || errors.Is(err, kerr.UnknownServerError)
		if broken && begins > 0 {
			begins = max(0, from-earlier)
			continue
		}
		if err != nil {
			return nil, 0, err
		}
		starts = map[int32]int64{}
		listed.Each(func(o kadm.ListedOffset) { starts[o.Partition] = o.Offset })
		return starts, begins, nil
	}
}

// Hidden returns what the topic had from the time on that is not in the span, since a
// transaction was open; nil: nothing.
func (s *TopicSpan) Hidden() *Hidden { return s.ends.Hidden(s.starts) }

// Look is a look of a [Reach] at the topic.
func (s *TopicSpan) Look(r *Reach, recent time.Duration) (time.Time, error) {
	return r.Look(s.ends, s.starts, recent)
}

// Ends returns where the partitions end that have something.
func (s *TopicSpan) Ends() map[int32]int64 { return s.to }

// ID is of the topic: another one of the same name has another.
func (s *TopicSpan) ID() kadm.TopicID { return s.id }

// After leaves out what is before offsets. A partition that ends before its offset has
// lost its end, and is read whole.
func (s *TopicSpan) After(marks map[int32]int64) {
	for p, mark := range marks {
		from, to := s.from[p], s.to[p]
		if from >= mark || to < mark {
			continue
		}
		s.size -= mark - from
		if s.from[p] = mark; mark == to {
			delete(s.from, p)
			delete(s.to, p)
		}
	}
}

// Done is the share of the span that the reading has passed, 0 to 1.
func (s *TopicSpan) Done() float64 {
	if s.size == 0 {
		return 1
	}
	return float64(s.passed.Load()) / float64(s.size)
}

// Read takes the values of the records, partition by partition in their order,
// until take fails, with its error. Where none comes for ten seconds that is one. A
// batch that can never be read ([Steps]) is taken as one without a value, and with why,
// behind records that were fetched with it.
func (s *TopicSpan) Read(ctx context.Context, take func(value []byte, closed error) error) error {
	return s.ReadEntries(ctx, func(e Entry) error { return take(e.Value, e.Closed) })
}

// Entry is one entry of a topic, or a batch that can never be read.
type Entry struct {
	Partition int32
	Offset    int64 // of a batch: of its first entry
	Value     []byte
	Closed    error // why it cannot be read; nil: it can
}

// ReadEntries is Read for who needs to know where each of them is.
func (s *TopicSpan) ReadEntries(ctx context.Context, take func(Entry) error) error {
	s.passed.Store(0)
	at, next := map[int32]kgo.Offset{}, map[int32]int64{} // of partitions that are not read yet
	met := map[int32]bool{}                               // partitions that have had an entry of the time
	for p, from := range s.from {
		at[p], next[p] = kgo.NewOffset().At(from), from
	}
	if len(at) == 0 {
		return nil
	}
	// What is behind an aborted transaction is seen by the record that ends it.
	cl, err := NewClient(s.brokers, nil, append(Sparing(), kgo.KeepControlRecords(), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{s.topic: at}))...)
	if err != nil {
		return err
	}
	defer cl.Close()
	pass := func(p int32, now int64) {
		was := next[p]
		now = min(now, s.to[p])
		s.passed.Add(now - was)
		if next[p] = now; now == s.to[p] {
			delete(next, p)
		}
	}
	steps := NewSteps(cl, s.topic, s.from, func(context.Context) (map[int32]int64, error) { return next, nil })
	for heard := time.Now(); len(next) > 0; {
		poll, cancel := context.WithTimeout(ctx, stillAfter)
		fetches := cl.PollFetches(poll)
		cancel()
		for r := range fetches.RecordsAll() {
			if _, open := next[r.Partition]; !open {
				continue
			}
			met[r.Partition] = met[r.Partition] || millrace.TimeOf(r.Timestamp) >= s.since
			if r.Offset < s.to[r.Partition] && !r.Attrs.IsControl() && met[r.Partition] {
				if err := take(Entry{Partition: r.Partition, Offset: r.Offset, Value: r.Value}); err != nil {
					return err
				}
			}
			pass(r.Partition, r.Offset+1)
		}
		over, err := steps.Over(ctx, fetches)
		if err = errors.Join(ctx.Err(), err); err != nil {
			return fmt.Errorf("kafka: read %s: %w", s.topic, err)
		}
		if fetches.NumRecords() > 0 || len(over) > 0 {
			heard = time.Now()
		} else if time.Since(heard) >= answersWithin {
			return silence(s.brokers, s.topic, context.DeadlineExceeded)
		}
		for _, c := range over {
			if c.First < s.to[c.Partition] {
				if err := take(Entry{Partition: c.Partition, Offset: c.First, Closed: c}); err != nil {
					return err
				}
			}
			if at, open := next[c.Partition]; open && at < c.Next {
				pass(c.Partition, c.Next)
			}
		}
	}
	return nil
}
