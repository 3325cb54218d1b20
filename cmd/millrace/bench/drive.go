package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/millrace/bench/rig"
	"github.com/millrace/millrace/internal/rpcerr"
)

// driver asks a cluster the world's questions and holds every answer against
// the one that was found right before.
type driver struct {
	run   *rig.Cluster
	world *world
	right []right // by question
	next  atomic.Uint64
}

// right is a right answer: as it is when read, and on the wire.
type right struct {
	digest uint64
	items  uint64
}

// patient bounds one question, and deadline one that arrives at a given rate.
const (
	patient  = 10 * time.Second
	deadline = 500 * time.Millisecond
)

// errMissed says that a question's time was up before all was answered.
var errMissed = errors.New("no answer, or a partial one, when the time was up")

func (d *driver) get(ctx context.Context, req *feedv1.GetFeedRequest) (*feedv1.GetFeedResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	resp, err := d.run.Feed.GetFeed(ctx, req)
	if err != nil {
		return nil, refusal(err)
	}
	if missing := resp.GetCoverage().GetMissing(); len(missing) > 0 {
		return nil, fmt.Errorf("%w: %v", errMissed, missing)
	}
	return resp, nil
}

// refusal returns rig.ErrRefused and errMissed for what the broker and gRPC say.
func refusal(err error) error {
	err = rpcerr.FromStatus(err)
	if e, ok := errors.AsType[*millrace.Error](err); ok {
		switch e.Reason {
		case millrace.ReasonOverloaded:
			return rig.ErrRefused
		case millrace.ReasonDeadline:
			return fmt.Errorf("%w: %w", errMissed, err)
		}
	}
	return err
}

// glance asks a question and leaves the answer undecoded.
func (d *driver) glance(ctx context.Context, q *question) (g glance, err error) {
	ctx, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	if err := d.run.Conn.Invoke(ctx, feedv1.FeedService_GetFeed_FullMethodName, q.wire, &g, grpc.ForceCodecV2(asBytes{})); err != nil {
		return g, refusal(err)
	}
	if g.partial {
		return g, errMissed
	}
	return g, nil
}

// turn is whose question is next.
func (d *driver) turn() int { return int(d.next.Add(1) % uint64(len(d.world.asked))) }

// ask asks the next question. A wrong answer is an error.
func (d *driver) ask(ctx context.Context) error {
	i := d.turn()
	g, err := d.glance(ctx, &d.world.asked[i])
	if err == nil && g.items != d.right[i].items {
		err = otherwise(i)
	}
	return err
}

func otherwise(i int) error { return fmt.Errorf("question %d is answered otherwise than before", i) }

// closed has clients ask one question after the other for a while.
func (d *driver) closed(ctx context.Context, clients int, length time.Duration) (rig.Latencies, time.Duration, error) {
	return rig.Closed(ctx, clients, length, func(ctx context.Context, _ int) error { return d.ask(ctx) })
}

// open has questions arrive as a Poisson process of so many a second, whether
// those before are answered or not, and measures from the instant each was
// due; so what the client does too late is within. How much that is it tells
// apart, as it does those that were refused or not answered in time.
func (d *driver) open(ctx context.Context, rate float64, length time.Duration) (res arrivals, err error) {
	alarm, err := newAlarm()
	if err != nil {
		return res, err
	}
	defer alarm.close()
	r := d.world.rand(ofArrivals, 0)
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	due := began
	for end := due.Add(length); due.Before(end) && ctx.Err() == nil; {
		due = due.Add(time.Duration(r.ExpFloat64() / rate * float64(time.Second)))
		if err := alarm.sleepUntil(due); err != nil {
			g.Go(func() error { return err })
			break
		}
		at := due
		g.Go(func() error {
			late := time.Since(at)
			ctx, cancel := context.WithDeadline(ctx, at.Add(deadline))
			defer cancel()
			err := d.ask(ctx)
			took := time.Since(at)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, rig.ErrRefused):
				res.refused++
				return nil
			case errors.Is(err, errMissed):
				res.missed++
				return nil
			}
			res.took, res.late = append(res.took, took), append(res.late, late)
			second := int(at.Sub(began) / time.Second)
			for len(res.seconds) <= second {
				res.seconds = append(res.seconds, nil)
			}
			res.seconds[second] = append(res.seconds[second], took)
			return err
		})
	}
	err = g.Wait()
	slices.Sort(res.took)
	slices.Sort(res.late)
	for _, s := range res.seconds {
		slices.Sort(s)
	}
	return res, err
}

// arrivals are questions that came when they were due.
type arrivals struct {
	took    rig.Latencies // from the instant each was due
	late    rig.Latencies // of that, until the client sent it
	seconds []rig.Latencies
	refused int
	missed  int // not answered in time
}

// usual returns what a share took no longer than, in the median second of
// those that were whole: what a machine does that stands still for a moment
// once in ten seconds is not in it.
func (a *arrivals) usual(share float64) time.Duration {
	var each rig.Latencies
	for _, s := range a.seconds[:max(1, len(a.seconds)-1)] {
		each = append(each, s.At(share))
	}
	slices.Sort(each)
	return each.At(0.5)
}

// sustained reports whether all but one of a thousand were answered in time.
func (a *arrivals) sustained() bool { return 1000*(a.refused+a.missed) <= len(a.took) }
