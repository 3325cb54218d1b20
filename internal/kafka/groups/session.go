// Package groups is what groups of partitioners do in Kafka: they consume and
// produce in transactions (Session), tell how far they are (Heartbeat), and hold
// still for a moment of the whole log (TakeCut); and what operators do to them.
package groups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/progress"
)

// maxTransactionRecords is how many records are kept until the commit; beyond
// that some are sent before.
const maxTransactionRecords = 200_000

// sessionTimeout is how long a silent group member keeps its partitions. It is
// longer than TransactionTimeout, so that a member outlives its transactions.
const sessionTimeout = 12 * time.Second

// heartbeat is how often a member hears of its group, at least.
const heartbeat = sessionTimeout / 6

// ErrFenced says that another process joined the group under this instance
// name; this one must not take it back.
var ErrFenced = errors.New("kafka: another process took over this instance name")

// ErrMoved says that a topic is no longer the one that the session began with:
// open another session, which judges what is there now.
var ErrMoved = errors.New("kafka: a topic was deleted, and perhaps created again")

// ErrRebalanced says that a transaction was given up because partitions moved
// within the group.
var ErrRebalanced = errors.New("kafka: transaction aborted: the group rebalanced")

// Input is a record of a group's topics.
type Input struct {
	kafka.Source
	Time    millrace.Time // the log's timestamp of it; negative: it has none
	Key     []byte
	Value   []byte // nil is a null value
	Headers []kafka.Header
}

// SessionConfig says what to consume, and as whom.
type SessionConfig struct {
	Brokers kafka.Brokers
	Group   string
	// Instance names this member within its group, for good: a process that
	// starts again under its name takes over its partitions and ends its open
	// transaction at once. Two living processes must not share one.
	Instance    string
	Address     string // of this process, for others that are given its name; empty: nobody is told
	Topics      []string
	Outputs     []string     // the topics that are produced to
	DeadLetters string       // the one of them that may hold larger records
	Log         *slog.Logger // nil = silent

	// Logs are those of Outputs that must stay what they are: which they are is
	// noted with each offset, and a group that has written to others is refused
	// with an *OtherLog.
	Logs []string
	// Known returns which log a topic was when the group read it last, for
	// offsets that Kafka has dropped; nil = nobody knows.
	Known func(topic string) kafka.TopicID
}

// Session consumes topics in a group and produces in transactions that commit
// what was consumed: exactly once. It is for one goroutine:
//
//	Poll... Begin, Produce..., Commit
//
// After any error of Begin or Commit the session is of no further use: whether
// the transaction is in the log is not known here, and only a new session
// under the same instance name finds out.
type Session struct {
	s               *kgo.GroupTransactSession
	first           *kgo.FirstErrPromise
	cfg             SessionConfig
	group, instance string
	word            *groupWord
	ask             *kgo.Client  // asks which logs are there
	looks           *kafka.Looks // of the client that asks
	standing        *kafka.Standing
	halted          map[topicPartition]millrace.Offset // where a batch stops a partition that is broken in the log
	polled          bool                               // something since the last Commit
	began           time.Time                          // the transaction, and all its records
	next            map[topicPartition]millrace.Offset // behind what was polled
	waiting         map[topicPartition]int64           // how many offsets were behind that, as it was fetched
}

// groupWord is what the group has told its member.
type groupWord struct {
	fenced atomic.Bool        // of a replacement
	joined chan struct{}      // has a value once the member has a place
	failed chan error         // holds the first failure to get one
	stop   context.CancelFunc // ends the client's own work
	mu     struct {
		sync.Mutex
		assigned map[topicPartition]bool
		member   *kgo.Client              // once it has a place
		logs     logs                     // that the session began with
		found    []*Unreadable            // of other logs than the offsets, to be told by Poll
		starts   map[topicPartition]int64 // where partitions are read from that were assigned since the last Poll; negative: from their beginning
		wake     context.CancelFunc       // ends the poll under way
	}
}

// OnGroupManageError implements kgo.HookGroupManageError. A replaced member
// must stop before it joins again, which would take the name back.
func (w *groupWord) OnGroupManageError(err error) {
	if errors.Is(err, kerr.FencedInstanceID) {
		w.fenced.Store(true)
		w.stop()
	}
	select {
	case w.failed <- err:
	default:
	}
}

