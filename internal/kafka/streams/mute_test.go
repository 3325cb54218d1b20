package streams

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
)

// What is asked of a Kafka that takes connections and answers nothing ends with
// its context: franz-go goes on for ten seconds or more.
func TestQuestionsEndWithTheirContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	kafkatest.Must(t, err)
	t.Cleanup(func() { l.Close() })
	c, err := NewConsumer(Config{Brokers: kafka.At(l.Addr().String())})
	kafkatest.Must(t, err)
	t.Cleanup(c.Close)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	asks := []func() error{
		func() error { _, err := c.LogID(ctx); return err },
		func() error { _, err := c.HighWatermarks(ctx, kafka.TopicPartition{}); return err },
		func() error { _, err := c.StartOffsets(ctx, kafka.TopicPartition{}); return err },
	}
	for _, ask := range asks {
		go func() { ended <- ask() }()
	}
	time.AfterFunc(300*time.Millisecond, stop) // when they wait
	franz := time.After(9 * time.Second)       // by itself it says so after ten
	for range asks {
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		case <-franz:
			t.Fatal("a question goes on")
		}
	}
}
