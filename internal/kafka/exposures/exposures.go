// Package exposures writes and reads the Kafka topic of exposures: records of what answers
// showed. Brokers write it. Guards of experiments and people read it, alone or together with
// outcomes, what viewers then did.
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
// partition. The partition follows from the key, as in every Kafka client; entries without
// a key go to any partition. It implements [exposure.Producer].
type Producer struct {
	brokers   kafka.Brokers
	cl        *kgo.Client
	topic     string
	lookEvery time.Duration // between looks at the topic while Produce waits
	id        kadm.TopicID  // of the topic that the client writes to; zero: not known yet
}

// NewProducer returns a producer, which connects when it first writes. Until the topic exists,
// writes wait.
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

// exposurePartitions is how many partitions the topic gets if it is made here. An operator who
// wants another number makes the topic before.
const exposurePartitions = 12

// OpenLog returns a log of exposures that is written to a topic, and a function that closes
// it. The topic is made if it is missing. OpenLog does not wait for Kafka: while it is away,
// exposures wait in memory.
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

// Read passes the exposures of a topic from a time on to take, in the order of each
// partition, up to the end of the topic at the time of the call. It returns how many entries
// are no exposures, and what open transactions hide; nil: nothing.
func Read(ctx context.Context, brokers kafka.Brokers, topic string, from millrace.Time, take func(*exposure.Record)) (others int, hidden *kafka.Hidden, err error) {
	s, err := kafka.OpenTopic(ctx, brokers, topic, from)
	if err != nil {
		return 0, nil, err
	}
	others, err = ReadSpan(ctx, s, take)
	return others, s.Hidden(), err
}

// ReadSpan passes the exposures of a span to take, and returns how many entries are no
// exposures.
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

// Reader follows a topic of exposures, and knows how far it has been read.
type Reader struct {
	brokers kafka.Brokers
	topic   string
	log     *slog.Logger

	mu struct {
		sync.Mutex
		cl    *kgo.Client // nil: the topic is not followed
		from  millrace.Time
		next  map[int32]int64 // the offset to read next, of the partitions that had something
		id    kadm.TopicID    // of the topic; zero: not known yet
		reach kafka.Reach     // up to when everything can be read
		again func()          // ends follow, so that Follow begins with the topic that is there now
		fault error           // why the last fetch did not read all; nil: it did
	}
}

// NewReader returns a reader. It connects to nothing before Follow.
func NewReader(brokers kafka.Brokers, topic string, log *slog.Logger) *Reader {
	return &Reader{brokers: brokers, topic: topic, log: log}
}

// Follow passes the exposures from a time on to take, as they come, until ctx ends. Entries
// that are no exposures are left out, and logged once. Follow goes on through an outage of
// Kafka, and waits for a topic that does not exist yet or is made anew. The error is that of
// ctx, or says that the configuration of the client is wrong.
func (l *Reader) Follow(ctx context.Context, from millrace.Time, take func(*exposure.Record)) error {
	for ctx.Err() == nil {
		if err := l.follow(ctx, from, take); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return ctx.Err()
}

// follow is Follow until the topic is made anew, when it returns nil.
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
	if begins <= 0 { // from the start, without a look-up by time
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
			if early || r.Attrs.IsControl() { // a control record marks the end of a transaction
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

// begins returns the offsets from which the topic is read, by partition, and the time that
// they are of: from, or an earlier time if Kafka cannot find the entries of from
// ([kafka.StartsAfter]). It waits while Kafka is away. If there is no topic, starts is nil.
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

// pollWithin is the timeout of a poll: after it, follow looks why nothing comes.
const pollWithin = 5 * time.Second

// begin sets the client that follows (nil: none), and forgets what was read before.
func (l *Reader) begin(cl *kgo.Client, from millrace.Time, again func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.cl, l.mu.from, l.mu.next, l.mu.id, l.mu.reach, l.mu.again, l.mu.fault = cl, from, map[int32]int64{}, kadm.TopicID{}, kafka.Reach{}, again, nil
}

// passed notes the records that have been taken.
func (l *Reader) passed(fetches kgo.Fetches) {
	l.mu.Lock()
	defer l.mu.Unlock()
	fetches.EachRecord(func(r *kgo.Record) { l.mu.next[r.Partition] = r.Offset + 1 })
}

// steppedOver notes batches that cannot be read and were passed over, and why the last fetch
// failed.
func (l *Reader) steppedOver(over []*kafka.Closed, fault error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.mu.fault = fault
	for _, c := range over {
		l.mu.next[c.Partition] = max(l.mu.next[c.Partition], c.Next)
	}
}

// places returns the offset to read next in each partition.
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

// recent is how old the newest readable exposures may be while open transactions, one after
// the other, hide newer ones. If they are older, Whole fails.
const recent = 10 * time.Second

// Whole asks where the topic ends, waits until Follow has taken all readable entries before
// that end, and returns the time up to which these are all entries. The error says how many
// have not been taken when ctx ends. It is a [kafka.Hidden] if open transactions hide
// entries, and once [exposure.ErrAnew] if the topic is another one than at the call before.
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
			if l.mu.cl != cl { // begin has been called meanwhile
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

// unknown adds to an error that it is not known where the topic ends.
func (l *Reader) unknown(err error) error {
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("kafka: there is no topic %s; brokers that write to it make it anew: %w", l.topic, err)
	}
	return fmt.Errorf("kafka: where %s ends is not known: %w", l.topic, err)
}

// left returns how many entries between begins and ends have not been taken, and why the last
// fetch failed, or nil.
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

// maxAhead is how far a broker's clock may be ahead of a reader's. An entry with a later time
// is wrong, and is refused: it would count as the newest answer from then on.
const maxAhead = 5 * time.Minute

// decodeExposure decodes an entry. The error says that it is no exposure, or of a time in the
// future.
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

// Close closes the producer. Entries that have not been written are dropped.
func (e *Producer) Close() { e.cl.Close() }

// Produce implements [exposure.Producer]. It waits while Kafka is away: the client sends an
// entry again until its result is known, and Kafka writes it once. If the topic is deleted,
// entries wait, and fail when there is a new topic of that name. If ctx ends before all
// results are known, the other results are ctx's error, and the producer can only be closed.
func (e *Producer) Produce(ctx context.Context, entries []exposure.Entry) []error {
	if e.id == (kadm.TopicID{}) {
		e.look(ctx)
	}
	type result struct {
		i   int
		err error
	}
	told := make(chan result, len(entries)) // room for all, so that the client never blocks after Produce has returned
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

// lookWithin is the timeout of look.
const lookWithin = 5 * time.Second

// look looks whether the topic is still the one that the client writes to. If another topic
// has the name, the client drops its entries for the old one, for which it would wait for
// ever. If the topic was deleted, it is made again, so that new exposures reach guards.
func (e *Producer) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	all, err := kadm.NewClient(e.cl).ListTopics(ctx, e.topic)
	d, ok := all[e.topic]
	if err == nil && ok && errors.Is(d.Err, kerr.UnknownTopicOrPartition) && e.id != (kadm.TopicID{}) {
		_ = kafka.EnsureContentTopic(ctx, e.brokers, e.topic, exposurePartitions, nil) // if this fails, the next look tries again
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

// failed adds the topic to an error, and [exposure.ErrRefused] if trying again cannot help.
func (e *Producer) failed(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge), errors.Is(err, kerr.InvalidRecord):
		return fmt.Errorf("kafka: produce to %s: %w: %w", e.topic, exposure.ErrRefused, err)
	}
	return fmt.Errorf("kafka: produce to %s: %w", e.topic, err)
}
