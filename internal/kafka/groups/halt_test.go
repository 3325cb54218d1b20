package groups

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/progress"
)

// opened is a session of the group that a test's content topic gives its name to.
func opened(t *testing.T, ctx context.Context, k kafkatest.Cluster) *Session {
	t.Helper()
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.Brokers, Group: k.Content, Instance: "one", Topics: []string{k.Content}})
	kafkatest.Must(t, err)
	t.Cleanup(s.Close)
	return s
}

// polled polls until so many records and faults have come, commits, and returns the
// records' values in order, and the faults.
func polled(t *testing.T, ctx context.Context, s *Session, records, faults int) (values []string, stuck []*Unreadable) {
	t.Helper()
	kafkatest.Must(t, s.Begin())
	for len(values) < records || len(stuck) < faults {
		in, told, err := s.Poll(ctx, 100)
		kafkatest.Must(t, err)
		for _, r := range in {
			values = append(values, string(r.Value))
		}
		for _, err := range told {
			var u *Unreadable
			if !errors.As(err, &u) {
				t.Fatal(err)
			}
			stuck = append(stuck, u)
		}
	}
	kafkatest.Must(t, s.Commit(ctx))
	slices.Sort(values)
	return values, stuck
}

func committed(t *testing.T, ctx context.Context, k kafkatest.Cluster, partition int32) int64 {
	t.Helper()
	all, err := kafkatest.Admin(t, k.Brokers).FetchOffsets(ctx, k.Content)
	kafkatest.Must(t, err)
	c, ok := all.Lookup(k.Content, partition)
	if !ok {
		c.At = -1
	}
	return c.At
}

func TestSessionsHaltWhereFranzGoReadsPast(t *testing.T) {
	for name, compressed := range map[string]bool{"plain": false, "zstd": true} {
		t.Run(name, func(t *testing.T) { testReadPast(t, kafkatest.Fake(t), compressed) })
	}
}

// A batch with an entry that does not parse halts its partition also where another one
// lies behind it: nothing from behind the entry is taken or committed, the others go on,
// and once the place is skipped all that is behind it comes.
func testReadPast(t *testing.T, k kafkatest.Cluster, compressed bool) {
	ctx := kafkatest.Deadline(t)
	kafkatest.Write(t, k, k.Content, 0, "before")
	kafkatest.Overlong(t, k, k.Content, 0, 1, compressed, []byte("good"), []byte("bad"), []byte("lost"))
	kafkatest.Write(t, k, k.Content, 0, "behind")
	kafkatest.Write(t, k, k.Content, 1, "beside")
	s := opened(t, ctx, k)
	values, stuck := polled(t, ctx, s, 3, 1)
	if want := []string{"before", "beside", "good"}; !slices.Equal(values, want) || len(stuck) != 1 {
		t.Fatalf("it has %q and %d faults, want %q and one", values, len(stuck), want)
	}
	at, err := Locate(ctx, k.Brokers, k.Content, stuck[0])
	kafkatest.Must(t, err)
	if at.Topic != k.Content || at.Partition != 0 || at.Offset != 2 || at.Next != 4 || at.Kind != progress.Closed || !strings.Contains(at.Reason, "broken in the log") {
		t.Errorf("it is stuck at %+v", at)
	}
	for committed(t, ctx, k, 0) < 2 { // Kafka tells it a moment later
	}
	if n := s.Waiting(); n != 0 {
		t.Errorf("%d records wait that will not come", n)
	}
	kafkatest.Write(t, k, k.Content, 0, "later")
	kafkatest.Write(t, k, k.Content, 1, "also beside")
	if values, _ := polled(t, ctx, s, 1, 0); !slices.Equal(values, []string{"also beside"}) {
		t.Errorf("then it has %q", values)
	}
	if c := committed(t, ctx, k, 0); c != 2 {
		t.Errorf("then up to offset %d is committed", c)
	}
	again := opened(t, ctx, k)
	if _, stuck := polled(t, ctx, again, 0, 1); stuck[0].Offset != 2 || stuck[0].Next != 4 {
		t.Errorf("a session behind it is stuck from %d to %d", stuck[0].Offset, stuck[0].Next)
	}
	kafkatest.Must(t, again.GoOn(ctx, at))
	if values, _ := polled(t, ctx, opened(t, ctx, k), 2, 0); !slices.Equal(values, []string{"behind", "later"}) {
		t.Errorf("behind it are %q", values)
	}
}

func TestSessionsHaltAtTheEnd(t *testing.T) { testStands(t, kafkatest.Fake(t)) }

// So does one that is the last of its partition, whatever the group has read of that.
func testStands(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	kafkatest.Overlong(t, k, k.Content, 0, 0, false, []byte("bad"), []byte("lost"))
	kafkatest.Write(t, k, k.Content, 1, "before")
	kafkatest.Begin(t, k, k.Content, map[int32][]byte{1: []byte("taken back")})(kgo.TryAbort)
	kafkatest.Overlong(t, k, k.Content, 1, 1, true, []byte("good"), []byte("bad"))
	s := opened(t, ctx, k)
	values, stuck := polled(t, ctx, s, 2, 2)
	if want := []string{"before", "good"}; !slices.Equal(values, want) {
		t.Errorf("it has %q, want %q", values, want)
	}
	slices.SortFunc(stuck, func(a, b *Unreadable) int { return int(a.Partition - b.Partition) })
	for p, want := range [][2]millrace.Offset{{0, 2}, {4, 5}} {
		at, err := Locate(ctx, k.Brokers, k.Content, stuck[p])
		kafkatest.Must(t, err)
		if at.Partition != int32(p) || at.Offset != want[0] || at.Next != want[1] {
			t.Errorf("it is stuck at %+v, want from %d to %d", at, want[0], want[1])
		}
		kafkatest.Must(t, s.GoOn(ctx, at))
	}
	kafkatest.Write(t, k, k.Content, 0, "behind")
	kafkatest.Write(t, k, k.Content, 1, "behind, too")
	if values, _ := polled(t, ctx, opened(t, ctx, k), 2, 0); !slices.Equal(values, []string{"behind", "behind, too"}) {
		t.Errorf("behind them are %q", values)
	}
}

