package groups

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/wait"
)

// TestOnRealKafka runs what depends on the broker against a real one.
func TestOnRealKafka(t *testing.T) {
	kafkatest.OnReal(t, map[string]func(*testing.T, kafkatest.Cluster){
		"succeeds":    testSucceeds,
		"heartbeat":   testHeartbeat,
		"markers":     testHeartbeatMarkers,
		"cut":         testCut,
		"cut-frozen":  testCutFrozen,
		"cut-foreign": testCutForeign,
		"read-past":   func(t *testing.T, k kafkatest.Cluster) { testReadPast(t, k, false) },
		"past-zstd":   func(t *testing.T, k kafkatest.Cluster) { testReadPast(t, k, true) },
		"stands":      testStands,
	})
}

// A session whose Kafka was away ends, so that a new one looks for what that
// Kafka left hanging of its transactions.
func TestASessionThatLosesItsPlaceEnds(t *testing.T) {
	c, k := kafkatest.Controlled(t)
	s, err := OpenSession(kafkatest.Deadline(t), SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Topics: []string{k.Content}})
	kafkatest.Must(t, err)
	defer s.Close()
	var away atomic.Bool
	away.Store(true)
	c.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, errors.New("away"), away.Load()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for err == nil {
		_, _, err = s.Poll(ctx, 10)
	}
	away.Store(false)
	if ctx.Err() != nil {
		t.Fatal("it goes on in its old place")
	}
}

// What a transaction produces to a partition is one batch, however slowly it comes.
func TestATransactionIsOneBatch(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Topics: []string{k.Content}})
	kafkatest.Must(t, err)
	defer s.Close()
	kafkatest.Must(t, s.Begin())
	const n = 10
	for range n {
		s.Produce(ctx, kafka.Outgoing{Topic: k.Topics.Timeline, Partition: 3, Value: []byte("x")})
		for range 10 { // what was to be sent by now is
			_, err := kafka.Partitions(ctx, k.Brokers, k.Content)
			kafkatest.Must(t, err)
		}
	}
	kafkatest.Must(t, s.Commit(ctx))
	b, err := FetchBatch(ctx, k.Brokers, k.Topics.Timeline, 3, 0)
	if kafkatest.Must(t, err); b.First != 0 || b.Next != n {
		t.Errorf("the first batch is of the offsets from %d to %d, want all %d", b.First, b.Next, n)
	}
}

// A session knows how much more has come in.
func TestWaiting(t *testing.T) {
	k, ctx := kafkatest.Fake(t), kafkatest.Deadline(t)
	p, err := kafka.NewBulkProducer(k.Brokers, nil)
	kafkatest.Must(t, err)
	defer p.Close()
	const n = 30
	all := make([]kafka.Outgoing, n)
	for i := range all {
		all[i] = kafka.Outgoing{Topic: k.Content, Partition: 1, Value: []byte("x")}
	}
	p.ProduceAll(ctx, all)
	kafkatest.Must(t, p.Flush(ctx))
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Topics: []string{k.Content}})
	kafkatest.Must(t, err)
	defer s.Close()
	for got := 0; got < n; {
		in, faults, err := s.Poll(ctx, 10)
		if kafkatest.Must(t, errors.Join(append(faults, err)...)); len(in) == 0 {
			continue
		}
		if got += len(in); s.Waiting() != int64(n-got) {
			t.Errorf("%d of %d are polled, and %d wait", got, n, s.Waiting())
		}
	}
}

