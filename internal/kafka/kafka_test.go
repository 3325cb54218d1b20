package kafka

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// cluster is a Kafka with topics for a test, of which content and schemas are
// its own alone, as are entities that begin with name.
type cluster struct {
	brokers Brokers
	topics  Topics
	name    string
	content string
}

func (k cluster) entity(s string) string { return k.name + s }

func fake(t *testing.T) cluster {
	t.Helper()
	c, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(c.Close)
	return setUp(t, At(c.ListenAddrs()...), "", "")
}

// setUp creates what is missing of the topics behind a prefix, and those of a
// test's name.
func setUp(t *testing.T, brokers Brokers, prefix, name string) cluster {
	t.Helper()
	ctx := deadline(t)
	k := cluster{brokers, Prefixed(prefix), name, prefix + name + "posts"}
	k.topics.Schemas, k.topics.Progress = prefix+name+"schemas", prefix+name+"progress"
	must(t, EnsureTopics(ctx, brokers, k.topics, nil))
	must(t, EnsureContentTopic(ctx, brokers, k.content, 3, nil))
	return k
}

// TestOnRealKafka runs what depends on the broker against a real one.
func TestOnRealKafka(t *testing.T) {
	addr := os.Getenv("MILLRACE_KAFKA")
	if addr == "" {
		t.Skip("MILLRACE_KAFKA is not set; make kafka starts one on 127.0.0.1:19092")
	}
	prefix := fmt.Sprintf("kafka-%d-", time.Now().UnixNano())
	var created []string
	for name, test := range map[string]func(*testing.T, cluster){
		"moves-past":  testMovesPast,
		"never-jumps": testNeverJumps,
		"add-remove":  testAddRemove,
		"succeeds":    testSucceeds,
		"schemas":     testSchemaLog,
		"again":       testSchemasAgain,
		"refuse":      testRefuse,
		"producer":    testProducer,
		"exposures":   testExposures,
		"shown-again": testExposuresAgain,
		"span":        testTopicSpan,
		"acts":        testActs,
		"keep":        testTopicsKeep,
		"heartbeat":   testHeartbeat,
		"markers":     testHeartbeatMarkers,
		"names": func(t *testing.T, k cluster) {
			if err := EnsureContentTopic(deadline(t), k.brokers, "no/such", 3, nil); !errors.Is(err, kerr.InvalidTopicException) {
				t.Errorf("no topic name: %v", err)
			}
		},
		"consumption": testConsumption,
		"cut":         testCut,
		"cut-frozen":  testCutFrozen,
		"cut-foreign": testCutForeign,
		"tails":       testTails,
		"instant":     testInstant,
		"times":       testBrokersTimes,
	} {
		t.Run(name, func(t *testing.T) {
			k := setUp(t, At(addr), prefix, name)
			created = append(created, append(k.topics.All(), k.content)...)
			test(t, k)
		})
	}
	slices.Sort(created)
	if _, err := admin(t, At(addr)).DeleteTopics(deadline(t), slices.Compact(created)...); err != nil {
		t.Logf("topics stay behind: %v", err)
	}
}

func TestConsumerMovesPastWhatIsNotDelivered(t *testing.T) { testMovesPast(t, fake(t)) }
func TestConsumerNeverJumps(t *testing.T)                  { testNeverJumps(t, fake(t)) }
func TestConsumerAddAndRemove(t *testing.T)                { testAddRemove(t, fake(t)) }
func TestSessionSucceedsItself(t *testing.T)               { testSucceeds(t, fake(t)) }
func TestSchemaLog(t *testing.T)                           { testSchemaLog(t, fake(t)) }

