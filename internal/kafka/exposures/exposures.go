// Package exposures is the topic of what answers showed: brokers write it, guards
// and people read it, alone or with what viewers did after.
package exposures

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/schemas"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/patience"
)

// Producer writes exposures to a topic: idempotently, in order within a
// partition. The partition is that of the key, as every client of Kafka reckons
// it; entries without a key go anywhere. It is an [exposure.Producer].
type Producer struct {
	brokers   kafka.Brokers
	cl        *kgo.Client
	topic     string
	lookEvery time.Duration // while a call waits
	id        kadm.TopicID  // of the topic that the client writes to; zero: not known yet
}

// NewProducer connects. The topic must exist once something is written.
func NewProducer(brokers kafka.Brokers, topic string, log *slog.Logger) (*Producer, error) {
	if topic == "" {
		return nil, errors.New("kafka: topic of exposures: empty; name one")
	}
	cl, err := kafka.NewClient(brokers, log,
		kgo.RecordPartitioner(kgo.StickyKeyPartitioner(nil)),
		kgo.ProducerBatchMaxBytes(kafka.MaxTimelineBatchBytes),
	)
	if err != nil {
		return nil, err
	}
	return &Producer{brokers: brokers, cl: cl, topic: topic, lookEvery: 5 * time.Second}, nil
}

// exposurePartitions are those of a topic that is made here. Who wants others
// makes it before.
const exposurePartitions = 12

// OpenLog returns a log of exposures that is written to a topic, which is
// made if it is missing, and what closes both. It waits for nothing: while Kafka
// is away exposures wait in memory.
func OpenLog(brokers kafka.Brokers, topic string, log *slog.Logger) (*exposure.Log, func(), error) {
	producer, err := NewProducer(brokers, topic, log)
	if err != nil {
		return nil, nil, err
	}
	records, err := exposure.Open(exposure.Config{Producer: producer, Log: log})
	if err != nil {
		producer.Close()
		return nil, nil, err
	}
	ctx, stop := context.WithCancel(context.Background())
	made := make(chan struct{})
	go func() {
		defer close(made)
		tell := func(err error) { log.Warn("waiting for the topic of exposures", "topic", topic, "err", err) }
		if err := kafka.EnsureContentTopic(ctx, brokers, topic, exposurePartitions, tell); err != nil && ctx.Err() == nil {
			log.Error("the topic of exposures is not there; make it, and exposures that wait are written", "topic", topic, "err", err)
		}
	}()
	return records, func() {
		records.Close()
		stop()
		<-made
		producer.Close()
	}, nil
}

// Read takes the exposures of a topic from a time on, partition by
// partition in their order, up to where the topic ends when it is called. It
// returns how many entries are no exposures, and what was hidden; nil: nothing.
func Read(ctx context.Context, brokers kafka.Brokers, topic string, from millrace.Time, take func(*exposure.Record)) (others int, hidden *kafka.Hidden, err error) {
	s, err := kafka.OpenTopic(ctx, brokers, topic, from)
	if err != nil {
		return 0, nil, err
	}
	others, err = ReadSpan(ctx, s, take)
	return others, s.Hidden(), err
}

// ReadSpan takes the exposures of a span, and returns how many entries are
// none.
func ReadSpan(ctx context.Context, s *kafka.TopicSpan, take func(*exposure.Record)) (others int, err error) {
	err = s.Read(ctx, func(value []byte, closed error) error {
		if record, err := decodeExposure(value, time.Now()); closed == nil && err == nil {
			take(record)
		} else {
			others++
		}
		return nil
	})
	return others, err
}

// Reader is a topic of exposures that is followed, and how far it has been
// read.
type Reader struct {
	brokers kafka.Brokers
	topic   string
	log     *slog.Logger

	mu struct {
		sync.Mutex
		cl    *kgo.Client // nil: it is not followed
		from  millrace.Time
		next  map[int32]int64 // what is read next, of the partitions that had something
		id    kadm.TopicID    // zero: not known yet
		reach kafka.Reach     // of what committed reads get to
		again func()          // follows the topic that is now there
		fault error           // why less than all was read at last; nil: none
	}
}

