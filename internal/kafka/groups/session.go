// Package groups is what groups of partitioners do in Kafka: they consume and produce in
// transactions (Session), write how far they are (Heartbeat), and wait for a moment so that
// the whole log can be cut at one point in time (TakeCut). It also has what operators do to
// groups.
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

// maxTransactionRecords is how many records are buffered until the commit. If there are more,
// some are sent earlier.
const maxTransactionRecords = 200_000

// sessionTimeout is how long a silent group member keeps its partitions. It is
// longer than TransactionTimeout, so that a member outlives its transactions.
const sessionTimeout = 12 * time.Second

// heartbeat is how often a member tells Kafka that it is alive. From the answer it learns of a
// change in its group.
const heartbeat = sessionTimeout / 6

// ErrFenced says that another process joined the group under this process's instance name.
// This process must not take the name back.
var ErrFenced = errors.New("kafka: another process took over this instance name")

// ErrMoved says that a topic is not the one that the session began with. The caller must open
// another session, which judges the topics that are there now.
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
	Address     string // of this process, told to another that finds its name taken; empty: not told
	Topics      []string
	Outputs     []string     // the topics that are produced to
	DeadLetters string       // the output that may hold larger records
	Log         *slog.Logger // nil = silent

	// Logs are those of Outputs that must stay the same topics. Their ids are noted with each
	// offset, and a group that has written to others is refused with an *OtherLog.
	Logs []string
	// Known returns the id that a topic had when the group read it last. It is for topics
	// whose offsets Kafka has dropped; nil = no id is known.
	Known func(topic string) kafka.TopicID
}

// Session consumes topics in a group and produces in transactions that commit
// what was consumed: exactly once. It is for one goroutine, except for methods that say
// otherwise:
//
//	Poll... Begin, Produce..., Commit
//
// After an error of Begin or Commit the session must not be used again: it does not know
// whether the transaction is in the log, and only a new session under the same instance
// name finds out.
type Session struct {
	s               *kgo.GroupTransactSession
	first           *kgo.FirstErrPromise // of what was produced since Begin
	cfg             SessionConfig
	group, instance string
	word            *groupWord
	ask             *kgo.Client                        // asks which logs are there
	looks           *kafka.Looks                       // at batches, by the same client
	standing        *kafka.Standing                    // finds partitions of which nothing comes
	halted          map[topicPartition]millrace.Offset // where a broken batch stops a partition
	polled          bool                               // something was polled since the last Commit
	began           time.Time                          // when the transaction began; the time of its records
	next            map[topicPartition]millrace.Offset // behind what was polled
	waiting         map[topicPartition]int64           // offsets behind next, when that was fetched
}

// groupWord is what Kafka has told the member about its group.
type groupWord struct {
	fenced atomic.Bool        // another process has the instance name
	joined chan struct{}      // has a value once the member has a place
	failed chan error         // holds the first failure to get one
	stop   context.CancelFunc // ends the client's own work
	mu     struct {
		sync.Mutex
		assigned map[topicPartition]bool
		member   *kgo.Client   // the client of the session; nil until it has a place
		logs     logs          // that the session began with
		found    []*Unreadable // partitions whose offsets are of another log; Poll returns them
		// starts has, for the partitions that were assigned since the last Poll, the offsets
		// from which they are read. A negative offset stands for the partition's beginning.
		starts map[topicPartition]int64
		wake   context.CancelFunc // ends the poll under way
	}
}

// OnGroupManageError implements kgo.HookGroupManageError. A member whose name another process
// took over must stop before it joins again: joining would take the name back.
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

// onAssigned is called by franz-go when the group has assigned partitions to the member.
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

// onRevoked is called by franz-go when partitions are the member's no longer.
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

// wait waits until the member has its place in the group. It returns the error of the first
// failure to get one, or ctx's.
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

// OpenSession connects, joins the group, and takes over the transactional id. It returns an
// *OtherLog if the outputs are not those that the group has written to.
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