func (w *groupWord) onAssigned(_ context.Context, cl *kgo.Client, all map[string][]int32) {
	w.mark(all, true)
	w.mu.Lock()
	w.mu.member = cl
	w.mu.Unlock()
	select {
	case w.joined <- struct{}{}:
	default:
	}
}

func (w *groupWord) onRevoked(_ context.Context, _ *kgo.Client, all map[string][]int32) {
	w.mark(all, false)
}

func (w *groupWord) mark(all map[string][]int32, assigned bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for topic, partitions := range all {
		for _, p := range partitions {
			if assigned {
				w.mu.assigned[topicPartition{topic, p}] = true
			} else {
				delete(w.mu.assigned, topicPartition{topic, p})
			}
		}
	}
}

// wait returns when the member has its place in the group.
func (w *groupWord) wait(ctx context.Context) error {
	select {
	case <-w.joined:
		return nil
	case err := <-w.failed:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// OpenSession connects and joins the group. It is refused with an *OtherLog
// where the outputs are not those that the group has written to.
func OpenSession(ctx context.Context, cfg SessionConfig) (*Session, error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	word := &groupWord{joined: make(chan struct{}, 1), failed: make(chan error, 1), stop: stop}
	word.mu.assigned, word.mu.starts = map[topicPartition]bool{}, map[topicPartition]int64{}
	word.mu.wake = func() {}
	s := &Session{cfg: cfg, group: cfg.Group, instance: cfg.Instance, word: word,
		standing: kafka.NewStanding(), halted: map[topicPartition]millrace.Offset{},
		next: map[topicPartition]millrace.Offset{}, waiting: map[topicPartition]int64{}}
	if err := s.open(ctx, life); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Session) open(ctx, life context.Context) (err error) {
	if s.ask, err = kafka.NewClient(s.cfg.Brokers, nil); err != nil {
		return err
	}
	s.looks = kafka.NewLooks(s.ask)
	// Before anything else: who may not write has no place in the group, which
	// is then empty for the operator's word.
	if err := s.begin(ctx); err != nil {
		return err
	}
	opts, err := s.options(life)
	if err != nil {
		return err
	}
	if s.s, err = kgo.NewGroupTransactSession(opts...); err != nil {
		return fmt.Errorf("kafka: %w", err)
	}
	// First the place in the group, then the transactional id: a living
	// predecessor whose transaction fails must find its place taken, or it
	// takes it back (see failed).
	if err := s.word.wait(ctx); err != nil {
		return s.failed("join", err)
	}
	// Fetching committed offsets waits for the transactions they are part of,
	// so a predecessor's must be ended first, not when something is produced.
	if err := s.succeed(ctx, s.cfg); err != nil {
		return s.failed("transactional id", err)
	}
	return s.begin(ctx) // the predecessor may have written to others to its end
}

func (s *Session) options(life context.Context) ([]kgo.Opt, error) {
	cfg, word := s.cfg, s.word
	return kafka.Options(cfg.Brokers, cfg.Log,
		kgo.WithContext(life),
		kgo.WithHooks(word, s.standing),
		kgo.OnPartitionsAssigned(word.onAssigned),
		kgo.OnPartitionsRevoked(word.onRevoked),
		kgo.OnPartitionsLost(word.onRevoked),
		kgo.AdjustFetchOffsetsFn(s.judgeInputs),
		kgo.ConsumerGroup(cfg.Group),
		kgo.InstanceID(cfg.Instance),
		kafka.ClientAt(cfg.Address),
		kgo.TransactionalID(cfg.Group+"/"+cfg.Instance),
		kgo.TransactionTimeout(kafka.TransactionTimeout),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeat),
		kgo.ConsumeTopics(cfg.Topics...),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), // where nothing was committed yet
		kgo.KeepControlRecords(),                          // so that the group gets past what is not delivered
		// What a transaction produces is sent when it commits, a batch for each
		// partition: batches of few records, and compressed each alone, are what
		// costs Kafka and its readers most.
		kgo.ProducerLinger(kafka.TransactionTimeout),
		kgo.MaxBufferedRecords(maxTransactionRecords),
		kgo.MaxBufferedBytes(2*kafka.MaxBatchBytes),
		kafka.BatchBytes(cfg.DeadLetters),
	)
}

// Close leaves the transaction and the group as they are.
func (s *Session) Close() {
	if s.s != nil {
		s.s.Close()
	}
	s.word.stop()
	if s.ask != nil {
		s.ask.Close()
	}
}