// A consumer whose sessions end one after the other reads on: franz-go may lose
// the start of a fetch loop then (see nudgeAfter).
func TestConsumerReadsOnAfterRemovals(t *testing.T) {
	k := fake(t)
	tp, other := TopicPartition{Timeline, 0}, TopicPartition{Timeline, 1}
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.brokers.Addrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(t, err)
	t.Cleanup(cl.Close)
	c, err := NewConsumer(ConsumerConfig{Brokers: k.brokers, Topics: k.topics})
	must(t, err)
	t.Cleanup(c.Close)
	c.Add(map[TopicPartition]Position{tp: {Epoch: -1}})
	rounds := 200
	if testing.Short() {
		rounds = 20
	}
	for range rounds {
		for range 2000 {
			c.Remove(other)
		}
		must(t, cl.ProduceSync(deadline(t), &kgo.Record{Topic: k.topics.Of(tp.Stream), Partition: int32(tp.Partition), Value: []byte("x")}).FirstErr())
		if _, err := c.Poll(deadline(t), 1); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConsumption(t *testing.T) { testConsumption(t, fake(t)) }

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestEnsureTopics(t *testing.T) {
	ctx, brokers := deadline(t), fake(t).brokers
	must(t, EnsureTopics(ctx, brokers, Topics{}, nil)) // as it was
	must(t, EnsureContentTopic(ctx, brokers, "narrow", 3, nil))
	must(t, EnsureContentTopic(ctx, brokers, "narrow", 5, nil)) // stays as it is

	err := EnsureTopics(ctx, brokers, Topics{Timeline: "narrow"}, nil)
	if want := "topic narrow has 3 partitions, not 720"; err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a timeline topic of 3 partitions: %v, want %q", err, want)
	}
	if _, err := NewProducer(Brokers{}, "", nil); err == nil || !strings.Contains(err.Error(), "brokers") {
		t.Errorf("no brokers: %v", err)
	}
}

// inTransaction produces values to the timeline of an entity in a transaction
// of its own. It speaks as Kafka 3.5 did: by later protocols franz-go may not
// know of a record that was produced, and then aborts instead of committing,
// without an error; by this one it adds the partition first.
func inTransaction(t *testing.T, k cluster, commit kgo.TransactionEndTry, entity string, values ...string) {
	t.Helper()
	ctx := deadline(t)
	cl, err := newClient(k.brokers, nil, kgo.TransactionalID(k.content), kgo.MaxVersions(kversion.V3_5_0()))
	must(t, err)
	defer cl.Close()
	must(t, cl.BeginTransaction())
	for i, v := range values {
		o := ToStream(k.topics.Timeline, millrace.Entity(entity), []byte(v), Source{"posts", 1, millrace.Offset(i)})
		must(t, cl.ProduceSync(ctx, o.kgo()).FirstErr())
	}
	must(t, cl.Flush(ctx))
	must(t, cl.EndTransaction(ctx, commit))
}

func testMovesPast(t *testing.T, k cluster) {
	ctx := deadline(t)
	tp := TopicPartition{Timeline, partition.Of(millrace.Entity(k.entity("member:1")))}
	inTransaction(t, k, kgo.TryCommit, k.entity("member:1"), "a", "b")
	inTransaction(t, k, kgo.TryAbort, k.entity("member:1"), "never")
	inTransaction(t, k, kgo.TryCommit, k.entity("member:1"), "c")
	inTransaction(t, k, kgo.TryAbort, k.entity("member:1"), "never", "never")

	c, err := NewConsumer(ConsumerConfig{Brokers: k.brokers, Topics: k.topics})
	must(t, err)
	defer c.Close()
	ends, err := c.EndOffsets(ctx, tp)
	must(t, err)
	if want := millrace.Offset(3 + 2 + 2 + 3); ends[tp] != want {
		t.Fatalf("EndOffsets = %d, want %d", ends[tp], want)
	}
	c.Assign(map[TopicPartition]Position{tp: {0, -1}})
	var got []string
	var next millrace.Offset
	for next < ends[tp] {
		polled, err := c.Poll(ctx, 100)
		must(t, err)
		for _, f := range polled {
			must(t, f.Err)
			for _, r := range f.Records {
				got = append(got, string(r.Value))
				must(t, CheckCRC(r.CRC, r.Value))
				if age := time.Since(time.UnixMilli(int64(r.Time))); age < 0 || age > time.Hour {
					t.Errorf("logged %s ago", age)
				}
				if src, err := ParseSource(r.Source); err != nil || src.Topic != "posts" || src.Partition != 1 {
					t.Errorf("source %q: %v, %v", r.Source, src, err)
				}
				if string(r.Key) != k.entity("member:1") {
					t.Errorf("key %q", r.Key)
				}
			}
			next = f.Next
		}
	}
	if want := []string{"a", "b", "c"}; !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}
}

