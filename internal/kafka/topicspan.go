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
// the span was opened. It can be read several times, and has the same records each time.
type TopicSpan struct {
	brokers  Brokers
	topic    string
	id       kadm.TopicID
	from, to map[int32]int64 // the offsets [from, to) of the partitions that have something
	ends     Ends
	starts   map[int32]int64 // the first offset of each partition of the time or later, as StartsAfter returns it
	since    millrace.Time   // in each partition, entries before the first of this time are left out; 0: none are
	size     int64           // offsets in all partitions
	passed   atomic.Int64    // offsets that the present reading has passed
}

// answersWithin bounds how long a Kafka that is there takes to say where a topic
// begins and ends, and to hand over the next records.
const answersWithin = 10 * time.Second

// silence returns the error of a Kafka that did not answer in time, with its addresses.
func silence(brokers Brokers, topic string, err error) error {
	return unanswered{fmt.Errorf("kafka: read %s: no answer from %v within %s: %w", topic, brokers, answersWithin, err)}
}

// unanswered is an error whose Timeout method returns true, as those of errors of the
// network do.
type unanswered struct{ error }

func (unanswered) Timeout() bool { return true }

func (u unanswered) Unwrap() error { return u.error }

// OpenTopic asks where a topic begins and ends, and returns the span of the topic from a
// time on; 0: from its beginning. It fails if Kafka does not answer for ten seconds.
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

// Kafka counts milliseconds from 1970. It takes a negative time for one of its special
// offsets, such as -1 for the end of a log. No record is from before 1970, so such a time
// becomes 0.

// millisOf returns a time in Kafka's milliseconds.
func millisOf(t millrace.Time) int64 { return max(0, int64(t)) }

// ListSince returns, for each partition of topics, the offset of the first record that
// was logged at a time or later; the end of the partition if there is none.
func ListSince(ctx context.Context, adm *kadm.Client, t millrace.Time, topics ...string) (kadm.ListedOffsets, error) {
	return Ask(ctx, func() (kadm.ListedOffsets, error) { return adm.ListOffsetsAfterMilli(ctx, millisOf(t), topics...) })
}

// Since returns the offset by which a client begins with what was logged at a time or
// later.
func Since(t millrace.Time) kgo.Offset { return kgo.NewOffset().AfterMilli(millisOf(t)) }

// StartsAfter returns the offset of the first entry of each partition of a time or later.
// Kafka cannot say that if the entry is in a broken batch. Then the offsets are those of
// an earlier time, begins; else begins is from.
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

// Hidden returns what the topic had from the time on that is not in the span, because an
// open transaction hid it; nil: nothing.
func (s *TopicSpan) Hidden() *Hidden { return s.ends.Hidden(s.starts) }

// Look is [Reach.Look] at the topic as it was when the span was opened.
func (s *TopicSpan) Look(r *Reach, recent time.Duration) (time.Time, error) {
	return r.Look(s.ends, s.starts, recent)
}

// Ends returns where the span ends in each partition that has something.
func (s *TopicSpan) Ends() map[int32]int64 { return s.to }

// ID returns Kafka's id of the topic. A topic that is created again under its name has
// another.
func (s *TopicSpan) ID() kadm.TopicID { return s.id }

// After takes what is before the offsets marks out of the span, by partition. A partition
// that ends before its mark was cut since the mark was set; it stays whole.
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

// Done returns the share of the span that the present reading has passed, from 0 to 1.
func (s *TopicSpan) Done() float64 {
	if s.size == 0 {
		return 1
	}
	return float64(s.passed.Load()) / float64(s.size)
}

// Read calls take for the value of each record, in the order of each partition. If take
// fails, Read returns its error. It also fails if no record comes for ten seconds. For a
// batch that can never be read (see [Steps]) it calls take with no value and with the
// reason, after records that were fetched with it.
func (s *TopicSpan) Read(ctx context.Context, take func(value []byte, closed error) error) error {
	return s.ReadEntries(ctx, func(e Entry) error { return take(e.Value, e.Closed) })
}

// Entry is one entry of a topic, or a batch that can never be read.
type Entry struct {
	Partition int32
	Offset    int64 // for a batch: that of its first entry
	Value     []byte
	Closed    error // why the batch cannot be read; nil: this is an entry
}

// ReadEntries is Read for callers that need to know where each entry is.
func (s *TopicSpan) ReadEntries(ctx context.Context, take func(Entry) error) error {
	s.passed.Store(0)
	at, next := map[int32]kgo.Offset{}, map[int32]int64{} // where reading begins and goes on; next has only partitions that are not read to their end
	met := map[int32]bool{}                               // partitions that have had an entry of s.since or later
	for p, from := range s.from {
		at[p], next[p] = kgo.NewOffset().At(from), from
	}
	if len(at) == 0 {
		return nil
	}
	// Control records are read, too: if the span ends with an aborted transaction, only
	// the control record that ends it shows that the end was reached.
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