// Poll waits for records, at most most, for a moment: there may be none. faults are partitions' and the group's
// troubles, to be told to people: reading goes on around them. err is ctx's
// end, ErrClosed, ErrFenced or ErrMoved. What was polled is committed by the
// next Commit.
func (s *Session) Poll(ctx context.Context, most int) (in []Input, faults []error, err error) {
	poll, cancel := context.WithTimeout(ctx, kafka.NudgeAfter)
	defer cancel()
	if faults := s.found(cancel); len(faults) > 0 {
		return nil, faults, nil
	}
	fetches := s.s.PollRecords(poll, most)
	if fetches.IsClientClosed() {
		if s.word.fenced.Load() {
			return nil, nil, fmt.Errorf("%w: %w", ErrFenced, kerr.FencedInstanceID)
		}
		return nil, nil, kafka.ErrClosed
	}
	fetches.EachError(func(topic string, p int32, e error) {
		var lost *kgo.ErrGroupSession
		switch {
		case poll.Err() != nil && errors.Is(e, poll.Err()):
		case errors.Is(e, kerr.FencedInstanceID):
			err = fmt.Errorf("%w: %w", ErrFenced, e)
		case errors.Is(e, kerr.UnknownTopicID):
			err = fmt.Errorf("%w: %s: %w", ErrMoved, topic, e)
		case errors.As(e, &lost):
			// A Kafka that was away may have left the last transaction of this
			// session hanging, and with it the group's offsets: only a new
			// session ends that (hanging.go).
			err = fmt.Errorf("kafka: the place in the group is lost: %w", e)
		default:
			faults = append(faults, s.fault(topic, p, e))
		}
	})
	if err != nil {
		return nil, faults, err
	}
	broken, err := s.lookAt(ctx, fetches)
	if faults = append(faults, broken...); err != nil {
		return nil, faults, err
	}
	if n := fetches.NumRecords(); n > 0 {
		in = make([]Input, 0, n)
		fetches.EachPartition(func(p kgo.FetchTopicPartition) { in = s.take(in, p) })
		return in, faults, nil
	}
	s.s.Client().ResumeFetchPartitions(nil) // see NudgeAfter: a group ends sessions as it deals partitions out
	return nil, faults, ctx.Err()
}

// take adds what a poll brought of a partition, but nothing from behind a place where the
// partition is halted.
func (s *Session) take(in []Input, p kgo.FetchTopicPartition) []Input {
	at := topicPartition{p.Topic, p.Partition}
	stop, halted := s.halted[at]
	for _, r := range p.Records {
		next := millrace.Offset(r.Offset) + 1
		if halted && next > stop {
			break
		}
		if !r.Attrs.IsControl() {
			in = append(in, input(r))
		}
		s.next[at], s.waiting[at], s.polled = next, max(0, p.HighWatermark-int64(next)), true
	}
	if halted {
		delete(s.waiting, at)
	}
	return in
}

func (s *Session) fault(topic string, p int32, err error) error {
	if u := unreadable(topic, p, err); u != nil {
		u.from = s.next[topicPartition{topic, p}]
		return u
	}
	return fmt.Errorf("kafka: read %s/%d: %w", topic, p, err)
}

// Assigned returns how many partitions the group has given to this member. Like
// Has, it may be called at any time.
func (s *Session) Assigned() int {
	s.word.mu.Lock()
	defer s.word.mu.Unlock()
	return len(s.word.mu.assigned)
}

// Has reports whether the group has given a partition to this member.
func (s *Session) Has(topic string, partition int32) bool {
	s.word.mu.Lock()
	defer s.word.mu.Unlock()
	return s.word.mu.assigned[topicPartition{topic, partition}]
}

// GoOn has the group go on behind places where it is stuck, outside of any
// transaction. The session goes on where it was: open another one.
func (s *Session) GoOn(ctx context.Context, places ...progress.Stuck) error {
	to := map[string]map[int32]kgo.EpochOffset{}
	for _, at := range places {
		if to[at.Topic] == nil {
			to[at.Topic] = map[int32]kgo.EpochOffset{}
		}
		to[at.Topic][at.Partition] = kgo.EpochOffset{Epoch: -1, Offset: int64(at.Next)}
	}
	ctx = kgo.PreCommitFnContext(ctx, func(req *kmsg.OffsetCommitRequest) error {
		for i := range req.Topics {
			for p := range req.Topics[i].Partitions {
				req.Topics[i].Partitions[p].Metadata = s.origin(req.Topics[i].Topic)
			}
		}
		return nil
	})
	var failed error
	s.s.Client().CommitOffsetsSync(ctx, to, func(_ *kgo.Client, _ *kmsg.OffsetCommitRequest, resp *kmsg.OffsetCommitResponse, err error) {
		if failed = err; err != nil {
			return
		}
		for _, t := range resp.Topics {
			for _, p := range t.Partitions {
				failed = errors.Join(failed, kerr.ErrorForCode(p.ErrorCode))
			}
		}
	})
	return s.failed("commit past a place", failed)
}

