package groups

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/follow"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/patience"
	"github.com/millrace/millrace/internal/kafka/progress"
)

func TestTrail(t *testing.T) {
	begin := time.UnixMilli(0)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	var tr trail
	for i, step := range []struct {
		end, done       int64
		through, waited int // seconds; through -1 = not known
	}{
		{10, 0, -1, 0},  // a backlog from before anybody looked
		{20, 9, -1, 1},  // not even the first mark
		{20, 10, 0, 1},  // what had come by the first look is done, from then on it waits
		{30, 20, 2, 0},  // the third look saw 20, too
		{30, 30, 4, 0},  // all
		{30, 30, 5, 0},  // nothing comes, and that is known
		{31, 30, 5, 0},  // one more
		{31, 30, 5, 1},  // stuck: time passes, through does not
		{99, 30, 5, 2},  // and more comes behind it
		{100, 31, 7, 1}, // the stuck one is done: all that had come by the eighth look
	} {
		tr.look(step.end, step.done, at(i))
		through := -1
		if !tr.through.IsZero() {
			through = int(tr.through.Sub(begin).Seconds())
		}
		if waited := int(tr.waited(at(i)).Seconds()); through != step.through || waited != step.waited {
			t.Errorf("look %d: through %d, waited %d; want %d, %d", i, through, waited, step.through, step.waited)
		}
	}
	for i := range 100_000 {
		tr.look(int64(200+i), 31, at(10+i))
	}
	if len(tr.marks) > 1000 {
		t.Errorf("%d marks of a day without progress", len(tr.marks))
	}
}

// A process tells also where another one of its group is stuck, until the group
// has got past that.
func TestHeartbeatTellsOfOthers(t *testing.T) {
	own := []progress.Stuck{{Topic: "posts", Partition: 1, Offset: 7, Next: 8}}
	before := []progress.Stuck{{Topic: "posts", Partition: 0, Offset: 5, Next: 9}, {Topic: "posts", Partition: 1, Offset: 3, Next: 4}, {Topic: "likes", Offset: 1, Next: 2}}
	at := func(done int64) map[string]map[int32]place {
		return map[string]map[int32]place{"posts": {0: {end: 20, stable: 20, done: done}, 1: {end: 20, stable: 20, done: 7}}}
	}
	if got := withOthers(own, before, at(5)); len(got) != 2 || got[1] != before[0] {
		t.Errorf("while another is stuck: %v", got)
	}
	if got := withOthers(own, before, at(9)); len(got) != 1 {
		t.Errorf("once it is past: %v", got)
	}
}

func openProgress(t *testing.T, k kafkatest.Cluster) *progress.Log {
	t.Helper()
	l, err := progress.Open(progress.Config{Brokers: k.Brokers, Topic: k.Topics.Progress})
	kafkatest.Must(t, err)
	t.Cleanup(l.Close)
	return l
}

func TestHeartbeat(t *testing.T) { testHeartbeat(t, kafkatest.Fake(t)) }

