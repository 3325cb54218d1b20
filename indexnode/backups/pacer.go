package backups

import (
	"context"
	"sync"
	"time"
)

// pacer lets questions go first. A system call that waits for a disk holds a
// processor as a computation does, and Go has no priorities: so what backs up
// rests after each piece of work, as long as there are questions.
type pacer struct {
	asked func() bool // whether there was a question since the last call
	mu    sync.Mutex  // held while it rests: those beside it rest one after the other
	busy  time.Time   // guarded by mu: until when it takes the node for asked
}

const (
	// restPerWork leaves backups a twenty-fifth of one processor.
	restPerWork = 24
	// busyFor is how long a node counts as asked after a question.
	busyFor = time.Second
	// longestRest bounds a rest after a disk that hung.
	longestRest = time.Second
)

// pace is called after so much work.
func (p *pacer) pace(ctx context.Context, worked time.Duration) {
	p.rest(ctx, min(restPerWork*worked, longestRest))
}

// rest waits, as long as there are questions.
func (p *pacer) rest(ctx context.Context, wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.asked() {
		p.busy = now.Add(busyFor)
	}
	if !now.Before(p.busy) {
		return
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
