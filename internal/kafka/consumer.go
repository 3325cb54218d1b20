package kafka

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
)

// Stream is one of the two topics that index nodes read.
type Stream uint8

// The streams.
const (
	Timeline Stream = iota // content records
	Features               // relevance features
	streams
)

// Streams print as their topic's default name.
func (s Stream) String() string { return [streams]string{"timeline", "features"}[s] }

// TopicPartition is a partition of a stream.
type TopicPartition struct {
	Stream    Stream
	Partition millrace.Partition
}

// TopicPartitions print as "timeline/644".
func (tp TopicPartition) String() string { return fmt.Sprintf("%s/%d", tp.Stream, tp.Partition) }

// Record is a record of a stream. Its bytes stay valid as long as they are
// referred to.
type Record struct {
	Offset millrace.Offset
	Key    []byte        // the entity of the timeline
	Value  []byte        // single-object Avro
	Source []byte        // header src, for ParseSource; nil if missing
	CRC    []byte        // header crc, for CheckCRC; nil if missing
	Time   millrace.Time // when it was logged, or its transaction began: the same for all who read it

	appendTime bool // Time is the broker's, and says nothing of a transaction
}

// Fetched is what one poll brought of one partition.
type Fetched struct {
	TopicPartition
	Records []Record
	// From is where the fetch began: what comes before was fetched earlier.
	From millrace.Offset
	// Next is the offset to read after this: past the records, and past
	// transaction markers and aborted records that are not delivered.
	Next millrace.Offset
	// Epoch is that of the leader which wrote the newest record; -1 unknown.
	Epoch int32
	// Err is a fault of this partition alone. With ErrLostPosition the
	// partition is no longer read; otherwise reading goes on by itself.
	Err error
}

// Position is where to read on: the next offset, and the epoch of the leader
// that wrote the record before it, by which Kafka tells a log that was cut and
// grew again; -1 if that is not known.
type Position struct {
	Next  millrace.Offset
	Epoch int32
}

// ConsumerConfig says where to read.
type ConsumerConfig struct {
	Brokers Brokers
	Topics  Topics
	Log     *slog.Logger // nil = silent
}

// Consumer reads given partitions of the timeline and features topics from
// given offsets, without a group. Poll is for one goroutine; the rest may be
// called at any time.
type Consumer struct {
	cl     *kgo.Client
	adm    *kadm.Client
	topics [streams]string
	next   time.Time // of Poll: when it looks again
	mu     struct {
		sync.Mutex
		next map[TopicPartition]Position // what is read, and where to go on
		// A poll may hold records of a partition that is removed and added again
		// elsewhere before the poll returns; removed tells during which poll.
		poll    uint64
		removed map[TopicPartition]uint64
		joining time.Time // until then fetches are cut short: see join
	}
}

// NewConsumer connects. Nothing is read before Assign or Add.
func NewConsumer(cfg ConsumerConfig) (*Consumer, error) {
	// Control records move Next past what is not delivered.
	cl, err := newClient(cfg.Brokers, cfg.Log, kgo.KeepControlRecords(), kgo.FetchMaxWait(quietWait))
	if err != nil {
		return nil, err
	}
	t := cfg.Topics.WithDefaults()
	c := &Consumer{cl: cl, adm: kadm.NewClient(cl), topics: [streams]string{t.Timeline, t.Features}}
	c.mu.next = map[TopicPartition]Position{}
	c.mu.removed = map[TopicPartition]uint64{}
	return c, nil
}

// Close ends reading; a Poll under way returns ErrClosed.
func (c *Consumer) Close() {
	// franz-go assigns what was added lately while it closes, and then fetches
	// in a session that it is ending: a data race. Without partitions it does
	// not.
	c.Assign(nil)
	c.cl.Close()
}

// Assign reads exactly these partitions from these offsets.
func (c *Consumer) Assign(at map[TopicPartition]Position) {
	c.mu.Lock()
	gone := make([]TopicPartition, 0, len(c.mu.next))
	for tp := range c.mu.next {
		gone = append(gone, tp)
	}
	c.mu.Unlock()
	c.Remove(gone...)
	c.Add(at)
}

// Add reads further partitions; one that is read already moves to its new
// offset.
func (c *Consumer) Add(at map[TopicPartition]Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	byTopic := map[string]map[int32]kgo.Offset{}
	var again []TopicPartition
	for tp, next := range at {
		if _, ok := c.mu.next[tp]; ok {
			again = append(again, tp)
			c.mu.removed[tp] = c.mu.poll
		}
		c.mu.next[tp] = next
		topic := c.topics[tp.Stream]
		if byTopic[topic] == nil {
			byTopic[topic] = map[int32]kgo.Offset{}
		}
		byTopic[topic][int32(tp.Partition)] = kgo.NewOffset().At(int64(next.Next)).WithEpoch(next.Epoch)
	}
	c.cl.RemoveConsumePartitions(c.byTopic(again))
	c.cl.AddConsumePartitions(byTopic)
	c.mu.joining = time.Now().Add(quietWait)
}

