package kafka

import (
	"context"
	"errors"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// through returns a client of a Kafka whose connections are opened by dial.
func through(t *testing.T, dial Dial) (Brokers, *kgo.Client) {
	t.Helper()
	b := At("127.0.0.1:1").Through(dial)
	cl, err := NewClient(b, nil)
	if err != nil {
		t.Fatal(err)
	}
	return b, cl
}

// of returns what a poll brought of a partition.
func of(topic string, p kgo.FetchPartition) kgo.Fetch {
	return kgo.Fetch{Topics: []kgo.FetchTopic{{Topic: topic, Partitions: []kgo.FetchPartition{p}}}}
}

// Steps tell every fault but that a poll's time is over, the first of several; also where it
// cannot be found out what the log has. They look once a fault may be of a batch, or nothing
// has come for a while.
func TestStepsTellFaults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, cl := through(t, func(context.Context, string, string) (net.Conn, error) { return nil, io.ErrClosedPipe })
		defer cl.Close()
		ctx, stop := context.WithCancel(t.Context())
		stop()
		away := errors.New("away")
		fault := func(topic string, err error) kgo.Fetch { return of(topic, kgo.FetchPartition{Partition: 1, Err: err}) }
		for name, c := range map[string]struct {
			fetches kgo.Fetches
			still   time.Duration
			looked  bool
			places  error
			want    error
		}{
			"nothing":                        {nil, stillAfter - 1, false, away, nil},
			"nothing for a while":            {nil, stillAfter, true, nil, nil},
			"and where it is is not known":   {nil, stillAfter, true, away, away},
			"the end of a poll":              {kgo.NewErrFetch(context.DeadlineExceeded), 0, false, away, nil},
			"the end of the reader":          {kgo.NewErrFetch(context.Canceled), 0, false, away, context.Canceled},
			"Kafka's answer":                 {kgo.Fetches{fault("t", kerr.NotLeaderForPartition)}, 0, false, away, kerr.NotLeaderForPartition},
			"another topic":                  {kgo.Fetches{fault("x", io.EOF)}, 0, false, away, io.EOF},
			"a batch":                        {kgo.Fetches{fault("t", io.EOF)}, 0, true, nil, io.EOF},
			"a batch at a place not known":   {kgo.Fetches{fault("t", io.EOF)}, 0, true, away, away},
			"the first of two answers":       {kgo.Fetches{fault("t", kerr.NotLeaderForPartition), fault("t", kerr.FencedLeaderEpoch)}, 0, false, nil, kerr.NotLeaderForPartition},
			"the first of two batches":       {kgo.Fetches{fault("t", io.EOF), fault("t", io.ErrNoProgress)}, 0, true, nil, io.EOF},
			"an answer, and a batch":         {kgo.Fetches{fault("t", kerr.NotLeaderForPartition), fault("t", io.EOF)}, 0, true, nil, kerr.NotLeaderForPartition},
			"an answer, and a place unknown": {kgo.Fetches{fault("t", kerr.NotLeaderForPartition), fault("t", io.EOF)}, 0, true, away, kerr.NotLeaderForPartition},
		} {
			asked := 0
			s := NewSteps(cl, "t", nil, func(context.Context) (map[int32]int64, error) { asked++; return map[int32]int64{1: 5}, c.places })
			s.at = map[int32]int64{1: 5, 2: 6}
			time.Sleep(c.still)
			over, err := s.Over(ctx, c.fetches)
			if len(over) > 0 || !errors.Is(err, c.want) || (err == nil) != (c.want == nil) || (asked > 0) != c.looked {
				t.Errorf("%s: %v, %v, and %d looks", name, over, err, asked)
			}
			if c.want == away && len(c.fetches) == 1 && !errors.Is(err, away) {
				t.Errorf("%s: %v", name, err)
			}
			if renewed := c.still >= stillAfter && c.places == nil; maps.Equal(s.at, map[int32]int64{1: 5}) != renewed || s.looked.Equal(time.Now()) != (renewed || c.still == 0) {
				t.Errorf("%s: the places are %v, of %v ago", name, s.at, time.Since(s.looked))
			}
		}
		// What is too large is stepped over, and gaps are noted and kept until they are known.
		s := NewSteps(cl, "t", map[int32]int64{1: 3}, nil)
		records := func(p int32, offsets ...int64) kgo.Fetch {
			all := kgo.FetchPartition{Partition: p}
			for _, o := range offsets {
				all.Records = append(all.Records, &kgo.Record{Topic: "t", Partition: p, Offset: o})
			}
			return of("t", all)
		}
		bomb := &kgo.ErrDecompressTooLarge{Offset: 7, NextOffset: 9, Epoch: 4}
		over, err := s.Over(ctx, kgo.Fetches{records(1, 3, 6), records(2, 0, 1), of("t", kgo.FetchPartition{Partition: 1, Err: bomb})})
		if want := []gap{{1, 4, 6}}; !slices.Equal(s.gaps, want) || err == nil {
			t.Errorf("gaps %v, %v", s.gaps, err)
		}
		if len(over) != 1 || *over[0] != (Closed{"t", 1, 7, 9, nil, 4}) || !maps.Equal(s.next, map[int32]int64{1: 9, 2: 2}) {
			t.Errorf("over %v, read on at %v", over, s.next)
		}
		if _, err := s.Over(ctx, kgo.Fetches{of("t", kgo.FetchPartition{Err: kerr.FencedLeaderEpoch})}); !errors.Is(err, kerr.FencedLeaderEpoch) || len(s.gaps) != 1 {
			t.Errorf("the first fault is not told: %v", err)
		}
		over, err = StepOver(cl, kgo.Fetches{of("t", kgo.FetchPartition{Err: bomb}), fault("t", io.EOF), fault("t", away)})
		if len(over) != 1 || err != io.EOF {
			t.Errorf("over %v, %v", over, err)
		}
	})
}

