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

// driver asks a cluster the world's questions, and compares every answer with the right
// one, which check has found before.
type driver struct {
	run   *rig.Cluster
	world *world
	right []right       // by question
	next  atomic.Uint64 // counts the questions asked; see turn
}

// right is hashes of a right answer.
type right struct {
	digest uint64 // of the decoded answer; see digest
	items  uint64 // of the items on the wire; see glance
}

const (
	patient  = 10 * time.Second       // the timeout of any question
	deadline = 500 * time.Millisecond // of a question that arrives at a rate, from when it was due
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

// refusal returns rig.ErrRefused if the broker was overloaded, errMissed if the deadline
// passed, else err.
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

// glance asks a question and hashes the answer without decoding it.
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

// turn returns the index of the question to ask next.
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

// closed has clients ask for length, each one question after the other. It returns how long
// answers took, sorted, and how long all of it took.
func (d *driver) closed(ctx context.Context, clients int, length time.Duration) (rig.Latencies, time.Duration, error) {
	return rig.Closed(ctx, clients, length, func(ctx context.Context, _ int) error { return d.ask(ctx) })
}

// open has questions arrive as a Poisson process of rate questions a second, whether or not
// those before are answered. It measures from the instant each was due, so that a client
// that sends late counts as latency too. The result has that lateness on its own as well,
// and counts the questions that were refused or not answered in time.
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

// arrivals is what open measures.
type arrivals struct {
	took    rig.Latencies   // of answered questions, from the instant each was due
	late    rig.Latencies   // the part of that until the client sent the question
	seconds []rig.Latencies // took, by the second in which the question was due
	refused int
	missed  int // not answered in time
}

// usual works out, for each second, within which time a share of the second's answers came,
// and returns the median of these times. The last second is left out, as it may not be
// whole. A machine that stands still for a moment once in ten seconds does not change the
// median.
func (a *arrivals) usual(share float64) time.Duration {
	var each rig.Latencies
	for _, s := range a.seconds[:max(1, len(a.seconds)-1)] {
		each = append(each, s.At(share))
	}
	slices.Sort(each)
	return each.At(0.5)
}

// sustained reports whether at most one question was refused or missed for every thousand
// that were answered.
func (a *arrivals) sustained() bool { return 1000*(a.refused+a.missed) <= len(a.took) }
