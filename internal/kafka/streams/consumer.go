// Package streams reads the topics timeline and features, which are the log that all index
// nodes follow. A Consumer reads partitions from given offsets on without an end; ReadTails
// reads pieces of them.
package streams

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/patience"
)

// Record is a record of a stream. The caller may keep its bytes.
type Record struct {
	Offset millrace.Offset
	Key    []byte        // the entity of the timeline
	Value  []byte        // single-object Avro
	Source []byte        // header src, for ParseSource; nil if missing
	CRC    []byte        // header crc, for CheckCRC; nil if missing
	Time   millrace.Time // when its transaction began, or when it was logged; see appendTime

	// appendTime says that the topic has Kafka's broker set Time when it logs a record, so
	// that Time says nothing of a transaction.
	appendTime bool
}

// Fetched is what one poll brought of one partition.
type Fetched struct {
	kafka.TopicPartition
	Records []Record
	// From is where the fetch began: what comes before was fetched earlier.
	From millrace.Offset
	// Next is the offset to read after this: past the records, and past
	// transaction markers and aborted records that are not delivered.
	Next millrace.Offset
	// Epoch is that of the partition's leader which wrote the newest record; -1 if unknown.
	Epoch int32
	// Err is a fault of this partition alone. With an ErrLostPosition the partition is
	// not read any further; otherwise reading goes on by itself.
	Err error
}

// Config says where to read.
type Config struct {
	Brokers kafka.Brokers
	Topics  kafka.Topics
	Log     *slog.Logger // nil = silent
}

// Consumer reads given partitions of the timeline and features topics from
// given offsets, without a group. Poll is for one goroutine; the rest may be
// called at any time.
type Consumer struct {
	cl       *kgo.Client
	ask      *kgo.Client           // for looks, which would wait behind a fetch of cl
	topics   [kafka.Streams]string // names
	next     time.Time             // before which Poll does not poll again; only Poll uses it
	looks    *kafka.Looks          // at gaps; only Poll uses it
	standing *kafka.Standing       // finds partitions of which nothing comes
	mu       struct {
		sync.Mutex
		next map[kafka.TopicPartition]kafka.Position // what is read, and where to go on
		// poll is the number of the latest poll. A poll may bring records of a partition that
		// is removed, and added again at another offset, before the poll returns. So removed
		// has, for each partition, the number of the poll during which it was last removed.
		poll    uint64
		removed map[kafka.TopicPartition]uint64
		joining time.Time // until then fetches are ended early: see join
	}
}

// NewConsumer connects. Nothing is read before Assign or Add.
func NewConsumer(cfg Config) (*Consumer, error) {
	// Control records are kept since they move Next past records that are not delivered.
	standing := kafka.NewStanding()
	cl, err := kafka.NewClient(cfg.Brokers, cfg.Log, kgo.KeepControlRecords(), kgo.FetchMaxWait(quietWait), kgo.WithHooks(standing))
	if err != nil {
		return nil, err
	}
	ask, err := kafka.NewClient(cfg.Brokers, nil)
	if err != nil {
		cl.Close()
		return nil, err
	}
	t := cfg.Topics.WithDefaults()
	c := &Consumer{cl: cl, ask: ask, looks: kafka.NewLooks(ask), standing: standing, topics: [kafka.Streams]string{t.Timeline, t.Features}}
	c.mu.next = map[kafka.TopicPartition]kafka.Position{}
	c.mu.removed = map[kafka.TopicPartition]uint64{}
	return c, nil
}

// Close ends reading; a Poll under way returns ErrClosed.
func (c *Consumer) Close() {
	// franz-go assigns what was added lately while it closes, and then fetches
	// in a session that it is ending: a data race. Without partitions it does
	// not.
	c.Assign(nil)
	kafka.Close(c.cl)
	kafka.Close(c.ask)
}