// began returns a session that has polled a record and has produced another for it.
func began(t *testing.T, k kafkatest.Cluster) *Session {
	t.Helper()
	ctx := kafkatest.Deadline(t)
	p, err := kafka.NewProducer(k.Brokers, "", nil)
	kafkatest.Must(t, err)
	defer p.Close()
	for i := range int32(2) {
		p.Produce(ctx, kafka.Outgoing{Topic: k.Content, Partition: i, Value: []byte("x")})
	}
	kafkatest.Must(t, p.Flush(ctx))
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Topics: []string{k.Content}})
	kafkatest.Must(t, err)
	t.Cleanup(s.Close)
	for in := []Input(nil); len(in) == 0; {
		in, _, err = s.Poll(ctx, 1)
		kafkatest.Must(t, err)
	}
	kafkatest.Must(t, s.Begin())
	s.Produce(ctx, kafka.Outgoing{Topic: k.Topics.Timeline, Partition: 3, Value: []byte("x")})
	return s
}

// committedNothing fails where the group has an offset.
func committedNothing(t *testing.T, k kafkatest.Cluster) {
	t.Helper()
	at, err := kafkatest.Admin(t, k.Brokers).FetchOffsets(kafkatest.Deadline(t), k.Content)
	kafkatest.Must(t, err)
	at.Each(func(o kadm.OffsetResponse) {
		if o.At > 0 {
			t.Errorf("the group has committed %d of %s/%d", o.At, o.Topic, o.Partition)
		}
	})
}

// What could not be produced is not committed over.
func TestAFailedProduceIsNotCommittedOver(t *testing.T) {
	k := kafkatest.Fake(t)
	s, ctx := began(t, k), kafkatest.Deadline(t)
	s.Produce(ctx, kafka.Outgoing{Topic: k.Topics.Timeline, Partition: 3, Value: make([]byte, 3*kafka.MaxBatchBytes)})
	if err := s.Commit(ctx); err == nil {
		t.Error("it is committed without a record that is too large")
	}
	committedNothing(t, k)
}

// A transaction under way when its partitions go to others is aborted, and that is no
// commit: the others have what was polled to themselves.
func TestAnAbortIsNoCommit(t *testing.T) {
	c, k := kafkatest.Controlled(t)
	s, ctx := began(t, k), kafkatest.Deadline(t)
	c.ControlKey(int16(kmsg.Heartbeat), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		said := r.ResponseKind().(*kmsg.HeartbeatResponse)
		said.ErrorCode = kerr.UnknownMemberID.Code
		return said, nil, true
	})
	c.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, errors.New("later"), true
	})
	for s.Assigned() > 0 { // until it hears so
		kafkatest.Must(t, wait.For(ctx, 10*time.Millisecond))
	}
	if err := s.Commit(ctx); !errors.Is(err, ErrRebalanced) {
		t.Errorf("it says %v", err)
	}
	committedNothing(t, k)
}

func TestSessionSucceedsItself(t *testing.T) { testSucceeds(t, kafkatest.Fake(t)) }

// What a living predecessor has open when its name is taken does not hang, also where
// its last transaction was committed: it is aborted.
func TestASuccessorCommitsNothingOfALivingPredecessor(t *testing.T) {
	c, k := kafkatest.Controlled(t)
	ctx := kafkatest.Deadline(t)
	older, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(k.Brokers)...), kgo.TransactionalID(k.Content+"/one"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	kafkatest.Must(t, err)
	defer older.Close()
	begin := func(value string) error {
		if err := older.BeginTransaction(); err != nil {
			return err
		}
		return older.ProduceSync(ctx, &kgo.Record{Topic: k.Topics.Timeline, Partition: 3, Value: []byte(value)}).FirstErr()
	}
	kafkatest.Must(t, begin("committed"))
	kafkatest.Must(t, older.EndTransaction(ctx, kgo.TryCommit))
	id, epoch, err := older.ProducerID(ctx)
	kafkatest.Must(t, err)
	var began error
	c.ControlKey(int16(kmsg.DescribeTransactions), func(r kmsg.Request) (kmsg.Response, error, bool) {
		c.SleepControl(func() { began = begin("open") })
		state := kmsg.NewDescribeTransactionsResponseTransactionState() // as it was just before
		state.TransactionalID, state.State, state.ProducerID, state.ProducerEpoch = k.Content+"/one", "CompleteCommit", id, epoch
		said := r.ResponseKind().(*kmsg.DescribeTransactionsResponse)
		said.TransactionStates = append(said.TransactionStates, state)
		return said, nil, true
	})
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Topics: []string{k.Content}, Outputs: []string{k.Topics.Timeline}})
	kafkatest.Must(t, err)
	defer s.Close()
	kafkatest.Must(t, began)
	ends, err := kafkatest.Admin(t, k.Brokers).ListCommittedOffsets(ctx, k.Topics.Timeline)
	kafkatest.Must(t, err)
	end, _ := ends.Lookup(k.Topics.Timeline, 3)
	reader, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(k.Brokers)...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{k.Topics.Timeline: {3: kgo.NewOffset().At(0)}}))
	kafkatest.Must(t, err)
	defer reader.Close()
	var got []string
	for next := int64(0); next < end.Offset; {
		polled := reader.PollFetches(ctx)
		kafkatest.Must(t, polled.Err())
		polled.EachRecord(func(r *kgo.Record) {
			if next = r.Offset + 1; !r.Attrs.IsControl() {
				got = append(got, string(r.Value))
			}
		})
	}
	if end.Offset < 4 || !slices.Equal(got, []string{"committed"}) {
		t.Errorf("of %d offsets, two records and how their transactions ended, %q are read", end.Offset, got)
	}
}

