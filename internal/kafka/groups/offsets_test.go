package groups

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// A group goes on where it is set to, and is not set while somebody is a member
// of it.
func TestSetGroupOffsets(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(2, "posts"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	brokers := kafka.At(c.ListenAddrs()...)
	member, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(brokers)...), kgo.ConsumerGroup("g"), kgo.ConsumeTopics("posts"))
	if err != nil {
		t.Fatal(err)
	}
	defer member.Close()
	for p := range int32(2) {
		r := &kgo.Record{Topic: "posts", Value: []byte{byte(p)}}
		if err := member.ProduceSync(ctx, r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	if fetched := member.PollFetches(ctx); fetched.Err() != nil { // it is a member by now
		t.Fatal(fetched.Err())
	}
	want := Offsets{"g": {"posts": {0: 1, 1: 5}}}
	for refused := (*millrace.Error)(nil); refused == nil; { // unless Kafka took longer to tell of its members
		soon, over := context.WithTimeout(ctx, 500*time.Millisecond)
		err := SetOffsets(soon, brokers, want)
		over()
		switch {
		case errors.As(err, &refused):
			if refused.Reason != millrace.ReasonUnavailable || refused.Field != "group-offsets" {
				t.Errorf("set while the group is at work: %v", err)
			}
		case !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil:
			t.Fatalf("set while the group is at work: %v", err)
		}
	}
	member.Close()
	if err := SetOffsets(ctx, brokers, want); err != nil {
		t.Fatal(err)
	}
	got, err := kafkatest.Admin(t, brokers).FetchOffsets(ctx, "g")
	if err != nil {
		t.Fatal(err)
	}
	for p, at := range want["g"]["posts"] {
		if o, ok := got.Lookup("posts", p); !ok || millrace.Offset(o.At) != at {
			t.Errorf("posts/%d: %+v, want %d", p, o, at)
		}
	}
}
