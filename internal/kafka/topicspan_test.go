package kafka_test

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

func TestTopicSpan(t *testing.T) { testTopicSpan(t, kafkatest.Fake(t)) }

// testTopicSpan: a span is what was committed when it was opened, each time that
// it is read, and reading ends at a transaction that was aborted, and at one that
// is open, behind which what there is is hidden.
func testTopicSpan(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	empty, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, 0)
	kafkatest.Must(t, err)
	kafkatest.Must(t, empty.Read(ctx, func([]byte, error) error { return errors.New("there is nothing") }))
	if empty.Done() != 1 {
		t.Errorf("of nothing %v is done", empty.Done())
	}
	// By later protocols franz-go may abort instead of committing; see inTransaction.
	cl, err := kafka.NewClient(k.Brokers, nil, kgo.TransactionalID(k.Content), kgo.MaxVersions(kversion.V3_5_0()))
	kafkatest.Must(t, err)
	defer cl.Close()
	var want []string
	write := func(round string, partition int32) {
		kafkatest.Must(t, cl.BeginTransaction())
		for i := range 3 {
			kafkatest.Must(t, cl.ProduceSync(ctx, &kgo.Record{Topic: k.Content, Partition: partition, Value: fmt.Appendf(nil, "%s %d", round, i)}).FirstErr())
		}
	}
	for i, round := range []string{"committed", "aborted", "committed again", "aborted again"} {
		write(round, int32(i/2))
		kafkatest.Must(t, cl.EndTransaction(ctx, i%2 == 0))
		if i%2 == 0 {
			want = append(want, round+" 0", round+" 1", round+" 2")
		}
	}
	write("open", 2)
	s, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, 0)
	kafkatest.Must(t, err)
	for range 2 {
		var got []string
		kafkatest.Must(t, s.Read(ctx, func(value []byte, _ error) error {
			got = append(got, string(value))
			return nil
		}))
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) || s.Done() != 1 {
			t.Errorf("read %q, %v of it, want %q", got, s.Done(), want)
		}
	}
	if h := s.Hidden(); h == nil || h.Entries != 3 || len(h.From) != 1 || h.From[2] != 0 || !strings.Contains(h.Error(), k.Content+"/2 from offset 0 on") {
		t.Errorf("hidden is %+v", h)
	}
	for _, before := range []millrace.Time{-1, -3, -600_000 * 3_600_000, math.MinInt64} { // of 1970
		if all, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, before); err != nil || !maps.Equal(all.Ends(), s.Ends()) {
			t.Errorf("from %d: %v, want the whole topic: %v", int64(before), err, s.Ends())
		}
	}
	if later, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, millrace.TimeOf(time.Now().Add(time.Hour))); err != nil || later.Hidden() != nil {
		t.Errorf("hidden of a time that is to come: %v, %v", later.Hidden(), err)
	}
	enough := errors.New("enough")
	if err := s.Read(ctx, func([]byte, error) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("what takes the values fails: %v", err)
	}
	kafkatest.Must(t, cl.EndTransaction(ctx, kgo.TryCommit))
	if after, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, 0); err != nil || after.Hidden() != nil {
		t.Errorf("hidden once the transaction has ended: %v, %v", after.Hidden(), err)
	}
	if late, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, millrace.TimeOf(time.Now().Add(time.Hour))); err != nil || late.Done() != 1 {
		t.Errorf("of a time that is to come: %v", err)
	}
	if e := (*millrace.Error)(nil); !errors.As(errOf(kafka.OpenTopic(ctx, k.Brokers, k.Content+"-none", 0)), &e) || e.Field != "topic" || e.WayOut == "" {
		t.Errorf("no topic: %v", e)
	}
}

func errOf(_ *kafka.TopicSpan, err error) error { return err }

// Of transactions that follow each other, what one hides is there once it has ended, as
// of when it was seen; one that stays open hides everything since.
func TestReach(t *testing.T) {
	began := time.Now()
	for _, c := range []struct {
		name string
		ends [][2]int64 // of a partition, committed and all, a second after the other
		want []int      // as of which look all can be read; -1: it is hidden
	}{
		{"no transaction", [][2]int64{{0, 0}, {5, 5}, {9, 9}}, []int{0, 1, 2}},
		{"one that ends", [][2]int64{{5, 5}, {5, 7}, {5, 9}, {9, 9}}, []int{0, -1, -1, 3}},
		{"one after the other", [][2]int64{{5, 7}, {7, 9}, {9, 11}, {11, 13}}, []int{-1, 0, 1, 2}},
		{"one that lasts, and then another", [][2]int64{{5, 7}, {5, 9}, {5, 9}, {9, 11}, {11, 13}}, []int{-1, -1, -1, -1, 3}},
		{"a log that is cut, or another", [][2]int64{{5, 9}, {4, 6}, {7, 8}}, []int{-1, -1, 1}},
		{"what was there before the time of interest", [][2]int64{{1, 2}, {1, 3}}, []int{0, 1}},
	} {
		var r kafka.Reach
		for i, e := range c.ends {
			at := func(i int) time.Time { return began.Add(time.Duration(i) * time.Second) }
			whole, err := r.Look(kafka.Ends{Topic: "t", At: at(i), Stable: map[int32]int64{0: e[0]}, All: map[int32]int64{0: e[1]}}, map[int32]int64{0: 3}, 3*time.Second)
			if want := c.want[i]; (err != nil) != (want < 0) || want >= 0 && !whole.Equal(at(want)) {
				t.Errorf("%s, look %d: as of %v, %v, want %d", c.name, i, whole.Sub(began), err, want)
			}
		}
	}
}

func TestBatchesTooLargeAreSteppedOver(t *testing.T) { testSteppedOver(t, kafkatest.Fake(t)) }

// testSteppedOver: a batch that is too large to open is told, and what is behind it is
// read.
func testSteppedOver(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	for range 2 {
		kafkatest.Bomb(t, k, k.Content, 0)
		kafkatest.Write(t, k, k.Content, 0, "behind")
	}
	kafkatest.Write(t, k, k.Content, 1, "beside")
	kafkatest.Bomb(t, k, k.Content, 2)
	s, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, 0)
	kafkatest.Must(t, err)
	for range 2 {
		var got []string
		closed := 0
		kafkatest.Must(t, s.Read(ctx, func(value []byte, err error) error {
			if c := (*kafka.Closed)(nil); errors.As(err, &c) && value == nil {
				closed++
			} else {
				got = append(got, string(value))
			}
			return nil
		}))
		if slices.Sort(got); !slices.Equal(got, []string{"behind", "behind", "beside"}) || closed != 3 || s.Done() != 1 {
			t.Errorf("read %q, and %d batches that are closed, %v of it", got, closed, s.Done())
		}
	}
}
