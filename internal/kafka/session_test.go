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