// Assign has the consumer read exactly these partitions, from these offsets.
func (c *Consumer) Assign(at map[kafka.TopicPartition]kafka.Position) {
	c.mu.Lock()
	gone := make([]kafka.TopicPartition, 0, len(c.mu.next))
	for tp := range c.mu.next {
		gone = append(gone, tp)
	}
	c.mu.Unlock()
	c.Remove(gone...)
	c.Add(at)
}

// Add has the consumer read further partitions. One that is read already moves to its new
// offset.
func (c *Consumer) Add(at map[kafka.TopicPartition]kafka.Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(at)
}

// addLocked is Add with c.mu held.
func (c *Consumer) addLocked(at map[kafka.TopicPartition]kafka.Position) {
	byTopic := map[string]map[int32]kgo.Offset{}
	var again []kafka.TopicPartition
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
func (c *Consumer) Remove(tps ...kafka.TopicPartition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removeLocked(tps...)
}

// removeLocked is Remove with c.mu held.
func (c *Consumer) removeLocked(tps ...kafka.TopicPartition) {
	for _, tp := range tps {
		delete(c.mu.next, tp)
		c.mu.removed[tp] = c.mu.poll
	}
	c.cl.RemoveConsumePartitions(c.byTopic(tps))
}

// Pause stops fetching partitions that are read, until Resume. A poll that is
// under way may still bring some of them.
func (c *Consumer) Pause(tps ...kafka.TopicPartition) { c.cl.PauseFetchPartitions(c.byTopic(tps)) }

// Resume has partitions that were paused fetched again.
func (c *Consumer) Resume(tps ...kafka.TopicPartition) {
	c.cl.ResumeFetchPartitions(c.byTopic(tps))
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.joining = time.Now().Add(quietWait)
}

// quietWait is how long a broker of Kafka may keep a fetch of a Consumer open while there is
// no data. For each fetch the broker looks at every partition of the Consumer, which may be
// all 1,440 of the two topics, so with a short wait an idle cluster would do little else. A
// record that comes ends the wait. Tests change it.
var quietWait = 2 * time.Second

// join ends the fetch under way if partitions were added or resumed lately, since the fetch
// does not include them. It reports whether more fetches may have to be ended.
func (c *Consumer) join() (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Now().After(c.mu.joining) {
		return false
	}
	// Removing any partition ends franz-go's fetches, even -1, which nobody reads.
	c.cl.RemoveConsumePartitions(map[string][]int32{c.topics[kafka.Timeline]: {-1}})
	return true
}

// byTopic returns partitions as franz-go names them.
func (c *Consumer) byTopic(tps []kafka.TopicPartition) map[string][]int32 {
	m := map[string][]int32{}
	for _, tp := range tps {
		m[c.topics[tp.Stream]] = append(m[c.topics[tp.Stream]], int32(tp.Partition))
	}
	return m
}

const (
	// gatherFor is the least time from one Poll that brought little to the next. A broker of
	// Kafka looks at each partition of a reader for each of its fetches. If every record
	// that comes in ended a fetch, these would be most of its work.
	gatherFor = 250 * time.Millisecond
	// little: a Poll that brings fewer records than this has brought little.
	little = 1000
)

// Poll waits until there are records, faults or progress, and returns at most max records, by
// partition. Its error is ctx's end or ErrClosed.
func (c *Consumer) Poll(ctx context.Context, max int) ([]Fetched, error) {
	patience.Sleep(ctx, time.Until(c.next))
	for longest := kafka.FetchWait; ; {
		c.mu.Lock()
		c.mu.poll++
		c.mu.Unlock()
		wait, cancel := context.WithTimeout(ctx, longest)
		fetches := c.cl.PollRecords(wait, max)
		cancel()
		if fetches.IsClientClosed() {
			return nil, kafka.ErrClosed
		}
		if c.next = time.Now(); fetches.NumRecords() < min(little, max) {
			c.next = c.next.Add(gatherFor)
		}
		var out []Fetched
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if f, ok := c.take(ctx, p); ok {
				out = append(out, f)
			}
		})
		out = append(out, c.stand(ctx, fetches)...)
		if len(out) > 0 {
			return out, nil
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if longest = kafka.NudgeAfter; c.join() {
			longest = kafka.FetchWait
		}
		c.cl.ResumeFetchPartitions(nil)
	}
}