// A Kafka that takes connections and says nothing is given up after ten seconds, and named; a
// caller that goes away is told so instead.
func TestAMuteKafkaIsGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b, cl := through(t, func(ctx context.Context, _, _ string) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() })
		defer cl.Close()
		for name, c := range map[string]struct {
			ask   func(context.Context) error
			until time.Duration // it may take longer than ten seconds
		}{
			"a topic":   {func(ctx context.Context) error { _, err := OpenTopic(ctx, b, "t", 0); return err }, 0},
			"an answer": {func(ctx context.Context) error { return Answers(ctx, b) }, 0},
			"a gap":     {func(ctx context.Context) error { _, err := NewLooks(cl).Between(ctx, "t", 0, 0, 5); return err }, 0},
			"its values": {func(ctx context.Context) error {
				s := &TopicSpan{brokers: b, topic: "t", from: map[int32]int64{0: 0}, to: map[int32]int64{0: 5}, size: 5}
				return s.Read(ctx, func([]byte, error) error { return nil })
			}, lookWithin},
		} {
			began := time.Now()
			err := c.ask(t.Context())
			if took := time.Since(began); err == nil || took < answersWithin || took > answersWithin+c.until {
				t.Errorf("%s: %v after %v", name, err, took)
			}
			timeout, ok := errors.AsType[interface {
				error
				Timeout() bool
			}](err)
			if !ok || !timeout.Timeout() || name != "a gap" && !strings.Contains(err.Error(), "127.0.0.1:1") {
				t.Errorf("%s: %v", name, err)
			}
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			began = time.Now()
			if err := c.ask(ctx); err == nil || time.Since(began) > time.Second || name != "an answer" && strings.Contains(err.Error(), "within 10s") {
				t.Errorf("%s: after its end, %v after %v", name, err, time.Since(began))
			}
			stop()
		}
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		began := time.Now()
		if c := NewLooks(cl).At(ctx, "t", 0, 5); c != nil || time.Since(began) != time.Second {
			t.Errorf("at an offset: %v", c)
		}
	})
}