// open does what OpenSession says. life ends the client's own work when the session is closed.
func (s *Session) open(ctx, life context.Context) (err error) {
	if s.ask, err = kafka.NewClient(s.cfg.Brokers, nil); err != nil {
		return err
	}
	s.looks = kafka.NewLooks(s.ask)
	// This comes first: a process that may not write does not join the group. So the group
	// becomes empty, which the operator's command needs (see Adopt).
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
	// The place in the group comes first, then the transactional id. If another process is
	// alive under the name, its transaction then fails, and it must find its place taken.
	// Else it would take the name back (see failed).
	if err := s.word.wait(ctx); err != nil {
		return s.failed("join", err)
	}
	// Fetching committed offsets waits for the transactions that they are part of. So the
	// transaction of the process before must be ended now, not when something is produced.
	if err := s.succeed(ctx, s.cfg); err != nil {
		return s.failed("transactional id", err)
	}
	return s.begin(ctx) // again: the process before may have written to other logs until now
}

// options returns the options of the session's client.
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
		kgo.KeepControlRecords(),                          // so that offsets get past what is not delivered
		// What a transaction produces is sent when it commits, as one batch for each
		// partition. Many batches of few records, each compressed by itself, would cost Kafka
		// and its readers most.
		kgo.ProducerLinger(kafka.TransactionTimeout),
		kgo.MaxBufferedRecords(maxTransactionRecords),
		kgo.MaxBufferedBytes(2*kafka.MaxBatchBytes),
		kafka.BatchBytes(cfg.DeadLetters),
	)
}

// Close ends the session's work. It leaves the transaction and the place in the group as they
// are.
func (s *Session) Close() {
	if s.s != nil {
		s.s.Close()
	}
	s.word.stop()
	if s.ask != nil {
		s.ask.Close()
	}
}

// Poll waits up to kafka.NudgeAfter for records and returns at most most of them; there may
// be none. faults are faults of partitions and of the group, for people; reading goes on
// with other partitions. With err (such as ctx's end, ErrClosed, ErrFenced or ErrMoved, or
// that the place in the group is lost) the session must not commit. The next Commit commits
// what was polled.
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
	s.s.Client().ResumeFetchPartitions(nil) // see NudgeAfter: assigning partitions in a group ends franz-go's sessions, too
	return nil, faults, ctx.Err()
}

// take adds the records that a poll brought of a partition, except those behind the place
// where it is halted.
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

// fault returns an error of a partition as an *Unreadable if it does not pass by itself.
func (s *Session) fault(topic string, p int32, err error) error {
	if u := unreadable(topic, p, err); u != nil {
		u.from = s.next[topicPartition{topic, p}]
		return u
	}
	return fmt.Errorf("kafka: read %s/%d: %w", topic, p, err)
}

// Assigned returns how many partitions the group has assigned to this member. Like Has, it
// may be called at any time, by any goroutine.
func (s *Session) Assigned() int {
	s.word.mu.Lock()
	defer s.word.mu.Unlock()
	return len(s.word.mu.assigned)
}

// Has reports whether the group has assigned a partition to this member.
func (s *Session) Has(topic string, partition int32) bool {
	s.word.mu.Lock()
	defer s.word.mu.Unlock()
	return s.word.mu.assigned[topicPartition{topic, partition}]
}

// GoOn commits that the group goes on behind places where it is stuck, outside of any
// transaction. This session itself still reads where it was, so the caller must open
// another one.
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

// Uncommitted reports whether something was polled that is not committed. Ends of
// transactions in the inputs count too, although Poll does not return them.
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

// Begin begins a transaction. All its records get the time at which it began, which does
// not go back from one transaction to the next. So the records up to a time are whole
// transactions.
func (s *Session) Begin() error {
	s.first = new(kgo.FirstErrPromise)
	if now := time.Now(); now.UnixMilli() > s.began.UnixMilli() {
		s.began = now
	}
	return s.failed("begin", s.s.Begin())
}

// Produce adds a record to the transaction, and waits while the buffers are full. Commit
// returns its failure.
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
	// Everything was polled and produced before this question. So if the logs are still the
	// same, it came from them and is in them.
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

// failed wraps an error with what failed. It first asks the group whether another process
// has the instance name; then it returns an ErrFenced. Without that the caller would open a
// new session, which takes the name back, and the two processes would fence each other in
// turn.
func (s *Session) failed(op string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.FencedInstanceID) || s.replaced():
		return fmt.Errorf("%w: %s: %w", ErrFenced, op, err)
	}
	return fmt.Errorf("kafka: %s: %w", op, err)
}

// replaced reports whether another member of the group has the session's instance name.
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