// testHeartbeat: through is a time up to which the group has provably committed
// everything; it stands still while something waits, whoever measures.
func testHeartbeat(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	reader := openProgress(t, k)
	kafkatest.Must(t, reader.Refresh(ctx))
	if _, ok := reader.Through(); ok {
		t.Error("a heartbeat that nobody wrote")
	}
	produce := func(n int) {
		t.Helper()
		p, err := kafka.NewProducer(k.Brokers, "", nil)
		kafkatest.Must(t, err)
		defer p.Close()
		for range n {
			p.Produce(ctx, kafka.Outgoing{Topic: k.Content, Partition: 1, Value: []byte("v")})
		}
		kafkatest.Must(t, p.Flush(ctx))
	}
	cl, err := kafka.NewClient(k.Brokers, nil)
	kafkatest.Must(t, err)
	defer cl.Close()
	newBeat := func(instance string) func() progress.Progress {
		h := NewHeartbeat(HeartbeatConfig{Brokers: k.Brokers, Progress: openProgress(t, k), Group: k.Content, Instance: instance, Inputs: []string{k.Content, k.Content + "-nowhere"}})
		return func() progress.Progress {
			t.Helper()
			kafkatest.Must(t, h.cfg.Progress.Refresh(ctx))
			err := h.beat(ctx, cl)
			for errors.Is(err, kerr.CoordinatorNotAvailable) { // of a Kafka that has just started
				patience.Sleep(ctx, 100*time.Millisecond)
				err = h.beat(ctx, cl)
			}
			kafkatest.Must(t, err)
			kafkatest.Must(t, reader.Refresh(ctx))
			p, ok := reader.Group(k.Content)
			if through, any := reader.Through(); !ok || !any || !through.Equal(p.Through()) || p.Instance != instance {
				t.Fatalf("read back %+v, through %s", p, through)
			}
			if len(p.Missing) != 1 {
				t.Errorf("missing %q, want the topic that does not exist", p.Missing)
			}
			return p
		}
	}
	beat := newBeat("one")
	produce(3)
	if p := beat(); p.ThroughMillis != 0 || p.Topics[k.Content].Waiting != 3 {
		t.Errorf("nothing was consumed: %+v", p)
	}
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Topics: []string{k.Content}})
	kafkatest.Must(t, err)
	defer s.Close()
	consume(t, s, 3)
	before := time.Now().UnixMilli()
	reach := func() (p progress.Progress) { // a transaction's offsets are seen a moment after it
		for p = beat(); p.Topics[k.Content].Waiting > 0; p = beat() {
		}
		return p
	}
	caughtUp := reach()
	if caughtUp.ThroughMillis < before || caughtUp.ThroughMillis > caughtUp.AtMillis || caughtUp.Topics[k.Content].Waiting != 0 {
		t.Errorf("all was consumed by %d: %+v", before, caughtUp)
	}
	produce(2)
	if p := beat(); p.ThroughMillis < caughtUp.ThroughMillis || p.ThroughMillis >= p.AtMillis || p.Topics[k.Content].Waiting != 2 {
		t.Errorf("2 wait since %d: %+v", caughtUp.ThroughMillis, p)
	}
	standing := beat()
	beat = newBeat("two") // which has seen nothing reached
	if p := beat(); p.ThroughMillis != standing.ThroughMillis {
		t.Errorf("another process takes back what was proven: %+v, was %+v", p, standing)
	}
	consume(t, s, 2)
	if p := reach(); p.ThroughMillis <= standing.ThroughMillis {
		t.Errorf("all was consumed again: %+v", p)
	}

	value := []byte(`{"at_ms":5,"through_ms":4,"instance":"slow"}`)
	kafkatest.Must(t, follow.Put(ctx, k.Brokers, k.Topics.Progress, k.Content+"-slow", value))
	kafkatest.Must(t, follow.Put(ctx, k.Brokers, k.Topics.Progress, "garbage", []byte("{")))
	kafkatest.Must(t, reader.Refresh(ctx))
	if through, ok := reader.Through(); !ok || through.UnixMilli() != 4 {
		t.Errorf("with a slow group: through %s", through)
	}
	kafkatest.Must(t, progress.NoteAct(ctx, k.Brokers, k.Topics.Progress, audit.Entry{Who: "me", Act: "adopt", On: "group a"}))
	kafkatest.Must(t, progress.NoteAct(ctx, k.Brokers, k.Topics.Progress, audit.Entry{Who: "me", Act: "forget", On: "group a"}))
	kafkatest.Must(t, reader.Refresh(ctx))
	if all := reader.History(); len(all) != 2 || all[0].Act != "adopt" || all[1].Act != "forget" || all[1].Who != "me" || all[0].Time.IsZero() {
		t.Errorf("the history: %+v", all)
	}
	if through, ok := reader.Through(); !ok || through.UnixMilli() != 4 {
		t.Errorf("what was done counts for a group: through %s", through)
	}
	kafkatest.Must(t, progress.ForgetGroup(ctx, k.Brokers, k.Topics.Progress, k.Content+"-slow"))
	kafkatest.Must(t, progress.ForgetGroup(ctx, k.Brokers, k.Topics.Progress, k.Content))
	kafkatest.Must(t, reader.Refresh(ctx))
	if through, ok := reader.Through(); ok {
		t.Errorf("without groups: through %s", through)
	}
}

// consume commits the next n records of a session.
func consume(t *testing.T, s *Session, n int) {
	t.Helper()
	ctx := kafkatest.Deadline(t)
	kafkatest.Must(t, s.Begin())
	for n > 0 {
		in, _, err := s.Poll(ctx, n)
		kafkatest.Must(t, err)
		n -= len(in)
	}
	kafkatest.Must(t, s.Commit(ctx))
}

// Records that nobody delivers, such as a transaction's markers, do not wait.
func TestHeartbeatMovesPastWhatIsNotDelivered(t *testing.T) {
	testHeartbeatMarkers(t, kafkatest.Fake(t))
}

func testHeartbeatMarkers(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Topics: []string{k.Content}})
	kafkatest.Must(t, err)
	defer s.Close()
	producer, err := kafka.NewClient(k.Brokers, nil, kgo.TransactionalID(k.Content))
	kafkatest.Must(t, err)
	defer producer.Close()
	for _, end := range []kgo.TransactionEndTry{kgo.TryCommit, kgo.TryAbort} {
		kafkatest.Must(t, producer.BeginTransaction())
		kafkatest.Must(t, producer.ProduceSync(ctx, &kgo.Record{Topic: k.Content, Value: []byte("v")}).FirstErr())
		kafkatest.Must(t, producer.EndTransaction(ctx, end))
	}
	cl, err := kafka.NewClient(k.Brokers, nil)
	kafkatest.Must(t, err)
	defer cl.Close()
	h := NewHeartbeat(HeartbeatConfig{Brokers: k.Brokers, Progress: openProgress(t, k), Group: k.Content, Instance: "one", Inputs: []string{k.Content}})
	for waiting := int64(-1); waiting != 0; waiting = h.mu.last.Topics[k.Content].Waiting {
		kafkatest.Must(t, s.Begin())
		short, cancel := context.WithTimeout(ctx, kafka.FetchWait) // what was committed is seen a moment later
		if _, _, err := s.Poll(short, 100); ctx.Err() != nil {
			t.Fatal(err)
		}
		cancel()
		kafkatest.Must(t, s.Commit(ctx))
		kafkatest.Must(t, h.beat(ctx, cl))
	}
}

