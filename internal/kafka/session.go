package kafka

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
)

// transactionTimeout is how long an open transaction may outlive its producer:
// until then no reader gets past it. A successor under the same instance name
// ends it at once.
const transactionTimeout = 10 * time.Second

// sessionTimeout is how long a silent group member keeps its partitions. It is
// longer than transactionTimeout, so that a member outlives its transactions.
const sessionTimeout = 12 * time.Second

// heartbeat is how often a member hears of its group, at least.
const heartbeat = sessionTimeout / 6

// ErrFenced says that another process joined the group under this instance
// name; this one has to end.
var ErrFenced = errors.New("kafka: another process took over this instance name")

// ErrRebalanced says that a transaction was given up because partitions moved
// within the group.
var ErrRebalanced = errors.New("kafka: transaction aborted: the group rebalanced")

// Input is a record of a group's topics.
type Input struct {
	Source
	Key     []byte
	Value   []byte // nil is a null value
	Headers []Header
}

// SessionConfig says what to consume, and as whom.
type SessionConfig struct {
	Brokers []string
	Group   string
	// Instance names this member within its group, for good: a process that
	// starts again under its name takes over its partitions and ends its open
	// transaction at once. Two living processes must not share one.
	Instance    string
	Topics      []string
	Outputs     []string     // the topics that are produced to
	DeadLetters string       // the one of them that may hold larger records
	Log         *slog.Logger // nil = silent
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
	group, instance string
	word            *groupWord
	polled          bool                               // something since the last Commit
	began           time.Time                          // the transaction, and all its records
	next            map[topicPartition]millrace.Offset // behind what was polled
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

func (w *groupWord) onAssigned(_ context.Context, _ *kgo.Client, all map[string][]int32) {
	w.mark(all, true)
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

// OpenSession connects and joins the group.
func OpenSession(ctx context.Context, cfg SessionConfig) (*Session, error) {
	life, stop := context.WithCancel(context.WithoutCancel(ctx))
	word := &groupWord{joined: make(chan struct{}, 1), failed: make(chan error, 1), stop: stop}
	word.mu.assigned = map[topicPartition]bool{}
	opts, err := options(cfg.Brokers, cfg.Log,
		kgo.WithContext(life),
		kgo.WithHooks(word),
		kgo.OnPartitionsAssigned(word.onAssigned),
		kgo.OnPartitionsRevoked(word.onRevoked),
		kgo.OnPartitionsLost(word.onRevoked),
		kgo.ConsumerGroup(cfg.Group),
		kgo.InstanceID(cfg.Instance),
		kgo.TransactionalID(cfg.Group+"/"+cfg.Instance),
		kgo.TransactionTimeout(transactionTimeout),
		kgo.SessionTimeout(sessionTimeout),
		kgo.HeartbeatInterval(heartbeat),
		kgo.ConsumeTopics(cfg.Topics...),
		kgo.ConsumeStartOffset(kgo.NewOffset().AtStart()), // where nothing was committed yet
		kgo.KeepControlRecords(),                          // so that the group gets past what is not delivered
		kgo.MaxBufferedBytes(2*maxBatchBytes),
		batchBytes(cfg.DeadLetters),
	)
	if err != nil {
		stop()
		return nil, err
	}
	t, err := kgo.NewGroupTransactSession(opts...)
	if err != nil {
		stop()
		return nil, fmt.Errorf("kafka: %w", err)
	}
	s := &Session{s: t, group: cfg.Group, instance: cfg.Instance, word: word, next: map[topicPartition]millrace.Offset{}}
	// First the place in the group, then the transactional id: a living
	// predecessor whose transaction fails must find its place taken, or it
	// takes it back (see failed).
	if err := word.wait(ctx); err != nil {
		err = s.failed("join", err)
		s.Close()
		return nil, err
	}
	// Fetching committed offsets waits for the transactions they are part of,
	// so a predecessor's must be ended first, not when something is produced.
	if err := s.succeed(ctx, cfg); err != nil {
		err = s.failed("transactional id", err)
		s.Close()
		return nil, err
	}
	return s, nil
}

// Close leaves the transaction and the group as they are.
func (s *Session) Close() {
	s.s.Close()
	s.word.stop()
}

// Poll waits for records, at most max. faults are partitions' and the group's
// troubles, to be told to people: reading goes on around them. err is ctx's
// end, ErrClosed or ErrFenced. What was polled is committed by the next Commit.
func (s *Session) Poll(ctx context.Context, max int) (in []Input, faults []error, err error) {
	fetches := s.s.PollRecords(ctx, max)
	if fetches.IsClientClosed() {
		if s.word.fenced.Load() {
			return nil, nil, fmt.Errorf("%w: %w", ErrFenced, kerr.FencedInstanceID)
		}
		return nil, nil, ErrClosed
	}
	fetches.EachError(func(topic string, p int32, e error) {
		switch {
		case ctx.Err() != nil && errors.Is(e, ctx.Err()):
		case errors.Is(e, kerr.FencedInstanceID):
			err = fmt.Errorf("%w: %w", ErrFenced, e)
		default:
			faults = append(faults, s.fault(topic, p, e))
		}
	})
	if err != nil {
		return nil, faults, err
	}
	if n := fetches.NumRecords(); n > 0 {
		in = make([]Input, 0, n)
		for r := range fetches.RecordsAll() {
			s.next[topicPartition{r.Topic, r.Partition}] = millrace.Offset(r.Offset) + 1
			if !r.Attrs.IsControl() {
				in = append(in, input(r))
			}
		}
		s.polled = true
		return in, faults, nil
	}
	return nil, faults, ctx.Err()
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

// CommitPast has the group go on at an offset of one partition, outside of any
// transaction. The session goes on where it was: open another one.
func (s *Session) CommitPast(ctx context.Context, topic string, partition int32, next millrace.Offset) error {
	to := map[string]map[int32]kgo.EpochOffset{topic: {partition: {Epoch: -1, Offset: int64(next)}}}
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
	return s.failed("commit past a batch", failed)
}

// Uncommitted reports whether the group has something to commit: also markers
// of transactions, which Poll does not return.
func (s *Session) Uncommitted() bool { return s.polled }

func input(r *kgo.Record) Input {
	in := Input{
		Source: Source{r.Topic, r.Partition, millrace.Offset(r.Offset)},
		Key:    r.Key,
		Value:  r.Value,
	}
	for _, h := range r.Headers {
		in.Headers = append(in.Headers, Header(h))
	}
	return in
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
func (s *Session) Produce(ctx context.Context, o Outgoing) {
	r := o.kgo()
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