// NewReader connects to nothing yet.
func NewReader(brokers kafka.Brokers, topic string, log *slog.Logger) *Reader {
	return &Reader{brokers: brokers, topic: topic, log: log}
}

// Follow takes the exposures from a time on, as they come, until ctx ends; that
// there are entries which are none is logged once. No
// outage of Kafka ends it, nor a topic that is not there yet, or is made anew.
func (l *Reader) Follow(ctx context.Context, from millrace.Time, take func(*exposure.Record)) error {
	for ctx.Err() == nil {
		if err := l.follow(ctx, from, take); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return ctx.Err()
}

// follow is Follow until the topic is made anew.
func (l *Reader) follow(ctx context.Context, from millrace.Time, take func(*exposure.Record)) error {
	ctx, again := context.WithCancel(ctx)
	defer again()
	asks, err := kafka.NewClient(l.brokers, l.log)
	if err != nil {
		return err
	}
	defer kafka.Close(asks)
	l.begin(asks, from, again)
	defer l.begin(nil, from, func() {})
	starts, begins := l.begins(ctx, asks, from)
	at := kafka.Since(begins)
	if begins <= 0 { // as it does where time is no matter
		at = kgo.NewOffset().AtStart()
	}
	cl, err := kafka.NewClient(l.brokers, l.log, append(kafka.Sparing(), kgo.KeepControlRecords(), kgo.ConsumeTopics(l.topic), kgo.ConsumeResetOffset(at))...)
	if err != nil {
		return err
	}
	defer kafka.Close(cl)
	l.begin(cl, from, again)
	steps := kafka.NewSteps(cl, l.topic, starts, func(ctx context.Context) (map[int32]int64, error) { return l.places(ctx, cl) })
	told, sound := "", true
	strange := func(why error) {
		if sound {
			sound = false
			l.log.Warn("entries that are no exposures are not counted", "topic", l.topic, "first", why)
		}
	}
	for ctx.Err() == nil {
		poll, cancel := context.WithTimeout(ctx, pollWithin)
		fetches := cl.PollFetches(poll)
		cancel()
		for r := range fetches.RecordsAll() {
			early := begins < from && millrace.TimeOf(r.Timestamp) < from
			if early || r.Attrs.IsControl() { // the end of a transaction
				continue
			}
			if record, err := decodeExposure(r.Value, time.Now()); err == nil {
				take(record)
			} else {
				strange(err)
			}
		}
		l.passed(fetches)
		over, err := steps.Over(ctx, fetches)
		for _, c := range over {
			strange(c)
		}
		l.steppedOver(over, err)
		if err != nil && ctx.Err() == nil {
			if err.Error() != told {
				told = err.Error()
				l.log.Warn("exposures are not read; trying again", "topic", l.topic, "err", err)
			}
			patience.Sleep(ctx, time.Second)
		}
	}
	return nil
}

// begins returns where and from when on the topic is read: from a time on, or from an
// earlier one where Kafka does not find its entries ([kafka.StartsAfter]). It waits for a
// Kafka that is away, not for a topic.
func (l *Reader) begins(ctx context.Context, asks *kgo.Client, from millrace.Time) (starts map[int32]int64, begins millrace.Time) {
	told := false
	for ctx.Err() == nil {
		limited, cancel := context.WithTimeout(ctx, patience.TryTimeout)
		starts, begins, err := kafka.StartsAfter(limited, kadm.NewClient(asks), l.topic, from)
		cancel()
		if err == nil {
			return starts, begins
		}
		if errors.Is(err, kerr.UnknownTopicOrPartition) {
			break
		}
		if !told && ctx.Err() == nil {
			told = true
			l.log.Warn("exposures are not read; trying again", "topic", l.topic, "err", err)
		}
		patience.Sleep(ctx, time.Second)
	}
	return nil, from
}

// pollWithin bounds how long it takes to see that nothing comes.
const pollWithin = 5 * time.Second

func (l *Reader) begin(cl *kgo.Client, from millrace.Time, again func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.cl, l.mu.from, l.mu.next, l.mu.id, l.mu.reach, l.mu.again, l.mu.fault = cl, from, map[int32]int64{}, kadm.TopicID{}, kafka.Reach{}, again, nil
}

func (l *Reader) passed(fetches kgo.Fetches) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fetches.EachRecord(func(r *kgo.Record) { l.mu.next[r.Partition] = r.Offset + 1 })
}

