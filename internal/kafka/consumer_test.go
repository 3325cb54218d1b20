package kafka

import (
	"context"
	"errors"
	"testing"
	"time"
)

// What is added to a quiet consumer, or resumed, is read at once, and not when the
// fetch ends that waits for the others.
func TestAQuietConsumerReadsWhatIsAdded(t *testing.T) {
	was := quietWait
	quietWait = time.Hour
	defer func() { quietWait = was }()
	k, ctx := fake(t), deadline(t)
	p, err := NewProducer(k.brokers, "", nil)
	must(t, err)
	defer p.Close()
	send := func(partition int32) {
		t.Helper()
		p.Produce(ctx, Outgoing{Topic: k.topics.Timeline, Partition: partition, Value: []byte("x")})
		must(t, p.Flush(ctx))
	}
	send(2)
	c, err := NewConsumer(ConsumerConfig{Brokers: k.brokers, Topics: k.topics})
	must(t, err)
	defer c.Close()
	read := func(want TopicPartition) {
		t.Helper()
		for {
			all, err := c.Poll(ctx, 10)
			must(t, err)
			for _, f := range all {
				if must(t, f.Err); f.TopicPartition == want && len(f.Records) > 0 {
					return
				}
			}
		}
	}
	one, two := TopicPartition{Timeline, 1}, TopicPartition{Timeline, 2}
	c.Add(map[TopicPartition]Position{one: {0, -1}})
	send(1)
	read(one)
	quiet := func() { // a fetch waits at the broker
		t.Helper()
		c.mu.Lock()
		c.mu.joining = time.Time{}
		c.mu.Unlock()
		short, cancel := context.WithTimeout(ctx, fetchWait)
		defer cancel()
		if all, err := c.Poll(short, 10); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("polled %v, %v, want nothing", all, err)
		}
	}
	quiet()
	c.Add(map[TopicPartition]Position{two: {0, -1}})
	read(two)
	c.Pause(one)
	quiet()
	send(1)
	c.Resume(one)
	read(one)
}
