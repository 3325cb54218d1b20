// Package follow reads a topic of one partition, with small records, from its
// beginning, and goes on to read what is added until it is closed.
package follow

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/internal/kafka/patience"

	"github.com/millrace/millrace/internal/kafka"
)

// confirmEvery is how often a Follower asks Kafka whether it has read all, and how long it
// waits each time until it has.
const confirmEvery = 2 * time.Second

// Config says which topic is followed, and what is called for its records.
type Config struct {
	Brokers kafka.Brokers
	Topic   string
	Log     *slog.Logger // nil: silent
	// Begin is called each time before the topic is read from its beginning: at
	// first, and when it was created anew or has lost the place that was reached.
	Begin func()
	// Take is called for every record, in order. An error means "not now": Take is
	// called with the same record again after a pause, and with no later one before.
	Take func(*kgo.Record) error
}

// Follower reads a topic of one partition from its beginning until it is closed.
// Nothing else ends it. While Kafka is away or the topic is missing it waits, and
// says so by Fault and in the log. A topic that was created again it reads from
// its beginning.
//
// One goroutine reads. Another asks Kafka for the topic's id and end, and compares
// them with what was read. Without that, a connection that is silent because it is
// broken could not be told from a topic without new records.
type Follower struct {
	cfg Config

	cl   *kgo.Client // for questions; each reader has a client of its own
	adm  *kadm.Client
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	done sync.WaitGroup
	mu   struct {
		sync.Mutex
		id    kadm.TopicID
		next  int64              // offset of the topic id to read next
		moved chan struct{}      // closed and replaced when next changes
		again context.CancelFunc // ends the present reader, for another to begin
		read  bool               // see Read
		fault error              // see Fault
		held  error              // see Held
		told  time.Time          // when a fault was logged last; zero: not since all was well
	}
}

// errUnread is the fault of a Follower that has just begun.
var errUnread = errors.New("it has not been read to its end yet")

// Open has f, a zero Follower that the caller's type may embed, begin to follow. It does
// not wait for Kafka. It fails if the connection is configured wrongly.
func Open(f *Follower, cfg Config) error {
	f.cfg = cfg
	var err error
	if f.cl, err = kafka.NewClient(f.cfg.Brokers, nil); err != nil {
		return err
	}
	f.adm = kadm.NewClient(f.cl)
	f.ctx, f.stop = context.WithCancel(context.Background())
	f.mu.moved = make(chan struct{})
	f.mu.again = func() {}
	f.mu.fault = fmt.Errorf("kafka: topic %s: %w", f.cfg.Topic, errUnread)
	f.done.Go(f.follow)
	f.done.Go(f.confirm)
	return nil
}

// Close stops following.
func (f *Follower) Close() {
	f.stop()
	f.done.Wait()
	kafka.Close(f.cl)
}

// Read reports whether the topic has been read to its end once since it was
// opened.
func (f *Follower) Read() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.read
}

// Fault returns what the Follower waits for. It is nil if Kafka confirmed a few seconds
// ago that everything has been read.
func (f *Follower) Fault() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.fault
}

// Held returns the error of Take for the record that is to be taken next. Until Take
// succeeds, this record and all later ones are not known here. It is nil if no record
// waits.
func (f *Follower) Held() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.held
}

// Moved returns a channel that is closed once more of the topic has been read
// than now.
func (f *Follower) Moved() <-chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.moved
}

// Refresh returns nil once everything has been taken that was in the topic when Refresh
// was called. It fails when ctx ends before that, or with [kafka.ErrClosed] when the
// Follower is closed.
func (f *Follower) Refresh(ctx context.Context) error {
	var id kadm.TopicID
	var end int64
	asked := false
	for pause := patience.First; ; pause = min(2*pause, patience.Max) {
		now, e, _, err := f.ask(ctx)
		if err == nil && (!asked || now != id) {
			id, end, asked = now, e, true
		}
		if asked && f.reached(ctx, id, end) {
			return nil
		}
		if !asked {
			patience.Sleep(ctx, pause)
		}
		switch next, fault := f.position(); {
		case f.ctx.Err() != nil:
			return kafka.ErrClosed
		case ctx.Err() != nil && !asked:
			return fmt.Errorf("%w (%w)", err, ctx.Err())
		case ctx.Err() != nil:
			return fmt.Errorf("kafka: read %s at %d of %d: %w", f.cfg.Topic, next, end, errors.Join(ctx.Err(), fault))
		}
	}
}

// position returns the offset that is read next, and what the Follower waits for.
func (f *Follower) position() (next int64, fault error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.mu.next, f.mu.fault
}

