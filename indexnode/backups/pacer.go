package backups

import (
	"context"
	"sync"
	"time"
)

// pacer lets questions go first. A system call that waits for a disk holds a
// processor as a computation does, and Go has no priorities: so what backs up or
// restores rests after each piece of work, as long as there are questions.
type pacer struct {
	asked func() bool // whether there was a question since the last call
	mu    struct {
		sync.Mutex
		busy time.Time // until when the node counts as asked
	}
	backups, restores lane
}

// lane has room for one that rests: what is in the same lane rests one after the
// other. A restore does not wait for the many rests of a round of backups.
type lane chan struct{}

func newPacer(asked func() bool) *pacer {
	return &pacer{asked: asked, backups: make(lane, 1), restores: make(lane, 1)}
}

const (
	// restPerWork leaves backups a twenty-fifth of one processor.
	restPerWork = 24
	// busyFor is how long a node counts as asked after a question.
	busyFor = time.Second
	// longestRest bounds a rest after a disk that hung.
	longestRest = time.Second
	// longestRestored bounds that after a restore, which may have waited for a bucket: who
	// lacks a replica waits too.
	longestRestored = 10 * time.Second
)

// pace is called after so much work of backing up.
func (p *pacer) pace(ctx context.Context, worked time.Duration) {
	p.rest(ctx, p.backups, restPerWork*worked)
}

// rest waits, as long as there are questions, but no longer than longestRest.
func (p *pacer) rest(ctx context.Context, in lane, wait time.Duration) {
	select {
	case <-ctx.Done():
		return
	case in <- struct{}{}:
		defer func() { <-in }()
	}
	if !p.busy() {
		return
	}
	timer := time.NewTimer(min(wait, longestRest))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// restRestore waits after a restore, as long as there are questions, but no longer than
// longestRestored.
func (p *pacer) restRestore(ctx context.Context, wait time.Duration) {
	for wait = min(wait, longestRestored); wait > 0 && ctx.Err() == nil && p.busy(); wait -= longestRest {
		p.rest(ctx, p.restores, wait)
	}
}

// busy reports whether there was a question lately.
func (p *pacer) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.asked() {
		p.mu.busy = now.Add(busyFor)
	}
	return now.Before(p.mu.busy)
}
