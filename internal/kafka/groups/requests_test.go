package groups

import (
	"context"
	"io"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// What needs an answer of Kafka fails without it.
func TestEachRequestMatters(t *testing.T) {
	fake, k := kafkatest.Controlled(t)
	ctx := kafkatest.Deadline(t)
	kafkatest.Write(t, k, k.Content, 0, "a")
	kafkatest.Write(t, k, k.Content, 0, "b")
	var done kadm.Offsets
	done.AddOffset(k.Content, 0, 1, -1)
	kafkatest.Must(t, kafkatest.Admin(t, k.Brokers).CommitAllOffsets(ctx, "g", done))
	l := openProgress(t, k)
	kafkatest.Must(t, l.Introduce(ctx, "g", "one", []string{k.Content}, nil))
	kafkatest.Must(t, l.Refresh(ctx))
	known, _ := l.Group("g")
	l.Close() // else its requests count, too
	plan, err := PlanAdoption(ctx, k.Brokers, "g", k.Topics.Logs())
	kafkatest.Must(t, err)
	client := func(ask func(context.Context, *kgo.Client) error) func(context.Context) error {
		return func(ctx context.Context) error {
			cl, err := kafka.NewClient(k.Brokers, nil)
			if err != nil {
				return err
			}
			defer cl.Close()
			return ask(ctx, cl)
		}
	}
	kafkatest.EachRequestMatters(t, fake, map[string]func(context.Context) error{
		"adopt":  func(ctx context.Context) error { return Adopt(ctx, k.Brokers, plan, false) },
		"holder": func(ctx context.Context) error { _, err := Holder(ctx, k.Brokers, "g", "one", ""); return err },
		"locate": func(ctx context.Context) error {
			_, err := Locate(ctx, k.Brokers, "g", &Unreadable{Topic: k.Content, Err: io.EOF})
			return err
		},
		"batch":   func(ctx context.Context) error { _, err := FetchBatch(ctx, k.Brokers, k.Content, 0, 1); return err },
		"offsets": func(ctx context.Context) error { return SetOffsets(ctx, k.Brokers, Offsets{"g": {k.Content: {0: 1}}}) },
		"ends": client(func(ctx context.Context, cl *kgo.Client) error {
			_, err := endsOf(ctx, kadm.NewClient(cl), []string{k.Content})
			return err
		}),
		"committed": client(func(ctx context.Context, cl *kgo.Client) error {
			c := &cutter{cl: cl, adm: kadm.NewClient(cl)}
			_, err := c.committed(ctx, known)
			return err
		}),
		"places": client(func(ctx context.Context, cl *kgo.Client) error {
			_, err := places(ctx, kadm.NewClient(cl), []string{k.Content}, logEnds{}, nil)
			return err
		}),
		"places asked for again": client(func(ctx context.Context, cl *kgo.Client) error {
			_, err := askAgain(ctx, kadm.NewClient(cl), map[string]map[int32]place{k.Content: {0: {end: 1, done: 2}}})
			return err
		}),
		"place": client(func(ctx context.Context, cl *kgo.Client) error {
			s := &Session{ask: cl, next: map[topicPartition]millrace.Offset{}}
			_, err := s.place(ctx, topicPartition{k.Content, 0})
			return err
		}),
	})
	NewHeartbeat(HeartbeatConfig{}).ended(io.EOF) // nobody is told
}