func testNeverJumps(t *testing.T, k cluster) {
	ctx := deadline(t)
	inTransaction(t, k, kgo.TryCommit, k.entity("member:1"), "a", "b", "c")
	p := partition.Of(millrace.Entity(k.entity("member:1")))
	tp := TopicPartition{Timeline, p}
	adm := admin(t, k.brokers)
	var del kadm.Offsets
	del.Add(kadm.Offset{Topic: k.topics.Timeline, Partition: int32(p), At: 2})
	_, err := adm.DeleteRecords(ctx, del)
	must(t, err)

	for _, at := range []millrace.Offset{0, 1, 99} {
		c, err := NewConsumer(ConsumerConfig{Brokers: k.brokers, Topics: k.topics})
		must(t, err)
		c.Add(map[TopicPartition]Position{tp: {at, -1}})
		polled, err := c.Poll(ctx, 100)
		must(t, err)
		f := polled[0]
		if !errors.Is(f.Err, ErrLostPosition) || len(f.Records) != 0 || f.Next != at {
			t.Errorf("from %d: %d records, next %d, error %v; want ErrLostPosition and nothing else", at, len(f.Records), f.Next, f.Err)
		}
		// A new position ends it.
		c.Add(map[TopicPartition]Position{tp: {2, -1}})
		for f.Next < 4 {
			polled, err = c.Poll(ctx, 100)
			must(t, err)
			f = polled[0]
			must(t, f.Err)
		}
		starts, err := c.StartOffsets(ctx, tp)
		must(t, err)
		if starts[tp] != 2 {
			t.Errorf("StartOffsets = %d, want 2", starts[tp])
		}
		c.Close()
	}
}

func admin(t *testing.T, brokers Brokers) *kadm.Client {
	t.Helper()
	cl, err := newClient(brokers, nil)
	must(t, err)
	t.Cleanup(cl.Close)
	return kadm.NewClient(cl)
}

func testAddRemove(t *testing.T, k cluster) {
	ctx := deadline(t)
	inTransaction(t, k, kgo.TryCommit, k.entity("member:1"), "a", "b", "c")
	inTransaction(t, k, kgo.TryCommit, k.entity("member:2"), "d")
	one, two := TopicPartition{Timeline, partition.Of(millrace.Entity(k.entity("member:1")))}, TopicPartition{Timeline, partition.Of(millrace.Entity(k.entity("member:2")))}
	c, err := NewConsumer(ConsumerConfig{Brokers: k.brokers, Topics: k.topics})
	must(t, err)
	defer c.Close()

	read := func(tp TopicPartition, n int) string {
		t.Helper()
		var got []string
		for len(got) < n {
			polled, err := c.Poll(ctx, 1)
			must(t, err)
			for _, f := range polled {
				if f.TopicPartition != tp {
					t.Fatalf("read %s, which is not assigned", f.TopicPartition)
				}
				for _, r := range f.Records {
					got = append(got, string(r.Value))
				}
			}
		}
		return strings.Join(got, "")
	}
	c.Add(map[TopicPartition]Position{one: {1, -1}})
	if got := read(one, 1); got != "b" {
		t.Errorf("from 1: %q, want b", got)
	}
	c.Assign(map[TopicPartition]Position{two: {0, -1}})
	if got := read(two, 1); got != "d" {
		t.Errorf("after Assign: %q, want d", got)
	}
	c.Assign(map[TopicPartition]Position{one: {0, -1}})
	if got := read(one, 3); got != "abc" {
		t.Errorf("assigned again from 0: %q, want abc", got)
	}
	c.Remove(one)
	short, cancel := context.WithTimeout(ctx, 3*fetchWait)
	defer cancel()
	if polled, err := c.Poll(short, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("with nothing assigned: %v, %v", polled, err)
	}
	c.Close()
	if _, err := c.Poll(ctx, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v, want ErrClosed", err)
	}
}

