package groups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/progress"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
)

// member is a partitioner that does what a test says, of the group that is
// named as the content topic.
type member struct {
	t *testing.T
	k kafkatest.Cluster
	*Session
}

func newMember(t *testing.T, k kafkatest.Cluster) *member {
	t.Helper()
	ctx := kafkatest.Deadline(t)
	l, err := progress.Open(progress.Config{Brokers: k.Brokers, Topic: k.Topics.Progress})
	kafkatest.Must(t, err)
	defer l.Close()
	kafkatest.Must(t, l.Introduce(ctx, k.Content, "one", []string{k.Content}, nil))
	m := &member{t: t, k: k}
	m.open()
	t.Cleanup(func() { m.Session.Close() })
	return m
}

func (m *member) open() {
	m.t.Helper()
	s, err := OpenSession(kafkatest.Deadline(m.t), SessionConfig{Brokers: m.k.Brokers, Group: m.k.Content, Instance: "one",
		Topics: []string{m.k.Content}, Outputs: []string{m.k.Topics.Timeline}, DeadLetters: m.k.Topics.DeadLetters})
	kafkatest.Must(m.t, err)
	m.Session = s
}

// begin begins a transaction of n inputs, which have one record each in
// timelines of their own.
func (m *member) begin(n int) {
	m.t.Helper()
	ctx := kafkatest.Deadline(m.t)
	p, err := kafka.NewProducer(m.k.Brokers, "", nil)
	kafkatest.Must(m.t, err)
	defer p.Close()
	for i := range n {
		p.Produce(ctx, kafka.Outgoing{Topic: m.k.Content, Partition: int32(i % 3), Value: []byte("v")})
	}
	kafkatest.Must(m.t, p.Flush(ctx))
	kafkatest.Must(m.t, m.Begin())
	for n > 0 {
		in, faults, err := m.Poll(ctx, n)
		kafkatest.Must(m.t, errors.Join(append(faults, err)...))
		for _, r := range in {
			m.Produce(ctx, kafka.ToStream(m.k.Topics.Timeline, millrace.Entity(m.k.Entity(r.String())), r.Value, r.Source))
		}
		n -= len(in)
	}
	kafkatest.Must(m.t, m.s.Client().Flush(ctx))
}

func takeCut(t *testing.T, k kafkatest.Cluster) Cut {
	t.Helper()
	c, err := TakeCut(kafkatest.Deadline(t), CutConfig{Brokers: k.Brokers, Topics: k.Topics})
	kafkatest.Must(t, err)
	return c
}

// consumed is how many inputs of the content topic are before a cut, by the
// offsets of the group.
func consumed(k kafkatest.Cluster, c Cut) (n millrace.Offset) {
	for _, at := range c.Groups[k.Content][k.Content] {
		n += at
	}
	return n
}

// produced is how many records are between two cuts.
func produced(t *testing.T, k kafkatest.Cluster, from, to Cut) (n int) {
	t.Helper()
	kafkatest.Must(t, streams.ReadTails(kafkatest.Deadline(t), streams.TailsConfig{Brokers: k.Brokers, Topics: k.Topics}, between(from, to), func(f streams.Fetched) error {
		n += len(f.Records)
		return f.Err
	}))
	return n
}

// between is the log between two cuts.
func between(from, to Cut) map[kafka.TopicPartition]streams.Span {
	all := map[kafka.TopicPartition]streams.Span{}
	for s := range to.Ends {
		for p, at := range to.Ends[s] {
			all[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: millrace.Partition(p)}] = streams.Span{From: from.Ends[s][p], To: at.Next}
		}
	}
	return all
}

func TestCut(t *testing.T) { testCut(t, kafkatest.Fake(t)) }

