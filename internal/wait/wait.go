// Package wait waits for time to pass, no longer than somebody cares.
package wait

import (
	"context"
	"time"
)

// For returns nil once a time has passed, or the error of ctx when that ends before.
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