// A successor under the same instance name must get past the transaction its
// predecessor left open, take its input again, and not wait for timeouts.
func testSucceeds(t *testing.T, k cluster) {
	ctx := deadline(t)
	p, err := NewProducer(k.brokers, "", nil)
	must(t, err)
	defer p.Close()
	for i := range 4 {
		p.Produce(ctx, Outgoing{Topic: k.content, Partition: int32(i % 2), Value: fmt.Append(nil, i)})
	}
	must(t, p.Flush(ctx))

	open := func() *Session {
		t.Helper()
		s, err := OpenSession(ctx, SessionConfig{Brokers: k.brokers, Group: k.content, Instance: "one", Topics: []string{k.content}, DeadLetters: k.topics.DeadLetters})
		must(t, err)
		return s
	}
	poll := func(s *Session, want int) {
		t.Helper()
		for got := 0; got < want; {
			in, faults, err := s.Poll(ctx, want-got)
			must(t, err)
			if len(faults) > 0 {
				t.Fatal(faults)
			}
			got += len(in)
			for _, r := range in {
				s.Produce(ctx, ToStream(k.topics.Timeline, millrace.Entity(k.entity("member:1")), r.Value, r.Source))
			}
		}
	}
	first := open()
	must(t, first.Begin())
	poll(first, 3)
	must(t, first.s.Client().Flush(ctx)) // and dies with the transaction open
	second := open()
	defer second.Close()
	first.Close()
	must(t, second.Begin())
	poll(second, 4)
	must(t, second.Commit(ctx))

	c, err := NewConsumer(ConsumerConfig{Brokers: k.brokers, Topics: k.topics})
	must(t, err)
	defer c.Close()
	tp := TopicPartition{Timeline, partition.Of(millrace.Entity(k.entity("member:1")))}
	ends, err := c.EndOffsets(ctx, tp)
	must(t, err)
	c.Add(map[TopicPartition]Position{tp: {0, -1}})
	var got []string
	for next := millrace.Offset(0); next < ends[tp]; {
		polled, err := c.Poll(ctx, 100)
		must(t, err)
		for _, f := range polled {
			must(t, f.Err)
			next = f.Next
			for _, r := range f.Records {
				if string(r.Key) == k.entity("member:1") { // other tests may write into the partition
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

// Who consumes a topic is told by groups that are at work, and by offsets that
// were committed where none is.
func testConsumption(t *testing.T, k cluster) {
	ctx := deadline(t)
	look, err := NewInspector(k.brokers)
	must(t, err)
	defer look.Close()
	ask := func(topic string) Consumption {
		t.Helper()
		c, err := look.Consumption(ctx, topic)
		must(t, err)
		return c
	}
	other := k.content + "-other"
	must(t, EnsureContentTopic(ctx, k.brokers, other, 1, nil))
	if c := ask(k.content); c.Group != "" {
		t.Errorf("nobody yet: %+v", c)
	}
	var done kadm.Offsets
	done.Add(kadm.Offset{Topic: other, Partition: 0, At: 0, LeaderEpoch: -1})
	must(t, look.adm.CommitAllOffsets(ctx, k.content+"-idle", done))
	c := ask(other)
	for ; c.Running && ctx.Err() == nil; c = ask(other) { // members of other tests, until their sessions end
		sleep(ctx, 200*time.Millisecond)
	}
	if c.Group != k.content+"-idle" {
		t.Errorf("a group that has committed: %+v", c)
	}
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.brokers, Group: k.content, Instance: "one", Topics: []string{k.content}, DeadLetters: k.topics.DeadLetters})
	must(t, err)
	defer s.Close()
	if c := ask(k.content); !c.Running || c.Group != k.content || !slices.Contains(c.Topics, k.content) {
		t.Errorf("a running partitioner: %+v", c)
	}
	if c := ask(other); !c.Running || c.Group != "" {
		t.Errorf("what a running partitioner leaves out: %+v", c)
	}
	for topic, want := range map[string]bool{k.content: true, k.content + "-none": false} {
		if got, err := look.Exists(ctx, topic); err != nil || got != want {
			t.Errorf("%s exists: %v, %v", topic, got, err)
		}
	}
}