// Remove stops reading partitions.
func (c *Consumer) Remove(tps ...TopicPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, tp := range tps {
		delete(c.mu.next, tp)
		c.mu.removed[tp] = c.mu.poll
	}
	c.cl.RemoveConsumePartitions(c.byTopic(tps))
}

// Pause stops fetching partitions that are read, until Resume. A poll that is
// under way may still bring some of them.
func (c *Consumer) Pause(tps ...TopicPartition) { c.cl.PauseFetchPartitions(c.byTopic(tps)) }

// Resume fetches them again.
func (c *Consumer) Resume(tps ...TopicPartition) {
	c.cl.ResumeFetchPartitions(c.byTopic(tps))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.joining = time.Now().Add(quietWait)
}

// quietWait is how long a broker may hold a fetch of a Consumer without data. For
// each it looks at every partition, of which there are 1,440, so a short wait is
// what an idle cluster does most. A record that comes ends the wait. Tests change
// it.
var quietWait = 2 * time.Second

// join ends the fetch under way if partitions were added or resumed lately, which
// it does not have, and reports whether there may be others to end.
func (c *Consumer) join() (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().After(c.mu.joining) {
		return false
	}
	// To remove a partition, also one that nobody reads, ends franz-go's session.
	c.cl.RemoveConsumePartitions(map[string][]int32{c.topics[Timeline]: {-1}})
	return true
}

func (c *Consumer) byTopic(tps []TopicPartition) map[string][]int32 {
	m := map[string][]int32{}
	for _, tp := range tps {
		m[c.topics[tp.Stream]] = append(m[c.topics[tp.Stream]], int32(tp.Partition))
	}
	return m
}

// nudgeAfter is how long Poll waits before it has franz-go look whether it reads.
// Where a consumer session ends before a fetch loop that was begun for it has
// joined it, franz-go 1.22.2 loses the start of the loop of the next one
// (source.loopFetch gives up by hardFinish without looking for a newer session),
// and reads nothing of that broker any more. A Resume, also of nothing, begins
// the loops that do not run. Partitions that are removed one by one end as many
// sessions: of 150,000 such ends three were lost.
const nudgeAfter = time.Second

const (
	// gatherFor is the least time from one Poll that brought little to the next.
	// A broker looks at each partition of a reader for each of its fetches: with
	// a fetch for each record that comes in, fetches are most of its work.
	gatherFor = 250 * time.Millisecond
	// little is how many records are less than what a reader should wait for.
	little = 1000
)

// Poll waits for records, faults or progress, at most max records together.
// It fails only with ctx's end or ErrClosed.
func (c *Consumer) Poll(ctx context.Context, max int) ([]Fetched, error) {
	sleep(ctx, time.Until(c.next))
	for patience := fetchWait; ; {
		c.mu.Lock()
		c.mu.poll++
		c.mu.Unlock()
		wait, cancel := context.WithTimeout(ctx, patience)
		fetches := c.cl.PollRecords(wait, max)
		cancel()
		if fetches.IsClientClosed() {
			return nil, ErrClosed
		}
		if c.next = time.Now(); fetches.NumRecords() < min(little, max) {
			c.next = c.next.Add(gatherFor)
		}
		var out []Fetched
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if f, ok := c.take(p); ok {
				out = append(out, f)
			}
		})
		if len(out) > 0 {
			return out, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if patience = nudgeAfter; c.join() {
			patience = fetchWait
		}
		c.cl.ResumeFetchPartitions(nil)
	}
}

