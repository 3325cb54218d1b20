// Package patience is how long who asks Kafka waits, and how often it is asked.
package patience

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/wait"
)

const (
	TryTimeout = 10 * time.Second      // of one try at Kafka
	First      = 50 * time.Millisecond // the pause after the first failure; it doubles
	Max        = 2 * time.Second       // between two tries
	TellAfter  = time.Second           // a shorter trouble is not worth telling
	TellEvery  = 10 * time.Second      // while trouble lasts
)

// Sleep waits, at most until ctx ends.
func Sleep(ctx context.Context, d time.Duration) {
	_ = wait.For(ctx, d) // whoever calls looks at ctx
}