func (l *Reader) steppedOver(over []*kafka.Closed, fault error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.fault = fault
	for _, c := range over {
		l.mu.next[c.Partition] = max(l.mu.next[c.Partition], c.Next)
	}
}

// places returns what comes next in each partition.
func (l *Reader) places(ctx context.Context, cl *kgo.Client) (map[int32]int64, error) {
	l.mu.Lock()
	from := l.mu.from
	l.mu.Unlock()
	places, _, err := kafka.StartsAfter(ctx, kadm.NewClient(cl), l.topic, from)
	if err != nil {
		return nil, l.unknown(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	maps.Copy(places, l.mu.next)
	return places, nil
}

// recent is how old what is known of exposures may be where transactions, one after the
// other, hide the newest of them.
const recent = 10 * time.Second

// Whole asks where the topic ends, waits until all before it has been taken that can be
// read, and returns as of when that was all. The error says why it is not: what has not
// been taken when ctx ends, or is hidden, a [kafka.Hidden]. Of a topic that is another
// one than at the call before it is an [exposure.ErrAnew], once.
func (l *Reader) Whole(ctx context.Context) (time.Time, error) {
	var never time.Time
	l.mu.Lock()
	cl, from, id, again := l.mu.cl, l.mu.from, l.mu.id, l.mu.again
	l.mu.Unlock()
	if cl == nil {
		return never, errors.New("kafka: exposures are not followed")
	}
	adm := kadm.NewClient(cl)
	all, err := kafka.Ask(ctx, func() (kadm.TopicDetails, error) { return adm.ListTopics(ctx, l.topic) })
	if err == nil {
		err = all.Error()
	}
	switch now := all[l.topic].ID; {
	case err != nil:
		return never, l.unknown(err)
	case id != (kadm.TopicID{}) && id != now:
		again()
		return never, topicOf(l.topic, now).Anew()
	case id == (kadm.TopicID{}):
		l.mu.Lock()
		if l.mu.cl == cl {
			l.mu.id = now
		}
		l.mu.Unlock()
	}
	begins, _, err := kafka.StartsAfter(ctx, adm, l.topic, from)
	var ends kafka.Ends
	if err == nil {
		ends, err = kafka.ListEnds(ctx, adm, l.topic)
	}
	if err != nil {
		return never, l.unknown(err)
	}
	for {
		left, fault := l.left(begins, ends.Stable)
		if left == 0 {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.mu.cl != cl { // what was taken, and of which topic, is forgotten
				return never, errors.New("kafka: exposures are followed anew since")
			}
			return l.mu.reach.Look(ends, begins, recent)
		}
		if patience.Sleep(ctx, 10*time.Millisecond); ctx.Err() != nil {
			return never, errors.Join(fmt.Errorf("kafka: %d entries of %s are not read yet", left, l.topic), fault)
		}
	}
}

// Topic returns which topic is followed.
func (l *Reader) Topic() exposure.Topic {
	l.mu.Lock()
	defer l.mu.Unlock()
	return topicOf(l.topic, l.mu.id)
}

func topicOf(name string, id kadm.TopicID) exposure.Topic {
	t := exposure.Topic{Name: name}
	if id != (kadm.TopicID{}) {
		t.ID = id.String()
	}
	return t
}

func (l *Reader) unknown(err error) error {
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("kafka: there is no topic %s; brokers that write to it make it anew: %w", l.topic, err)
	}
	return fmt.Errorf("kafka: where %s ends is not known: %w", l.topic, err)
}

// left returns how many entries before the ends have not been taken, and why the
// last reading failed, if it did.
func (l *Reader) left(begins, ends map[int32]int64) (n int64, fault error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for p, end := range ends {
		next, met := l.mu.next[p]
		if !met {
			next = begins[p]
		}
		n += max(0, end-next)
	}
	return n, l.mu.fault
}

// maxAhead is how far the clock of a broker may be ahead of a reader's. Nobody was
// shown anything later than that: an entry that says so would be the newest answer
// for good.
const maxAhead = 5 * time.Minute

// decodeExposure returns the exposure that an entry is, if it was by now.
func decodeExposure(value []byte, now time.Time) (*exposure.Record, error) {
	framed, err := schemas.Unframe(value)
	if err != nil {
		return nil, err
	}
	r, err := exposure.Decode(framed.Fingerprint, framed.Body)
	if err == nil && r.Time > millrace.TimeOf(now.Add(maxAhead)) {
		return nil, fmt.Errorf("kafka: exposure %.100q is of a time that cannot be: %d milliseconds from 1970", r.ID, int64(r.Time))
	}
	return r, err
}

// Close drops what has not been written.
func (e *Producer) Close() { e.cl.Close() }

// Produce implements [exposure.Producer]. While Kafka is away it waits: an entry that was
// sent is sent again until its result is known, so that none is written twice. Entries that
// wait for a topic that was deleted fail once there is another topic of its name. If ctx ends
// before all results are known, the others are ctx's error; then the producer can only be
// closed.
func (e *Producer) Produce(ctx context.Context, entries []exposure.Entry) []error {
	if e.id == (kadm.TopicID{}) {
		e.look(ctx)
	}
	type result struct {
		i   int
		err error
	}
	told := make(chan result, len(entries)) // room for all: the client need not wait for a call that has ended
	for i, entry := range entries {
		r := &kgo.Record{Topic: e.topic, Value: entry.Value}
		if len(entry.Key) > 0 {
			r.Key = entry.Key
		}
		e.cl.Produce(ctx, r, func(_ *kgo.Record, err error) { told <- result{i, err} })
	}
	results := make([]error, len(entries))
	known := make([]bool, len(entries))
	failed := false
	late := time.NewTicker(e.lookEvery)
	defer late.Stop()
	for n := 0; n < len(entries); {
		select {
		case f := <-told:
			n++
			results[f.i], known[f.i] = e.failed(f.err), true
			failed = failed || f.err != nil
		case <-late.C:
			e.look(ctx)
		case <-ctx.Done():
			for i := range results {
				if !known[i] {
					results[i] = e.failed(ctx.Err())
				}
			}
			return results
		}
	}
	if failed {
		e.look(ctx)
	}
	return results
}

// lookWithin bounds a look at the topic.
const lookWithin = 5 * time.Second

// look lets go of a topic that is no longer there under its name: the client
// would wait for it for ever. One that was deleted is made again: what is written
// goes on to be evidence for whoever guards.
func (e *Producer) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	all, err := kadm.NewClient(e.cl).ListTopics(ctx, e.topic)
	d, ok := all[e.topic]
	if err == nil && ok && errors.Is(d.Err, kerr.UnknownTopicOrPartition) && e.id != (kadm.TopicID{}) {
		_ = kafka.EnsureContentTopic(ctx, e.brokers, e.topic, exposurePartitions, nil) // or the next look does
		return
	}
	if err != nil || !ok || d.Err != nil || d.ID == e.id {
		return
	}
	if e.id != (kadm.TopicID{}) {
		e.cl.PurgeTopicsFromProducing(e.topic)
	}
	e.id = d.ID
}

// failed names an error, and says whether trying again could help.
func (e *Producer) failed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge), errors.Is(err, kerr.InvalidRecord):
		return fmt.Errorf("kafka: produce to %s: %w: %w", e.topic, exposure.ErrRefused, err)
	}
	return fmt.Errorf("kafka: produce to %s: %w", e.topic, err)
}