// take turns what franz-go fetched of one partition into a Fetched. It reports
// false when there is nothing to tell.
func (c *Consumer) take(p kgo.FetchTopicPartition) (Fetched, bool) {
	tp, ok := c.name(p.Topic, p.Partition)
	if !ok {
		return Fetched{}, false // a client-wide notice, such as ctx's end
	}
	c.mu.Lock()
	next, ok := c.mu.next[tp]
	stale := c.mu.poll != 0 && c.mu.removed[tp] == c.mu.poll
	c.mu.Unlock()
	if !ok {
		return Fetched{}, false // removed while under way
	}
	if stale {
		c.Add(map[TopicPartition]Position{tp: next}) // perhaps of the former place: fetch again
		return Fetched{}, false
	}
	f := Fetched{TopicPartition: tp, From: next.Next, Next: next.Next, Epoch: next.Epoch, Err: p.Err}
	if f.Err == nil && len(p.Records) > 0 && millrace.Offset(p.Records[0].Offset) > next.Next && millrace.Offset(p.LogStartOffset) > next.Next {
		// Retention overtook the reader.
		f.Err, p.Records = fmt.Errorf("%w: the log now begins at %d", ErrLostPosition, p.LogStartOffset), nil
	} else if kind := lostPosition(f.Err); kind != nil {
		f.Err = fmt.Errorf("%w: %w", kind, f.Err)
	}
	if f.Err != nil {
		f.Err = fmt.Errorf("kafka: read %s at %d: %w", tp, next.Next, f.Err)
	}
	if len(p.Records) > 1 {
		f.Records = make([]Record, 0, len(p.Records))
	}
	for _, r := range p.Records {
		if millrace.Offset(r.Offset) < f.Next {
			continue
		}
		f.Next, f.Epoch = millrace.Offset(r.Offset)+1, r.LeaderEpoch
		if !r.Attrs.IsControl() {
			f.Records = append(f.Records, record(r))
		}
	}
	if errors.Is(f.Err, ErrLostPosition) {
		c.Remove(tp)
		return f, true
	}
	c.mu.Lock()
	if _, ok := c.mu.next[tp]; ok {
		c.mu.next[tp] = Position{f.Next, f.Epoch}
	}
	c.mu.Unlock()
	return f, f.Err != nil || f.Next > next.Next
}

func (c *Consumer) name(topic string, p int32) (TopicPartition, bool) {
	for s, t := range c.topics {
		if t == topic && p >= 0 {
			return TopicPartition{Stream(s), millrace.Partition(p)}, true
		}
	}
	return TopicPartition{}, false
}

func record(r *kgo.Record) Record {
	out := Record{Offset: millrace.Offset(r.Offset), Key: r.Key, Value: r.Value, Time: millrace.Time(r.Timestamp.UnixMilli()),
		appendTime: r.Attrs.TimestampType() == 1}
	for _, h := range r.Headers {
		switch h.Key {
		case HeaderSource:
			out.Source = h.Value
		case HeaderCRC:
			out.CRC = h.Value
		}
	}
	return out
}

// EndOffsets returns, for each partition, the offset after its last committed
// record: a reader whose Next has reached it has caught up with the moment of
// the call.
func (c *Consumer) EndOffsets(ctx context.Context, tps ...TopicPartition) (map[TopicPartition]millrace.Offset, error) {
	return c.list(ctx, c.adm.ListCommittedOffsets, tps)
}

// HighWatermarks returns, for each partition, the offset after its last
// record, committed or not.
func (c *Consumer) HighWatermarks(ctx context.Context, tps ...TopicPartition) (map[TopicPartition]millrace.Offset, error) {
	return c.list(ctx, c.adm.ListEndOffsets, tps)
}

// StartOffsets returns, for each partition, the oldest offset that the log
// still has.
func (c *Consumer) StartOffsets(ctx context.Context, tps ...TopicPartition) (map[TopicPartition]millrace.Offset, error) {
	return c.list(ctx, c.adm.ListStartOffsets, tps)
}

// OffsetsSince returns, for each partition, the offset of the first record that
// was logged at a time or later; the end where there is none.
func (c *Consumer) OffsetsSince(ctx context.Context, t millrace.Time, tps ...TopicPartition) (map[TopicPartition]millrace.Offset, error) {
	return c.list(ctx, func(ctx context.Context, topics ...string) (kadm.ListedOffsets, error) {
		return c.adm.ListOffsetsAfterMilli(ctx, int64(t), topics...)
	}, tps)
}

func (c *Consumer) list(ctx context.Context, list func(context.Context, ...string) (kadm.ListedOffsets, error),
	tps []TopicPartition) (map[TopicPartition]millrace.Offset, error) {
	var topics []string
	for topic := range c.byTopic(tps) {
		topics = append(topics, topic)
	}
	if len(topics) == 0 {
		return map[TopicPartition]millrace.Offset{}, nil
	}
	listed, err := list(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("kafka: list offsets: %w", err)
	}
	out := make(map[TopicPartition]millrace.Offset, len(tps))
	for _, tp := range tps {
		o, ok := listed.Lookup(c.topics[tp.Stream], int32(tp.Partition))
		if !ok || o.Err != nil {
			return nil, fmt.Errorf("kafka: list offsets: %s: %w", tp, errors.Join(o.Err, missing(ok)))
		}
		out[tp] = millrace.Offset(o.Offset)
	}
	return out, nil
}

func missing(ok bool) error {
	if ok {
		return nil
	}
	return errors.New("no such partition")
}
