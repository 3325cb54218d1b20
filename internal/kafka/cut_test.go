package kafka

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

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// member is a partitioner that does what a test says, of the group that is
// named as the content topic.
type member struct {
	t *testing.T
	k cluster
	*Session
}

func (k cluster) member(t *testing.T) *member {
	t.Helper()
	ctx := deadline(t)
	l, err := OpenProgressLog(ProgressLogConfig{Brokers: k.brokers, Topic: k.topics.Progress})
	must(t, err)
	defer l.Close()
	must(t, l.Introduce(ctx, k.content, "one", []string{k.content}, nil))
	m := &member{t: t, k: k}
	m.open()
	t.Cleanup(func() { m.Session.Close() })
	return m
}

func (m *member) open() {
	m.t.Helper()
	s, err := OpenSession(deadline(m.t), SessionConfig{Brokers: m.k.brokers, Group: m.k.content, Instance: "one",
		Topics: []string{m.k.content}, Outputs: []string{m.k.topics.Timeline}, DeadLetters: m.k.topics.DeadLetters})
	must(m.t, err)
	m.Session = s
}

// begin begins a transaction of n inputs, which have one record each in
// timelines of their own.
func (m *member) begin(n int) {
	m.t.Helper()
	ctx := deadline(m.t)
	p, err := NewProducer(m.k.brokers, "", nil)
	must(m.t, err)
	defer p.Close()
	for i := range n {
		p.Produce(ctx, Outgoing{Topic: m.k.content, Partition: int32(i % 3), Value: []byte("v")})
	}
	must(m.t, p.Flush(ctx))
	must(m.t, m.Begin())
	for n > 0 {
		in, faults, err := m.Poll(ctx, n)
		must(m.t, errors.Join(append(faults, err)...))
		for _, r := range in {
			m.Produce(ctx, ToStream(m.k.topics.Timeline, millrace.Entity(m.k.entity(r.String())), r.Value, r.Source))
		}
		n -= len(in)
	}
	must(m.t, m.s.Client().Flush(ctx))
}

func (k cluster) cut(t *testing.T) Cut {
	t.Helper()
	c, err := TakeCut(deadline(t), CutConfig{Brokers: k.brokers, Topics: k.topics})
	must(t, err)
	return c
}

// consumed is how many inputs of the content topic are before a cut, by the
// offsets of the group.
func (k cluster) consumed(c Cut) (n millrace.Offset) {
	for _, at := range c.Groups[k.content][k.content] {
		n += at
	}
	return n
}

// produced is how many records are between two cuts.
func (k cluster) produced(t *testing.T, from, to Cut) (n int) {
	t.Helper()
	must(t, ReadTails(deadline(t), TailsConfig{Brokers: k.brokers, Topics: k.topics}, between(from, to), func(f Fetched) error {
		n += len(f.Records)
		return f.Err
	}))
	return n
}

// between is the log between two cuts.
func between(from, to Cut) map[TopicPartition]Span {
	all := map[TopicPartition]Span{}
	for s := range to.Ends {
		for p, at := range to.Ends[s] {
			all[TopicPartition{Stream(s), millrace.Partition(p)}] = Span{from.Ends[s][p], at.Next}
		}
	}
	return all
}

func TestCut(t *testing.T) { testCut(t, fake(t)) }

// testCut: a cut is of what is committed, and says of which log.
func testCut(t *testing.T, k cluster) {
	base, m := k.cut(t), k.member(t)
	if c := k.cut(t); k.consumed(c) != 0 || k.produced(t, base, c) != 0 {
		t.Errorf("before anything came: %d consumed, %d produced", k.consumed(c), k.produced(t, base, c))
	}
	m.begin(5)
	must(t, m.Commit(deadline(t)))
	c := k.cut(t)
	if k.consumed(c) != 5 || k.produced(t, base, c) != 5 {
		t.Errorf("%d consumed, %d produced, want 5", k.consumed(c), k.produced(t, base, c))
	}
	in, err := NewConsumer(ConsumerConfig{Brokers: k.brokers, Topics: k.topics})
	must(t, err)
	defer in.Close()
	if id, err := in.LogID(deadline(t)); err != nil || id != c.Log {
		t.Errorf("of the log %v, want %v, %v", c.Log, id, err)
	}
	l, err := OpenProgressLog(ProgressLogConfig{Brokers: k.brokers, Topic: k.topics.Progress})
	must(t, err)
	defer l.Close()
	must(t, l.Refresh(deadline(t)))
	if holds := l.Holds(); len(holds) > 0 {
		t.Errorf("holds stay behind: %v", holds)
	}
}

// A transaction that is committed while the groups' offsets are asked for is
// seen by the second look: its offsets are in the answer, and its records are
// behind the ends of the first.
func TestCutLooksTwice(t *testing.T) {
	c, k := controlled(t)
	base, m := k.cut(t), k.member(t)
	m.begin(3)
	must(t, m.Commit(deadline(t)))
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
		cut, err := TakeCut(deadline(t), CutConfig{Brokers: k.brokers, Topics: k.topics})
		if err != nil {
			t.Error(err)
		}
		cuts <- cut
	}()
	<-came
	m.begin(4)
	must(t, m.Commit(deadline(t)))
	close(done)
	if cut := <-cuts; k.consumed(cut) != 7 || k.produced(t, base, cut) != 7 {
		t.Errorf("%d consumed, %d produced, want 7", k.consumed(cut), k.produced(t, base, cut))
	}
}

// controlled is a fake whose answers a test may change.
func controlled(t *testing.T) (*kfake.Cluster, cluster) {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SleepOutOfOrder())
	must(t, err)
	t.Cleanup(c.Close)
	return c, setUp(t, At(c.ListenAddrs()...), "", "")
}

