package kafka_test

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// A transaction that is open hides what is behind it, and is told by its name and since
// when it is open; once it ends nothing is hidden.
func TestOpenTransactionsAreTold(t *testing.T) {
	k := kafkatest.Fake(t)
	ctx := kafkatest.Deadline(t)
	i, err := kafka.NewInspector(k.Brokers)
	kafkatest.Must(t, err)
	t.Cleanup(i.Close)
	kafkatest.Write(t, k, k.Content, 0, "before")
	began := time.Now().Add(-time.Second)
	end := kafkatest.Begin(t, k, k.Content, map[int32][]byte{0: []byte("open")})
	kafkatest.Write(t, k, k.Content, 0, "behind")
	at, err := i.Extent(ctx, k.Content)
	kafkatest.Must(t, err)
	hidden := at.Hidden(nil)
	if hidden == nil || hidden.Entries != 2 || hidden.From[0] != 1 || len(hidden.From) != 1 {
		t.Fatalf("hidden is %+v", hidden)
	}
	open, err := i.OldestOpen(ctx, hidden)
	kafkatest.Must(t, err)
	if open == nil || open.ID == "" || open.Partition != 0 || open.Offset != millrace.Offset(1) || open.Since.Before(began) || open.Since.After(time.Now()) {
		t.Errorf("the oldest open transaction is %+v", open)
	}
	end(kgo.TryCommit)
	at, err = i.Extent(ctx, k.Content)
	kafkatest.Must(t, err)
	if h := at.Hidden(nil); h != nil {
		t.Errorf("hidden afterwards is %+v", h)
	}
	if open, err := i.OldestOpen(ctx, hidden); open != nil || err != nil {
		t.Errorf("open afterwards is %+v, %v", open, err)
	}
}
