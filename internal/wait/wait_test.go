package wait

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// A wait lasts as long as it is said, or until its context ends, with that error.
func TestFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			d, until, lasts time.Duration
			err             error
		}{
			{time.Minute, time.Hour, time.Minute, nil},
			{time.Hour, time.Minute, time.Minute, context.DeadlineExceeded},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), c.until)
			began := time.Now()
			if err := For(ctx, c.d); !errors.Is(err, c.err) || time.Since(began) != c.lasts {
				t.Errorf("%s within %s: %v after %s", c.d, c.until, err, time.Since(began))
			}
			cancel()
		}
	})
}