// reached waits until the topic with this id has been read up to end, and reports whether
// it has. It gives up after confirmEvery. If the present reader reads a topic with another
// id, it has another reader begin.
func (f *Follower) reached(ctx context.Context, id kadm.TopicID, end int64) bool {
	enough := time.NewTimer(confirmEvery)
	defer enough.Stop()
	for {
		f.mu.Lock()
		reached, moved := f.mu.id == id && f.mu.next >= end, f.mu.moved
		if f.mu.id != id {
			f.mu.again()
		}
		f.mu.Unlock()
		if reached {
			return true
		}
		select {
		case <-moved:
		case <-enough.C:
			return false
		case <-ctx.Done():
			return false
		case <-f.ctx.Done():
			return false
		}
	}
}

// ask returns the topic's id, the offset at which it ends, and what an open transaction
// hides from readers before that; nil if nothing is hidden.
func (f *Follower) ask(ctx context.Context) (kadm.TopicID, int64, *kafka.Hidden, error) {
	ctx, cancel := context.WithTimeout(ctx, patience.TryTimeout)
	defer cancel()
	id, err := topicID(ctx, f.cl, f.cfg.Topic)
	if err != nil {
		return id, 0, nil, err
	}
	ends, err := kafka.ListEnds(ctx, f.adm, f.cfg.Topic)
	end, ok := ends.All[0]
	if err == nil && !ok {
		err = kerr.UnknownTopicOrPartition
	}
	if err != nil {
		return id, 0, nil, fmt.Errorf("kafka: end of topic %s: %w", f.cfg.Topic, err)
	}
	return id, end, ends.Hidden(nil), nil
}

// topicID asks Kafka for the id that a topic has now.
func topicID(ctx context.Context, cl *kgo.Client, topic string) (kadm.TopicID, error) {
	_, ids, err := kafka.TopicsNow(ctx, cl, topic)
	id, ok := ids[topic]
	if err == nil && !ok {
		err = kerr.UnknownTopicOrPartition
	}
	if err != nil {
		return kadm.TopicID{}, fmt.Errorf("kafka: describe topic %s: %w", topic, err)
	}
	return kadm.TopicID(id), nil
}

// confirm asks Kafka again and again whether everything has been read, and sets or clears
// the fault.
func (f *Follower) confirm() {
	for f.ctx.Err() == nil {
		id, end, hidden, err := f.ask(f.ctx)
		if err != nil {
			f.failed(err)
			patience.Sleep(f.ctx, min(confirmEvery, patience.Max))
			continue
		}
		if f.reached(f.ctx, id, end) {
			f.mu.Lock()
			f.mu.read, f.mu.fault, f.mu.told = true, nil, time.Time{}
			f.mu.Unlock()
			patience.Sleep(f.ctx, confirmEvery)
		} else if hidden != nil {
			f.failed(hidden)
		}
	}
}

// failed notes an error as the fault, and logs it every [patience.TellEvery] at most.
func (f *Follower) failed(err error) {
	if f.ctx.Err() != nil {
		return
	}
	f.mu.Lock()
	f.mu.fault = err
	tell := time.Since(f.mu.told) > patience.TellEvery
	if tell {
		f.mu.told = time.Now()
	}
	f.mu.Unlock()
	if tell {
		f.warn("cannot follow a topic; trying again", "topic", f.cfg.Topic, "error", err)
	}
}

// follow runs one reader after the other until the Follower is closed.
func (f *Follower) follow() {
	lostPlace := false
	for pause := patience.First; f.ctx.Err() == nil; pause = min(2*pause, patience.Max) {
		ctx, again := context.WithCancel(f.ctx)
		began := time.Now()
		err := f.reader(ctx, again, lostPlace)
		again()
		if lostPlace = kafka.Lost(err); err != nil {
			f.failed(err)
		}
		if time.Since(began) > patience.TellEvery {
			pause = patience.First
		}
		patience.Sleep(f.ctx, pause)
	}
}