// Waiting returns about how many records have come in that were not polled yet.
func (s *Session) Waiting() (n int64) {
	for at, behind := range s.waiting {
		if s.Has(at.topic, at.partition) {
			n += behind
		}
	}
	return n
}

// Uncommitted reports whether the group has something to commit: also markers
// of transactions, which Poll does not return.
func (s *Session) Uncommitted() bool { return s.polled }

func input(r *kgo.Record) Input {
	return Input{
		Source:  kafka.Source{Topic: r.Topic, Partition: r.Partition, Offset: millrace.Offset(r.Offset)},
		Time:    millrace.TimeOf(r.Timestamp),
		Key:     r.Key,
		Value:   r.Value,
		Headers: r.Headers,
	}
}

// Begin begins a transaction. All its records have the time of its begin, which
// does not go back from one transaction to the next: records up to a time are
// whole transactions.
func (s *Session) Begin() error {
	s.first = new(kgo.FirstErrPromise)
	if now := time.Now(); now.UnixMilli() > s.began.UnixMilli() {
		s.began = now
	}
	return s.failed("begin", s.s.Begin())
}

// Produce hands a record over to the transaction, waiting while the buffers
// are full. A failure is told by Commit.
func (s *Session) Produce(ctx context.Context, o kafka.Outgoing) {
	r := o.Record()
	r.Timestamp = s.began
	s.s.Produce(ctx, r, s.first.Promise())
}

// Commit waits for what was produced and commits it together with the offsets
// of everything polled. When it returns an error the transaction may or may
// not have happened.
func (s *Session) Commit(ctx context.Context) error {
	if err := s.s.Client().Flush(ctx); err != nil {
		return s.failed("flush", err)
	}
	if err := s.first.Err(); err != nil {
		return s.failed("produce", err)
	}
	// All that was polled and produced was so before this question: if the
	// logs are what they were then, it is in them.
	if err := s.Same(ctx); err != nil {
		return s.failed("commit", err)
	}
	ctx = kgo.PreTxnCommitFnContext(ctx, func(req *kmsg.TxnOffsetCommitRequest) error {
		for i := range req.Topics {
			for p := range req.Topics[i].Partitions {
				one := &req.Topics[i].Partitions[p]
				one.Metadata = s.origin(req.Topics[i].Topic)
				if stop, halted := s.halted[topicPartition{req.Topics[i].Topic, one.Partition}]; halted {
					one.Offset = min(one.Offset, int64(stop)) // the client may have read on behind it
				}
			}
		}
		return nil
	})
	committed, err := s.s.End(ctx, kgo.TryCommit)
	if err == nil && !committed {
		err = ErrRebalanced
	}
	s.polled = s.polled && err != nil
	return s.failed("commit", err)
}

// failed names an error, and asks the group whether it comes from another
// process under our instance name. A new session would take the name back from
// it, and the two would fence each other in turn.
func (s *Session) failed(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.FencedInstanceID) || s.replaced():
		return fmt.Errorf("%w: %s: %w", ErrFenced, op, err)
	}
	return fmt.Errorf("kafka: %s: %w", op, err)
}

// replaced reports whether the group knows another member under our name.
func (s *Session) replaced() bool {
	if s.word.fenced.Load() {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), sessionTimeout)
	defer cancel()
	member, generation := s.s.Client().GroupMetadata()
	if member == "" {
		return false
	}
	beat := kmsg.NewPtrHeartbeatRequest()
	beat.Group, beat.Generation, beat.MemberID, beat.InstanceID = s.group, generation, member, &s.instance
	answer, err := beat.RequestWith(ctx, s.s.Client())
	return err == nil && answer.ErrorCode == kerr.FencedInstanceID.Code || s.word.fenced.Load()
}
