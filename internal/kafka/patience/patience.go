// Package patience says how long callers of Kafka wait for it, and how often they ask it.
package patience

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/wait"
)

const (
	TryTimeout = 10 * time.Second      // how long one try may take
	First      = 50 * time.Millisecond // the pause after the first failure; it doubles up to Max
	Max        = 2 * time.Second       // the longest pause between two tries
	TellAfter  = time.Second           // how long a fault lasts before it is logged
	TellEvery  = 10 * time.Second      // how often it is logged while it lasts
)

// Sleep waits for d, or until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	_ = wait.For(ctx, d) // callers look at ctx themselves
}