// reader reads with a client of its own until something fails or ctx ends; then it returns
// nil. It begins where the last reader ended, unless fromStart or the topic is another one.
// again must end ctx.
func (f *Follower) reader(ctx context.Context, again context.CancelFunc, fromStart bool) error {
	limited, cancel := context.WithTimeout(ctx, patience.TryTimeout)
	id, err := topicID(limited, f.cl, f.cfg.Topic)
	cancel()
	if err != nil {
		return err
	}
	at := kgo.NewOffset().AtStart()
	if next, ok := f.start(id, again, fromStart); ok {
		at = kgo.NewOffset().At(next)
	}
	standing := kafka.NewStanding()
	cl, err := kafka.NewClient(f.cfg.Brokers, f.cfg.Log, kgo.KeepControlRecords(), kgo.WithHooks(standing),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{f.cfg.Topic: {0: at}}))
	if err != nil {
		return err
	}
	defer kafka.Close(cl)
	looks := kafka.NewLooks(f.cl)
	for {
		poll, cancel := context.WithTimeout(ctx, kafka.NudgeAfter)
		fetches := cl.PollFetches(poll)
		cancel()
		if ctx.Err() != nil {
			return nil
		}
		over, err := kafka.StepOver(cl, fetches)
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("kafka: read topic %s: %w", f.cfg.Topic, err)
		}
		passed, err := f.passed(ctx, looks, fetches)
		if err != nil {
			return err
		}
		for r := range fetches.RecordsAll() {
			if !f.deliver(ctx, r) {
				return nil
			}
		}
		if len(standing.Polled(fetches)) > 0 {
			at, _ := f.position()
			if c := looks.At(ctx, f.cfg.Topic, 0, at); c != nil {
				if !c.Written() {
					return c
				}
				kafka.StepBehind(cl, c)
				over = append(over, c)
			}
		}
		for _, c := range append(passed, over...) {
			f.warn("what a topic has is passed over", "topic", f.cfg.Topic, "why", c)
		}
		for _, c := range over {
			f.advance(id, c.Next)
		}
	}
}

// passed returns the batches that cannot be opened and that franz-go has skipped before the
// records of fetches. Every reader of the topic skips them, so the records behind them are
// taken all the same.
func (f *Follower) passed(ctx context.Context, looks *kafka.Looks, fetches kgo.Fetches) (all []*kafka.Closed, err error) {
	next, _ := f.position()
	for r := range fetches.RecordsAll() {
		for next < r.Offset {
			c, err := looks.Between(ctx, f.cfg.Topic, 0, next, r.Offset)
			if err != nil {
				return nil, fmt.Errorf("kafka: look at what topic %s has from offset %d to %d: %w", f.cfg.Topic, next, r.Offset-1, err)
			}
			if c == nil {
				break
			}
			all = append(all, c)
			next = c.Next
		}
		next = r.Offset + 1
	}
	return all, nil
}

// start notes that a reader of the topic with this id begins, and how it is ended. ok says
// that it begins at next, where the last one ended; else it begins at the beginning, and
// start has called Begin.
func (f *Follower) start(id kadm.TopicID, again context.CancelFunc, fromStart bool) (next int64, ok bool) {
	f.mu.Lock()
	f.mu.again = again
	next, ok = f.mu.next, id == f.mu.id && f.mu.next > 0 && !fromStart
	f.mu.Unlock()
	if !ok {
		f.cfg.Begin()
		f.advance(id, 0)
	}
	return next, ok
}

// deliver calls Take for a record until it succeeds. It returns false if ctx ends first.
func (f *Follower) deliver(ctx context.Context, r *kgo.Record) bool {
	if !r.Attrs.IsControl() {
		for pause := patience.First; ; pause = min(2*pause, patience.Max) {
			err := f.cfg.Take(r)
			f.hold(err)
			if err == nil {
				break
			}
			f.failed(fmt.Errorf("kafka: topic %s at %d: %w", f.cfg.Topic, r.Offset, err))
			if patience.Sleep(ctx, pause); ctx.Err() != nil {
				f.hold(nil) // the next reader delivers the record again, if it is still there
				return false
			}
		}
	}
	f.mu.Lock()
	id := f.mu.id
	f.mu.Unlock()
	f.advance(id, r.Offset+1)
	return true
}

// hold sets what Held returns.
func (f *Follower) hold(why error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.held = why
}

// advance notes up to which offset a topic has been read, and wakes those who wait for
// Moved.
func (f *Follower) advance(id kadm.TopicID, next int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.id, f.mu.next = id, next
	close(f.mu.moved)
	f.mu.moved = make(chan struct{})
}

func (f *Follower) warn(msg string, args ...any) {
	if f.cfg.Log != nil {
		f.cfg.Log.Warn("kafka: "+msg, args...)
	}
}

// Admin returns an administrator of the Kafka that is followed.
func Admin(f *Follower) *kadm.Client { return f.adm }

// Put writes one record, and returns once it is in the log. It uses a new client, since an
// older one may still know a topic that has been created again since.
func Put(ctx context.Context, brokers kafka.Brokers, topic, key string, value []byte) error {
	cl, err := kafka.NewClient(brokers, nil, kgo.ProducerBatchMaxBytes(kafka.MaxTimelineBatchBytes), kafka.Cancellable())
	if err != nil {
		return err
	}
	defer cl.Close()
	r := &kgo.Record{Topic: topic, Key: []byte(key), Value: value}
	if err := cl.ProduceSync(ctx, r).FirstErr(); err != nil {
		return fmt.Errorf("kafka: write to topic %s: %w", topic, err)
	}
	return nil
}