// A successor under the same instance name must get past the transaction its
// predecessor left open, take its input again, and not wait for timeouts.
func testSucceeds(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	p, err := kafka.NewProducer(k.Brokers, "", nil)
	kafkatest.Must(t, err)
	defer p.Close()
	for i := range 4 {
		p.Produce(ctx, kafka.Outgoing{Topic: k.Content, Partition: int32(i % 2), Value: fmt.Append(nil, i)})
	}
	kafkatest.Must(t, p.Flush(ctx))

	open := func() *Session {
		t.Helper()
		s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Topics: []string{k.Content}, DeadLetters: k.Topics.DeadLetters})
		kafkatest.Must(t, err)
		return s
	}
	poll := func(s *Session, want int) {
		t.Helper()
		for got := 0; got < want; {
			in, faults, err := s.Poll(ctx, want-got)
			kafkatest.Must(t, err)
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			got += len(in)
			for _, r := range in {
				s.Produce(ctx, kafka.ToStream(k.Topics.Timeline, millrace.Entity(k.Entity("member:1")), r.Value, r.Source))
			}
		}
	}
	first := open()
	kafkatest.Must(t, first.Begin())
	poll(first, 3)
	kafkatest.Must(t, first.s.Client().Flush(ctx)) // and dies with the transaction open
	second := open()
	defer second.Close()
	first.Close()
	kafkatest.Must(t, second.Begin())
	poll(second, 4)
	kafkatest.Must(t, second.Commit(ctx))

	c, err := streams.NewConsumer(streams.Config{Brokers: k.Brokers, Topics: k.Topics})
	kafkatest.Must(t, err)
	defer c.Close()
	tp := kafka.TopicPartition{Stream: kafka.Timeline, Partition: partition.Of(millrace.Entity(k.Entity("member:1")))}
	ends, err := c.EndOffsets(ctx, tp)
	kafkatest.Must(t, err)
	c.Add(map[kafka.TopicPartition]kafka.Position{tp: {Next: 0, Epoch: -1}})
	var got []string
	for next := millrace.Offset(0); next < ends[tp]; {
		polled, err := c.Poll(ctx, 100)
		kafkatest.Must(t, err)
		for _, f := range polled {
			kafkatest.Must(t, f.Err)
			next = f.Next
			for _, r := range f.Records {
				if string(r.Key) == k.Entity("member:1") { // other tests may write into the partition
					got = append(got, string(r.Value))
				}
			}
		}
	}
	slices.Sort(got)
	if want := []string{"0", "1", "2", "3"}; !slices.Equal(got, want) {
		t.Errorf("committed %v, want %v", got, want)
	}
}