// testCut: a cut is of what is committed, and says of which log.
func testCut(t *testing.T, k kafkatest.Cluster) {
	base, m := takeCut(t, k), newMember(t, k)
	if c := takeCut(t, k); consumed(k, c) != 0 || produced(t, k, base, c) != 0 {
		t.Errorf("before anything came: %d consumed, %d produced", consumed(k, c), produced(t, k, base, c))
	}
	m.begin(5)
	kafkatest.Must(t, m.Commit(kafkatest.Deadline(t)))
	c := takeCut(t, k)
	if consumed(k, c) != 5 || produced(t, k, base, c) != 5 {
		t.Errorf("%d consumed, %d produced, want 5", consumed(k, c), produced(t, k, base, c))
	}
	in, err := streams.NewConsumer(streams.Config{Brokers: k.Brokers, Topics: k.Topics})
	kafkatest.Must(t, err)
	defer in.Close()
	if id, err := in.LogID(kafkatest.Deadline(t)); err != nil || id != c.Log {
		t.Errorf("of the log %v, want %v, %v", c.Log, id, err)
	}
	l, err := progress.Open(progress.Config{Brokers: k.Brokers, Topic: k.Topics.Progress})
	kafkatest.Must(t, err)
	defer l.Close()
	kafkatest.Must(t, l.Refresh(kafkatest.Deadline(t)))
	if holds := l.Holds(); len(holds) > 0 {
		t.Errorf("holds stay behind: %v", holds)
	}
}

// A transaction that is committed while the groups' offsets are asked for is
// seen by the second look: its offsets are in the answer, and its records are
// behind the ends of the first.
func TestCutLooksTwice(t *testing.T) {
	c, k := kafkatest.Controlled(t)
	base, m := takeCut(t, k), newMember(t, k)
	m.begin(3)
	kafkatest.Must(t, m.Commit(kafkatest.Deadline(t)))
	came, done := make(chan bool, 1), make(chan bool)
	c.ControlKey(int16(kmsg.OffsetFetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		if req := kreq.(*kmsg.OffsetFetchRequest); len(req.Groups) != 1 || len(req.Groups[0].Topics) == 0 {
			return nil, nil, false
		}
		c.DropControl()
		came <- true
		c.SleepControl(func() { <-done })
		return nil, nil, false
	})
	cuts := make(chan Cut, 1)
	go func() {
		cut, err := TakeCut(kafkatest.Deadline(t), CutConfig{Brokers: k.Brokers, Topics: k.Topics})
		if err != nil {
			t.Error(err)
		}
		cuts <- cut
	}()
	<-came
	m.begin(4)
	kafkatest.Must(t, m.Commit(kafkatest.Deadline(t)))
	close(done)
	if cut := <-cuts; consumed(k, cut) != 7 || produced(t, k, base, cut) != 7 {
		t.Errorf("%d consumed, %d produced, want 7", consumed(k, cut), produced(t, k, base, cut))
	}
}

func TestCutEndsAFrozenTransaction(t *testing.T) { testCutFrozen(t, kafkatest.Fake(t)) }

// testCutFrozen: a transaction that does not end is aborted for a cut. Its
// process learns that it failed, and goes on with a new session: nobody has
// taken its name.
func testCutFrozen(t *testing.T, k kafkatest.Cluster) {
	base, m := takeCut(t, k), newMember(t, k)
	m.begin(6)
	aborted := make(chan bool, 1)
	said := &untilSaid{cancel: func() { aborted <- true }, words: "was aborted"}
	c, err := TakeCut(kafkatest.Deadline(t), CutConfig{Brokers: k.Brokers, Topics: k.Topics, Log: said.logger()})
	kafkatest.Must(t, err)
	select {
	case <-aborted:
	default:
		t.Error("the transaction ended by itself")
	}
	if consumed(k, c) != 0 || produced(t, k, base, c) != 0 {
		t.Errorf("%d consumed and %d produced in a transaction that was open", consumed(k, c), produced(t, k, base, c))
	}
	if err := m.Commit(kafkatest.Deadline(t)); err == nil || errors.Is(err, ErrFenced) {
		t.Errorf("commit of the aborted transaction: %v; want a failure, and that nobody has its name", err)
	}
	m.Close()
	m.open()
	kafkatest.Must(t, m.Begin())
	for n := 0; n < 6; {
		in, faults, err := m.Poll(kafkatest.Deadline(t), 6)
		kafkatest.Must(t, errors.Join(append(faults, err)...))
		n += len(in)
	}
	kafkatest.Must(t, m.Commit(kafkatest.Deadline(t)))
	if c := takeCut(t, k); consumed(k, c) != 6 {
		t.Errorf("%d consumed by the next session, want 6", consumed(k, c))
	}
}

// A transaction of somebody else's in the streams is not ended, but told, with
// its place and the way out.
func TestCutLeavesForeignTransactions(t *testing.T) { testCutForeign(t, kafkatest.Fake(t)) }