// While Kafka is away nothing is written, and a topic that is shorter than what
// was committed proves nothing.
func TestHeartbeatWithoutEvidence(t *testing.T) {
	ctx, k := kafkatest.Deadline(t), kafkatest.Fake(t)
	var past kadm.Offsets // as a member commits that has read more before the topic was created again
	past.AddOffset(k.Content, 0, 3, -1)
	kafkatest.Must(t, kafkatest.Admin(t, k.Brokers).CommitAllOffsets(ctx, k.Content, past))
	cl, err := kafka.NewClient(k.Brokers, nil)
	kafkatest.Must(t, err)
	defer cl.Close()
	h := NewHeartbeat(HeartbeatConfig{Brokers: k.Brokers, Progress: openProgress(t, k), Group: k.Content, Instance: "one", Inputs: []string{k.Content}})
	kafkatest.Must(t, h.beat(ctx, cl))
	if p, _ := h.Last(); p.ThroughMillis != 0 {
		t.Errorf("proven by a log that ends before what was committed: %+v", p)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if err := h.beat(ended, cl); !errors.Is(err, context.Canceled) {
		t.Errorf("Kafka does not answer: %v", err)
	}
	kafkatest.Must(t, h.cfg.Progress.Refresh(ctx))
	if through, ok := h.cfg.Progress.Through(); !ok || through.UnixMilli() != 0 {
		t.Errorf("written without evidence: through %s", through)
	}
}

// A Kafka that neither answers nor refuses is told of while it is still waited
// for.
func TestHeartbeatTellsOfAMuteKafka(t *testing.T) {
	synctest.Test(t, testHeartbeatTellsOfAMuteKafka)
}

func testHeartbeatTellsOfAMuteKafka(t *testing.T) {
	h := NewHeartbeat(HeartbeatConfig{Group: "g"})
	h.mu.fault, h.mu.at = nil, time.Now().Add(beatEvery-beatLate)
	if _, err := h.Last(); err != nil {
		t.Errorf("heard of lately: %v", err)
	}
	h.mu.at = time.Now().Add(-beatLate - time.Millisecond)
	if _, err := h.Last(); err == nil || !strings.Contains(err.Error(), "nothing heard for 8s") {
		t.Errorf("not heard of: %v", err)
	}
}

// Who is told what is measured hears when nothing has been for long.
func TestHeartbeatTellsThatNothingIsMeasured(t *testing.T) {
	var told []progress.Progress
	h := NewHeartbeat(HeartbeatConfig{Group: "g", Measured: func(p progress.Progress) { told = append(told, p) }})
	h.mu.at = time.Now().Add(beatEvery - beatLate)
	h.ended(errors.New("no answer"))
	if len(told) > 0 {
		t.Errorf("measured lately: %v", told)
	}
	h.mu.at = time.Now().Add(-beatLate - time.Millisecond)
	h.ended(nil)
	if len(told) > 0 {
		t.Errorf("without a fault: %v", told)
	}
	h.ended(errors.New("no answer"))
	if len(told) != 1 || told[0].Topics != nil {
		t.Errorf("measured long ago: %v", told)
	}
}

// What is written to a Kafka that takes it and never answers ends with its
// context: who writes it can be stopped.
func TestWritesEndWithTheirContext(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]func(t *testing.T, ctx context.Context, k kafkatest.Cluster){
		"a heartbeat": func(t *testing.T, ctx context.Context, k kafkatest.Cluster) {
			NewHeartbeat(HeartbeatConfig{Brokers: k.Brokers, Progress: openProgress(t, k), Group: k.Content, Instance: "one", Inputs: []string{k.Content}}).Run(ctx)
		},
		"a hold": func(_ *testing.T, ctx context.Context, k kafkatest.Cluster) {
			_, _ = TakeCut(ctx, CutConfig{Brokers: k.Brokers, Topics: k.Topics})
		},
		"one record": func(_ *testing.T, ctx context.Context, k kafkatest.Cluster) {
			_ = follow.Put(ctx, k.Brokers, k.Topics.Schemas, "key", []byte("value"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, k := kafkatest.Controlled(t)
			ctx, cancel := context.WithCancel(kafkatest.Deadline(t))
			var once sync.Once
			c.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
				c.KeepControl()
				once.Do(func() { time.AfterFunc(100*time.Millisecond, cancel) })
				return nil, errors.New("gone"), true
			})
			done := make(chan struct{})
			go func() { defer close(done); write(t, ctx, k) }()
			select {
			case <-done:
			case <-kafkatest.Deadline(t).Done():
				t.Fatal("it does not end")
			}
			if ctx.Err() == nil {
				t.Error("it ended before Kafka was asked to write")
			}
		})
	}
}
