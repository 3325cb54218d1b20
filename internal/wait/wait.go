// Package wait waits for time to pass, as long as a context has not ended.
package wait

import (
	"context"
	"time"
)

// For returns nil once the time d has passed, or the error of ctx if ctx ends before.
func For(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