func testCutForeign(t *testing.T, k kafkatest.Cluster) {
	newMember(t, k)
	base := takeCut(t, k)
	p := partition.Of(millrace.Entity(k.Entity("foreign")))
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(k.Brokers)...), kgo.TransactionalID(k.Name+"foreign"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	kafkatest.Must(t, err)
	defer cl.Close()
	kafkatest.Must(t, cl.BeginTransaction())
	kafkatest.Must(t, cl.ProduceSync(kafkatest.Deadline(t), &kgo.Record{Topic: k.Topics.Timeline, Partition: int32(p), Key: []byte(k.Entity("foreign"))}).FirstErr())
	ctx, cancel := context.WithCancel(kafkatest.Deadline(t))
	defer cancel()
	told := &untilSaid{cancel: cancel, words: "is not a partitioner's"}
	_, err = TakeCut(ctx, CutConfig{Brokers: k.Brokers, Topics: k.Topics, Log: told.logger()})
	if want := fmt.Sprintf("%s/%d", k.Topics.Timeline, p); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("no cut: %v; want the place %s", err, want)
	}
	// It asked for one hold after the other, each for a second.
	asked, err := kafka.OpenTopic(kafkatest.Deadline(t), k.Brokers, k.Topics.Progress, 0)
	kafkatest.Must(t, err)
	again := false
	kafkatest.Must(t, asked.Read(kafkatest.Deadline(t), func(value []byte, closed error) error {
		again = again || string(value) == `{"round":2}`
		return closed
	}))
	if !again {
		t.Error("one hold lasted")
	}
	kafkatest.Must(t, cl.EndTransaction(kafkatest.Deadline(t), kgo.TryCommit))
	if c := takeCut(t, k); produced(t, k, base, c) != 1 {
		t.Errorf("%d records, want that of the transaction", produced(t, k, base, c))
	}
}

// Offsets of a commit that is under way are not taken.
func TestCutWaitsForStableOffsets(t *testing.T) {
	c, k := kafkatest.Controlled(t)
	m := newMember(t, k)
	m.begin(3)
	kafkatest.Must(t, m.Commit(kafkatest.Deadline(t)))
	unstable := 3
	c.ControlKey(int16(kmsg.OffsetFetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		req := kreq.(*kmsg.OffsetFetchRequest)
		if unstable == 0 || !req.RequireStable || len(req.Groups) != 1 || len(req.Groups[0].Topics) == 0 {
			return nil, nil, false
		}
		unstable--
		resp := req.ResponseKind().(*kmsg.OffsetFetchResponse)
		g := kmsg.NewOffsetFetchResponseGroup()
		g.Group = req.Groups[0].Group
		for _, t := range req.Groups[0].Topics {
			rt := kmsg.NewOffsetFetchResponseGroupTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
				rp.Partition, rp.Offset, rp.ErrorCode = p, -1, kerr.UnstableOffsetCommit.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			g.Topics = append(g.Topics, rt)
		}
		resp.Groups = append(resp.Groups, g)
		return resp, nil, true
	})
	if cut := takeCut(t, k); unstable != 0 || consumed(k, cut) != 3 {
		t.Errorf("%d more answers were unstable; %d consumed, want 3", unstable, consumed(k, cut))
	}
}

func TestIntroduce(t *testing.T) {
	k := kafkatest.Fake(t)
	l, err := progress.Open(progress.Config{Brokers: k.Brokers, Topic: k.Topics.Progress})
	kafkatest.Must(t, err)
	defer l.Close()
	ctx := kafkatest.Deadline(t)
	for _, topic := range []string{"a", "b"} {
		kafkatest.Must(t, kafka.EnsureContentTopic(ctx, k.Brokers, topic, 1, nil))
	}
	kafkatest.Must(t, l.Introduce(ctx, "g", "one", []string{"a"}, nil))
	kafkatest.Must(t, follow.Put(ctx, k.Brokers, k.Topics.Progress, "g", []byte(`{"instance":"two","at_ms":5,"through_ms":4,"topics":{"a":{"waiting":1}}}`)))
	kafkatest.Must(t, l.Introduce(ctx, "g", "one", []string{"a"}, nil)) // nothing new
	kafkatest.Must(t, l.Refresh(ctx))
	if g, _ := l.Group("g"); g.Instance != "two" || g.ThroughMillis != 4 || g.Topics["a"].Waiting != 1 {
		t.Errorf("a known group was written over: %+v", g)
	}
	kafkatest.Must(t, l.Introduce(ctx, "g", "one", []string{"b", "absent"}, nil))
	kafkatest.Must(t, l.Refresh(ctx))
	if g, _ := l.Group("g"); g.ThroughMillis != 4 || !slices.Equal(slices.Sorted(maps.Keys(g.Topics)), []string{"a", "b"}) || !slices.Equal(g.Missing, []string{"absent"}) {
		t.Errorf("with another topic: %+v", g)
	}
}

