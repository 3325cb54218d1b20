package cluster

import (
	"context"
	"errors"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"testing"
	"time"
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
