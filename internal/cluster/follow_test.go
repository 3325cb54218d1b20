package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/cluster/keyspace"
)

// TestWaitingForATurnEnds: who waits to read a prefix while another is read
// stops when it is told to.
func TestWaitingForATurnEnds(t *testing.T) {
	c := &Client{reading: make(chan struct{}, 1)}
	c.reading <- struct{}{}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.read(ctx, "docs/feeds/", time.Second, nil, func(*keyspace.Snapshot, error) { t.Error("something was read") })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
}

func TestDoubted(t *testing.T) {
	for err, want := range map[error]bool{
		nil: false, keyspace.ErrPartitions: false, dial.ErrFull: false,
		ErrAway: true, keyspace.ErrNothing: true, keyspace.ErrGone: true, keyspace.ErrForeign: true, keyspace.ErrBack: true, keyspace.ErrAnew: true,
	} {
		if Doubted(err) != want {
			t.Errorf("%v: all is in doubt: %v", err, !want)
		}
	}
}