func TestCutEndsAFrozenTransaction(t *testing.T) { testCutFrozen(t, fake(t)) }

// testCutFrozen: a transaction that does not end is aborted for a cut. Its
// process learns that it failed, and goes on with a new session: nobody has
// taken its name.
func testCutFrozen(t *testing.T, k cluster) {
	base, m := k.cut(t), k.member(t)
	m.begin(6)
	aborted := make(chan bool, 1)
	said := &untilSaid{cancel: func() { aborted <- true }, words: "was aborted"}
	c, err := TakeCut(deadline(t), CutConfig{Brokers: k.brokers, Topics: k.topics, Log: said.logger()})
	must(t, err)
	select {
	case <-aborted:
	default:
		t.Error("the transaction ended by itself")
	}
	if k.consumed(c) != 0 || k.produced(t, base, c) != 0 {
		t.Errorf("%d consumed and %d produced in a transaction that was open", k.consumed(c), k.produced(t, base, c))
	}
	if err := m.Commit(deadline(t)); err == nil || errors.Is(err, ErrFenced) {
		t.Errorf("commit of the aborted transaction: %v; want a failure, and that nobody has its name", err)
	}
	m.Close()
	m.open()
	must(t, m.Begin())
	for n := 0; n < 6; {
		in, faults, err := m.Poll(deadline(t), 6)
		must(t, errors.Join(append(faults, err)...))
		n += len(in)
	}
	must(t, m.Commit(deadline(t)))
	if c := k.cut(t); k.consumed(c) != 6 {
		t.Errorf("%d consumed by the next session, want 6", k.consumed(c))
	}
}

// A transaction of somebody else's in the streams is not ended, but told, with
// its place and the way out.
func TestCutLeavesForeignTransactions(t *testing.T) { testCutForeign(t, fake(t)) }

func testCutForeign(t *testing.T, k cluster) {
	k.member(t)
	base := k.cut(t)
	p := partition.Of(millrace.Entity(k.entity("foreign")))
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.brokers.Addrs()...), kgo.TransactionalID(k.name+"foreign"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(t, err)
	defer cl.Close()
	must(t, cl.BeginTransaction())
	must(t, cl.ProduceSync(deadline(t), &kgo.Record{Topic: k.topics.Timeline, Partition: int32(p), Key: []byte(k.entity("foreign"))}).FirstErr())
	ctx, cancel := context.WithCancel(deadline(t))
	defer cancel()
	told := &untilSaid{cancel: cancel, words: "is not a partitioner's"}
	_, err = TakeCut(ctx, CutConfig{Brokers: k.brokers, Topics: k.topics, Log: told.logger()})
	if want := fmt.Sprintf("%s/%d", k.topics.Timeline, p); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("no cut: %v; want the place %s", err, want)
	}
	must(t, cl.EndTransaction(deadline(t), kgo.TryCommit))
	if c := k.cut(t); k.produced(t, base, c) != 1 {
		t.Errorf("%d records, want that of the transaction", k.produced(t, base, c))
	}
}

// Offsets of a commit that is under way are not taken.
func TestCutWaitsForStableOffsets(t *testing.T) {
	c, k := controlled(t)
	m := k.member(t)
	m.begin(3)
	must(t, m.Commit(deadline(t)))
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
	if cut := k.cut(t); unstable != 0 || k.consumed(cut) != 3 {
		t.Errorf("%d more answers were unstable; %d consumed, want 3", unstable, k.consumed(cut))
	}
}

func TestIntroduce(t *testing.T) {
	k := fake(t)
	l, err := OpenProgressLog(ProgressLogConfig{Brokers: k.brokers, Topic: k.topics.Progress})
	must(t, err)
	defer l.Close()
	ctx := deadline(t)
	for _, topic := range []string{"a", "b"} {
		must(t, EnsureContentTopic(ctx, k.brokers, topic, 1, nil))
	}
	must(t, l.Introduce(ctx, "g", "one", []string{"a"}, nil))
	must(t, put(ctx, k.brokers, k.topics.Progress, "g", []byte(`{"instance":"two","at_ms":5,"through_ms":4,"topics":{"a":{"waiting":1}}}`)))
	must(t, l.Introduce(ctx, "g", "one", []string{"a"}, nil)) // nothing new
	must(t, l.Refresh(ctx))
	if g, _ := l.Group("g"); g.Instance != "two" || g.ThroughMillis != 4 || g.Topics["a"].Waiting != 1 {
		t.Errorf("a known group was written over: %+v", g)
	}
	must(t, l.Introduce(ctx, "g", "one", []string{"b", "absent"}, nil))
	must(t, l.Refresh(ctx))
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
			c, k := controlled(t)
			k.member(t)
			base := k.cut(t)
			name := k.content + "/dead"
			cl, err := kgo.NewClient(kgo.SeedBrokers(k.brokers.Addrs()...), kgo.TransactionalID(name), kgo.RecordPartitioner(kgo.ManualPartitioner()))
			must(t, err)
			defer cl.Close()
			must(t, cl.BeginTransaction())
			for p := range int32(2) {
				must(t, cl.ProduceSync(deadline(t), &kgo.Record{Topic: k.topics.Timeline, Partition: p, Value: []byte("v")}).FirstErr())
			}
			id, epoch, err := cl.ProducerID(deadline(t))
			must(t, err)
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
			if cut := k.cut(t); k.produced(t, base, cut) != want {
				t.Errorf("%d records of producer %d/%d, want %d", k.produced(t, base, cut), id, epoch, want)
			}
		})
	}
}
