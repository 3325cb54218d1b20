package bench

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
)

// driver asks a cluster the world's questions and holds every answer against
// the one that was found right before.
type driver struct {
	run   *running
	world *world
	right []uint64 // digests, by question
	next  atomic.Uint64
}

// patient bounds one question.
const patient = 10 * time.Second

func (d *driver) get(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	resp, err := d.run.client.GetFeed(ctx, req)
	if err != nil {
		return nil, err
	}
	if missing := resp.GetCoverage().GetMissing(); len(missing) > 0 {
		return nil, fmt.Errorf("partial answer: %v", missing)
	}
	return resp, nil
}

// ask asks the next question. A wrong answer is an error.
func (d *driver) ask(ctx context.Context) error {
	i := int(d.next.Add(1) % uint64(len(d.world.asked)))
	resp, err := d.get(ctx, d.world.asked[i])
	if err != nil {
		return err
	}
	if digest(resp) != d.right[i] {
		return fmt.Errorf("question %d is answered otherwise than before", i)
	}
	return nil
}

// latencies are how long answers took, shortest first.
type latencies []time.Duration

func (l latencies) at(share float64) time.Duration {
	if len(l) == 0 {
		return 0
	}
	return l[min(len(l)-1, int(share*float64(len(l))))]
}

// closed has clients ask one question after the other for a while.
func (d *driver) closed(ctx context.Context, clients int, length time.Duration) (latencies, time.Duration, error) {
	g, ctx := errgroup.WithContext(ctx)
	took := make([]latencies, clients)
	began := time.Now()
	for i := range clients {
		g.Go(func() error {
			for time.Since(began) < length {
				start := time.Now()
				if err := d.ask(ctx); err != nil {
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

// open has questions arrive as a Poisson process of so many a second, whether
// those before are answered or not, and measures from the instant each was due.
func (d *driver) open(ctx context.Context, rate float64, length time.Duration) (latencies, error) {
	r := d.world.rand(ofArrivals, 0)
	var mu sync.Mutex
	var all latencies
	g, ctx := errgroup.WithContext(ctx)
	due := time.Now()
	for end := due.Add(length); due.Before(end) && ctx.Err() == nil; {
		due = due.Add(time.Duration(r.ExpFloat64() / rate * float64(time.Second)))
		sleepUntil(due)
		at := due
		g.Go(func() error {
			err := d.ask(ctx)
			took := time.Since(at)
			mu.Lock()
			defer mu.Unlock()
			all = append(all, took)
			return err
		})
	}
	err := g.Wait()
	slices.Sort(all)
	return all, err
}
