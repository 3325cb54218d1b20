package cli

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/cli/clitest"
)

// steady is a Go client that asks at a rate, with no more requests under way than a
// broker takes that has just started: on a busy machine they are less a second.
type steady struct {
	ctx    context.Context
	t      *testing.T
	asked  atomic.Int64
	failed atomic.Int64
	end    context.CancelFunc
	done   sync.WaitGroup
}

// startSteady asks the requests in turn until the test ends or has it stop.
func startSteady(within context.Context, t *testing.T, cl *client.Client, reqs []*feedv1.GetFeedRequest, perSecond int) *steady {
	t.Helper()
	ctx, end := context.WithCancel(within)
	s := &steady{ctx: within, t: t, end: end}
	t.Cleanup(end)
	due := make(chan *feedv1.GetFeedRequest)
	s.done.Go(func() {
		defer close(due)
		began := time.Now()
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-time.After(time.Until(began.Add(time.Duration(i) * time.Second / time.Duration(perSecond)))):
				due <- reqs[i%len(reqs)]
			}
		}
	})
	for range 16 {
		s.done.Go(func() {
			for req := range due {
				s.ask(cl, req)
			}
		})
	}
	return s
}

func (s *steady) ask(cl *client.Client, req *feedv1.GetFeedRequest) {
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	resp, err := cl.GetFeed(ctx, req)
	if err != nil || len(resp.Coverage.Missing) > 0 {
		s.failed.Add(1)
		s.t.Errorf("%v, missing %v", err, resp.GetCoverage().GetMissing())
	}
	s.asked.Add(1)
}

// await waits for so many answers.
func (s *steady) await(n int64) {
	s.t.Helper()
	until := s.asked.Load() + n
	clitest.WaitFor(s.ctx, s.t, "answers", func() bool { return s.asked.Load() >= until })
}

func (s *steady) stop() (failed int64) {
	s.end()
	s.done.Wait()
	return s.failed.Load()
}
