package kafka_test

import (
	"errors"
	"fmt"
	"slices"
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
// is open.
func testTopicSpan(t *testing.T, k kafkatest.Cluster) {
	ctx := kafkatest.Deadline(t)
	empty, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, 0)
	kafkatest.Must(t, err)
	kafkatest.Must(t, empty.Read(ctx, func([]byte) error { return errors.New("there is nothing") }))
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
		kafkatest.Must(t, s.Read(ctx, func(value []byte) error {
			got = append(got, string(value))
			return nil
		}))
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) || s.Done() != 1 {
			t.Errorf("read %q, %v of it, want %q", got, s.Done(), want)
		}
	}
	enough := errors.New("enough")
	if err := s.Read(ctx, func([]byte) error { return enough }); !errors.Is(err, enough) {
		t.Errorf("what takes the values fails: %v", err)
	}
	kafkatest.Must(t, cl.EndTransaction(ctx, kgo.TryCommit))
	if late, err := kafka.OpenTopic(ctx, k.Brokers, k.Content, millrace.TimeOf(time.Now().Add(time.Hour))); err != nil || late.Done() != 1 {
		t.Errorf("of a time that is to come: %v", err)
	}
	if e := (*millrace.Error)(nil); !errors.As(errOf(kafka.OpenTopic(ctx, k.Brokers, k.Content+"-none", 0)), &e) || e.Field != "topic" || e.WayOut == "" {
		t.Errorf("no topic: %v", e)
	}
}

func errOf(_ *kafka.TopicSpan, err error) error { return err }