// A partition that is halted is not fetched: it is taken out of the session of fetches.
func TestAHaltedPartitionIsNotFetched(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	ctx := kafkatest.Deadline(t)
	var in, fetches atomic.Int64
	of.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		req := r.(*kmsg.FetchRequest)
		if req.SessionEpoch < 0 { // a look
			return nil, nil, false
		}
		fetches.Add(1)
		for _, topic := range req.Topics {
			for _, p := range topic.Partitions {
				if p.Partition == 0 {
					in.Store(1)
				}
			}
		}
		for _, topic := range req.ForgottenTopics {
			if slices.Contains(topic.Partitions, 0) {
				in.Store(0)
			}
		}
		return nil, nil, false
	})
	kafkatest.Overlong(t, k, k.Content, 0, 0, false, []byte("bad"))
	s := opened(t, ctx, k)
	polled(t, ctx, s, 0, 1)
	if fetches.Load() == 0 {
		t.Error("no fetch is of a session")
	}
	for range 2 { // the first may be of a fetch that was under way
		kafkatest.Write(t, k, k.Content, 1, "beside")
		polled(t, ctx, s, 1, 0)
	}
	if in.Load() > 0 {
		t.Error("it is fetched")
	}
}

// compact writes batches of two entries to partition 0, and has Kafka compact the first
// entry of all but the last two of them away.
func compact(t *testing.T, ctx context.Context, of *kfake.Cluster, k kafkatest.Cluster, batches int) {
	t.Helper()
	policy := "compact"
	altered, err := kafkatest.Admin(t, k.Brokers).AlterTopicConfigs(ctx, []kadm.AlterConfig{{Name: "cleanup.policy", Value: &policy}}, k.Content)
	kafkatest.Must(t, errors.Join(err, altered[0].Err))
	cl, err := kafka.NewClient(k.Brokers, nil)
	kafkatest.Must(t, err)
	defer cl.Close()
	for i := range batches {
		first, second := &kgo.Record{Topic: k.Content, Key: []byte("key")}, &kgo.Record{Topic: k.Content, Key: fmt.Append(nil, i), Value: []byte("kept")}
		kafkatest.Must(t, cl.ProduceSync(ctx, first, second).FirstErr())
	}
	of.Compact()
}

// Where much was compacted away or taken back nothing halts, and few looks are taken.
func TestGapsAreNoHalts(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	ctx := kafkatest.Deadline(t)
	const batches = 100
	compact(t, ctx, of, k, batches)
	for range 5 {
		kafkatest.Begin(t, k, k.Content, map[int32][]byte{1: []byte("taken back")})(kgo.TryAbort)
	}
	kafkatest.Write(t, k, k.Content, 1, "kept")
	var looks atomic.Int64
	of.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		if r.(*kmsg.FetchRequest).MaxBytes == 1<<20 {
			looks.Add(1)
		}
		return nil, nil, false
	})
	values, stuck := polled(t, ctx, opened(t, ctx, k), batches+3, 0)
	if len(values) != batches+3 || len(stuck) > 0 {
		t.Errorf("%d records and %d faults", len(values), len(stuck))
	}
	if n := looks.Load(); n == 0 || n > 5 {
		t.Errorf("%d looks into %d gaps", n, batches+5)
	}
}

// Where Kafka does not tell what lies in a gap nothing from behind it is taken: the
// session ends, and the next one finds it.
func TestAGapThatIsNotKnownEndsTheSession(t *testing.T) {
	of, k := kafkatest.Controlled(t)
	ctx := kafkatest.Deadline(t)
	kafkatest.Overlong(t, k, k.Content, 0, 0, false, []byte("bad"))
	kafkatest.Write(t, k, k.Content, 0, "behind")
	var away atomic.Bool
	away.Store(true)
	of.ControlKey(int16(kmsg.Fetch), func(r kmsg.Request) (kmsg.Response, error, bool) {
		of.KeepControl()
		return nil, errors.New("away"), away.Load() && r.(*kmsg.FetchRequest).MaxBytes == 1<<20
	})
	s := opened(t, ctx, k)
	for {
		in, faults, err := s.Poll(ctx, 10)
		if len(in)+len(faults) > 0 {
			t.Fatalf("it has %v, %v", in, faults)
		}
		if err != nil {
			break
		}
	}
	away.Store(false)
	if ctx.Err() != nil {
		t.Fatal("it goes on")
	}
	if values, stuck := polled(t, ctx, opened(t, ctx, k), 0, 1); len(values) > 0 || len(stuck) != 1 {
		t.Errorf("the next one has %q", values)
	}
}