// untilSaid ends something when the log says some words for the first time.
type untilSaid struct {
	sync.Once
	cancel func()
	words  string
}

func (u *untilSaid) Write(b []byte) (int, error) {
	if strings.Contains(string(b), u.words) {
		u.Do(u.cancel)
	}
	return len(b), nil
}

func (u *untilSaid) logger() *slog.Logger { return slog.New(slog.NewTextHandler(u, nil)) }

// A transaction that its coordinator takes for complete, and whose end is
// missing in a partition, is ended there as was decided.
func TestCutEndsWhatKafkaLeftHanging(t *testing.T) {
	for state, want := range map[string]int{"CompleteCommit": 2, "CompleteAbort": 0} {
		t.Run(state, func(t *testing.T) {
			c, k := kafkatest.Controlled(t)
			newMember(t, k)
			base := takeCut(t, k)
			name := k.Content + "/dead"
			cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(k.Brokers)...), kgo.TransactionalID(name), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			kafkatest.Must(t, err)
			defer cl.Close()
			kafkatest.Must(t, cl.BeginTransaction())
			for p := range int32(2) {
				kafkatest.Must(t, cl.ProduceSync(kafkatest.Deadline(t), &kgo.Record{Topic: k.Topics.Timeline, Partition: p, Value: []byte("v")}).FirstErr())
			}
			id, epoch, err := cl.ProducerID(kafkatest.Deadline(t))
			kafkatest.Must(t, err)
			// The coordinator says that it is over.
			c.ControlKey(int16(kmsg.ListTransactions), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				resp := kreq.ResponseKind().(*kmsg.ListTransactionsResponse)
				if len(kreq.(*kmsg.ListTransactionsRequest).StateFilters) == 0 {
					s := kmsg.NewListTransactionsResponseTransactionState()
					s.TransactionalID, s.ProducerID, s.TransactionState = name, id, state
					resp.TransactionStates = append(resp.TransactionStates, s)
				}
				return resp, nil, true
			})
			if cut := takeCut(t, k); produced(t, k, base, cut) != want {
				t.Errorf("%d records of producer %d/%d, want %d", produced(t, k, base, cut), id, epoch, want)
			}
		})
	}
}

// All records of a session's transaction have one time.
func TestTransactionsHaveOneTime(t *testing.T) {
	k := kafkatest.Fake(t)
	base, m := takeCut(t, k), newMember(t, k)
	for range 3 {
		m.begin(20)
		for now := time.Now(); time.Now().UnixMilli() <= now.UnixMilli()+1; { // time goes on within the transaction
		}
		for i := range 10 {
			m.Produce(kafkatest.Deadline(t), kafka.ToStream(k.Topics.Timeline, millrace.Entity(k.Entity(fmt.Sprint(i))), nil, kafka.Source{Topic: "later", Partition: 0, Offset: 0}))
		}
		kafkatest.Must(t, m.Commit(kafkatest.Deadline(t)))
	}
	c := takeCut(t, k)
	times := map[millrace.Time]int{}
	kafkatest.Must(t, streams.ReadTails(kafkatest.Deadline(t), streams.TailsConfig{Brokers: k.Brokers, Topics: k.Topics}, between(base, c), func(f streams.Fetched) error {
		for _, r := range f.Records {
			times[r.Time]++
		}
		return f.Err
	}))
	if len(times) != 3 {
		t.Errorf("records by time: %v; want three transactions of 30", times)
	}
	for at, n := range times {
		if n != 30 {
			t.Errorf("%d records at %s, want a whole transaction of 30", n, at)
		}
	}
}
