package rig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// ErrRefused is what an ask function returns if the broker was overloaded.
var ErrRefused = errors.New("refused: the broker is overloaded")

// Latencies are how long answers took, shortest first.
type Latencies []time.Duration

// At returns the time within which a share of the answers came, such as 0.99; 0 if there
// are none.
func (l Latencies) At(share float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[min(len(l)-1, int(share*float64(len(l))))]
}

// refusedPause is how long a client of Closed waits after [ErrRefused].
const refusedPause = 10 * time.Millisecond

// Closed has so many clients ask for length, each again as soon as it has its answer. ask is
// called with the client's number. A refusal ([ErrRefused]) is tried again and not timed; any
// other error ends all clients. Closed returns how long answers took, sorted, and how long
// all of it took.
func Closed(ctx context.Context, clients int, length time.Duration, ask func(context.Context, int) error) (Latencies, time.Duration, error) {
	g, ctx := errgroup.WithContext(ctx)
	took := make([]Latencies, clients)
	began := time.Now()
	for i := range clients {
		g.Go(func() error {
			for time.Since(began) < length {
				start := time.Now()
				err := ask(ctx, i)
				if errors.Is(err, ErrRefused) {
					time.Sleep(refusedPause)
					continue
				}
				if err != nil {
					return err
				}
				took[i] = append(took[i], time.Since(start))
			}
			return nil
		})
	}
	err := g.Wait()
	elapsed := time.Since(began)
	all := slices.Concat(took...)
	slices.Sort(all)
	return all, elapsed, err
}

// Millis returns a duration in milliseconds.
func Millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// Micros returns a duration in microseconds.
func Micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// MS writes a duration in milliseconds.
func MS(d time.Duration) string { return fmt.Sprintf("%.2f ms", Millis(d)) }

// US writes a duration in microseconds.
func US(d time.Duration) string { return fmt.Sprintf("%.0f us", Micros(d)) }
