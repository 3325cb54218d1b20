package kafka

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A session whose Kafka was away ends, so that a new one looks for what that
// Kafka left hanging of its transactions.
func TestASessionThatLosesItsPlaceEnds(t *testing.T) {
	c, k := controlled(t)
	s, err := OpenSession(deadline(t), SessionConfig{Brokers: k.brokers, Group: k.content, Instance: "one", Topics: []string{k.content}})
	must(t, err)
	defer s.Close()
	var away atomic.Bool
	away.Store(true)
	c.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		return nil, errors.New("away"), away.Load()
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for err == nil {
		_, _, err = s.Poll(ctx, 10)
	}
	away.Store(false)
	if ctx.Err() != nil {
		t.Fatal("it goes on in its old place")
	}
}

// What a transaction produces to a partition is one batch, however slowly it comes.
func TestATransactionIsOneBatch(t *testing.T) {
	k, ctx := fake(t), deadline(t)
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.brokers, Group: k.content, Instance: "one", Topics: []string{k.content}})
	must(t, err)
	defer s.Close()
	must(t, s.Begin())
	const n = 10
	for range n {
		s.Produce(ctx, Outgoing{Topic: k.topics.Timeline, Partition: 3, Value: []byte("x")})
		for range 10 { // what was to be sent by now is
			_, err := Partitions(ctx, k.brokers, k.content)
			must(t, err)
		}
	}
	must(t, s.Commit(ctx))
	b, err := FetchBatch(ctx, k.brokers, k.topics.Timeline, 3, 0)
	if must(t, err); b.First != 0 || b.Next != n {
		t.Errorf("the first batch is of the offsets from %d to %d, want all %d", b.First, b.Next, n)
	}
}

// A session knows how much more has come in.
func TestWaiting(t *testing.T) {
	k, ctx := fake(t), deadline(t)
	p, err := NewBulkProducer(k.brokers, nil)
	must(t, err)
	defer p.Close()
	const n = 30
	all := make([]Outgoing, n)
	for i := range all {
		all[i] = Outgoing{Topic: k.content, Partition: 1, Value: []byte("x")}
	}
	p.ProduceAll(ctx, all)
	must(t, p.Flush(ctx))
	s, err := OpenSession(ctx, SessionConfig{Brokers: k.brokers, Group: k.content, Instance: "one", Topics: []string{k.content}})
	must(t, err)
	defer s.Close()
	for got := 0; got < n; {
		in, faults, err := s.Poll(ctx, 10)
		if must(t, errors.Join(append(faults, err)...)); len(in) == 0 {
			continue
		}
		if got += len(in); s.Waiting() != int64(n-got) {
			t.Errorf("%d of %d are polled, and %d wait", got, n, s.Waiting())
		}
	}
}