// take turns what franz-go fetched of one partition into a Fetched, and moves the partition's
// position. It returns false if there is nothing to return.
func (c *Consumer) take(ctx context.Context, p kgo.FetchTopicPartition) (Fetched, bool) {
	tp, ok := c.name(p.Topic, p.Partition)
	if !ok {
		return Fetched{}, false // a client-wide notice, such as ctx's end
	}
	c.mu.Lock()
	next, ok := c.mu.next[tp]
	stale := ok && c.mu.removed[tp] == c.mu.poll
	if stale {
		c.addLocked(map[kafka.TopicPartition]kafka.Position{tp: next}) // these records may be from the old offset: fetch again
	}
	c.mu.Unlock()
	if !ok || stale { // removed while under way, or moved
		return Fetched{}, false
	}
	f := Fetched{TopicPartition: tp, From: next.Next, Next: next.Next, Epoch: next.Epoch, Err: p.Err}
	if f.Err == nil && len(p.Records) > 0 && millrace.Offset(p.Records[0].Offset) > next.Next && millrace.Offset(p.LogStartOffset) > next.Next {
		// Retention overtook the reader.
		f.Err, p.Records = fmt.Errorf("%w: the log now begins at %d", kafka.ErrLostPosition, p.LogStartOffset), nil
	} else if kind := kafka.LostPosition(f.Err); kind != nil {
		f.Err = fmt.Errorf("%w: %w", kind, f.Err)
	}
	if f.Err != nil {
		f.Err = fmt.Errorf("kafka: read %s at %d: %w", tp, next.Next, f.Err)
	}
	records, broken, unsure := c.whole(ctx, p, f.Next)
	if len(records) > 1 {
		f.Records = make([]Record, 0, len(records))
	}
	for _, r := range records {
		if millrace.Offset(r.Offset) < f.Next {
			continue
		}
		f.Next, f.Epoch = millrace.Offset(r.Offset)+1, r.LeaderEpoch
		if !r.Attrs.IsControl() {
			f.Records = append(f.Records, record(r))
		}
	}
	if broken != nil {
		f.Next, f.Err = millrace.Offset(broken.First), brokenAt(tp, broken)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, ok := c.mu.next[tp]; !ok || now != next {
		return Fetched{}, false // removed or moved while a gap was looked at
	}
	after := kafka.Position{Next: f.Next, Epoch: f.Epoch}
	switch {
	case errors.Is(f.Err, kafka.ErrLostPosition):
		c.removeLocked(tp)
	case unsure != nil: // what is behind the gap is fetched again
		f.Err = fmt.Errorf("kafka: look at what %s has at %d: %w", tp, f.Next, unsure)
		c.addLocked(map[kafka.TopicPartition]kafka.Position{tp: after})
	default:
		c.mu.next[tp] = after
	}
	return f, f.Err != nil || f.Next > next.Next
}

// name returns a partition as this project names it; false if it is of another topic.
func (c *Consumer) name(topic string, p int32) (kafka.TopicPartition, bool) {
	for s, t := range c.topics {
		if t == topic && p >= 0 {
			return kafka.TopicPartition{Stream: kafka.Stream(s), Partition: millrace.Partition(p)}, true
		}
	}
	return kafka.TopicPartition{}, false
}

func record(r *kgo.Record) Record {
	out := Record{Offset: millrace.Offset(r.Offset), Key: r.Key, Value: r.Value, Time: millrace.Time(r.Timestamp.UnixMilli()),
		appendTime: r.Attrs.TimestampType() == 1}
	for _, h := range r.Headers {
		switch h.Key {
		case kafka.HeaderSource:
			out.Source = h.Value
		case kafka.HeaderCRC:
			out.CRC = h.Value
		}
	}
	return out
}

// EndOffsets returns, for each partition, the offset up to which committed records can be
// read now. A reader whose Next has reached it has all that was there at the moment of the
// call.
func (c *Consumer) EndOffsets(ctx context.Context, tps ...kafka.TopicPartition) (map[kafka.TopicPartition]millrace.Offset, error) {
	return c.list(ctx, theEnd, committed, tps)
}

// HighWatermarks returns, for each partition, the offset after its last
// record, committed or not.
func (c *Consumer) HighWatermarks(ctx context.Context, tps ...kafka.TopicPartition) (map[kafka.TopicPartition]millrace.Offset, error) {
	return c.list(ctx, theEnd, uncommitted, tps)
}

// StartOffsets returns, for each partition, the oldest offset that the log
// still has.
func (c *Consumer) StartOffsets(ctx context.Context, tps ...kafka.TopicPartition) (map[kafka.TopicPartition]millrace.Offset, error) {
	return c.list(ctx, theStart, uncommitted, tps)
}

// OffsetsSince returns, for each partition, the offset of the first record whose time is t or
// later; the end if there is none.
func (c *Consumer) OffsetsSince(ctx context.Context, t millrace.Time, tps ...kafka.TopicPartition) (map[kafka.TopicPartition]millrace.Offset, error) {
	out, err := c.list(ctx, max(0, int64(t)), uncommitted, tps)
	var none []kafka.TopicPartition
	for tp, at := range out {
		if at < 0 {
			none = append(none, tp)
		}
	}
	if err != nil || len(none) == 0 {
		return out, err
	}
	ends, err := c.HighWatermarks(ctx, none...)
	maps.Copy(out, ends)
	return out, err
}

// What Kafka's protocol has instead of a time, and its isolation levels.
const (
	theEnd   int64 = -1
	theStart int64 = -2

	uncommitted int8 = 0
	committed   int8 = 1
)

// list asks Kafka for one offset of each of these partitions: at a time, or at theEnd or
// theStart. It does not ask for other partitions, since a node may read 1,440 and have just
// added two.
func (c *Consumer) list(ctx context.Context, at int64, isolation int8, tps []kafka.TopicPartition) (map[kafka.TopicPartition]millrace.Offset, error) {
	out := make(map[kafka.TopicPartition]millrace.Offset, len(tps))
	if len(tps) == 0 {
		return out, nil
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = -1, isolation
	for topic, partitions := range c.byTopic(tps) {
		of := kmsg.NewListOffsetsRequestTopic()
		of.Topic = topic
		for _, p := range partitions {
			one := kmsg.NewListOffsetsRequestTopicPartition()
			one.Partition, one.Timestamp = p, at
			of.Partitions = append(of.Partitions, one)
		}
		req.Topics = append(req.Topics, of)
	}
	resp, err := kafka.Ask(ctx, func() (*kmsg.ListOffsetsResponse, error) { return req.RequestWith(ctx, c.cl) })
	if err != nil {
		return nil, fmt.Errorf("kafka: list offsets: %w", err)
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			tp, ok := c.name(t.Topic, p.Partition)
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil || !ok {
				return nil, fmt.Errorf("kafka: list offsets: %s/%d: %w", t.Topic, p.Partition, errors.Join(err, kafka.Missing(ok)))
			}
			out[tp] = millrace.Offset(p.Offset)
		}
	}
	for _, tp := range tps {
		if _, ok := out[tp]; !ok {
			return nil, fmt.Errorf("kafka: list offsets: %s: %w", tp, kafka.Missing(ok))
		}
	}
	return out, nil
}

// LogID returns the identity of the log (Kafka's and the topics' ids) that is there now.
func (c *Consumer) LogID(ctx context.Context) (kafka.LogID, error) {
	return kafka.LogNow(ctx, c.cl, c.topics)
}
