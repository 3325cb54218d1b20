package backups

import (
	"context"
	"sync"
	"time"
)

// pacer lets requests to the node go before backups and restores. A system call that
// waits for a disk holds a processor as a computation does, and Go has no priorities. So
// backups and restores rest after each piece of work, as long as requests come.
type pacer struct {
	asked func() bool // whether a request came since the last call
	mu    struct {
		sync.Mutex
		busy time.Time // until then the node counts as busy with requests
	}
	backups, restores lane
}

// lane has room for one goroutine that rests: those of one lane rest one after the other.
// Restores have a lane of their own, so that they do not wait for the many rests of a
// round of backups.
type lane chan struct{}

func newPacer(asked func() bool) *pacer {
	return &pacer{asked: asked, backups: make(lane, 1), restores: make(lane, 1)}
}

const (
	// restPerWork is the rest after a piece of work, as a multiple of its time: it leaves
	// backups a twenty-fifth of one processor.
	restPerWork = 24
	// busyFor is how long a node counts as busy after a request.
	busyFor = time.Second
	// longestRest bounds one rest, since work may have taken long only because a disk hung.
	longestRest = time.Second
	// longestRestored bounds the rests after a restore. The restore may have taken long
	// only because of the bucket, and the next replica waits to be restored.
	longestRestored = 10 * time.Second
)

// pace rests after a piece of work of a backup that took worked.
func (p *pacer) pace(ctx context.Context, worked time.Duration) {
	p.rest(ctx, p.backups, restPerWork*worked)
}

// rest waits once, if requests come: for wait, but no longer than longestRest. It first
// waits for its turn in the lane.
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

// restRestore rests after a restore for as long as requests come: for wait, but no longer
// than longestRestored.
func (p *pacer) restRestore(ctx context.Context, wait time.Duration) {
	for wait = min(wait, longestRestored); wait > 0 && ctx.Err() == nil && p.busy(); wait -= longestRest {
		p.rest(ctx, p.restores, wait)
	}
}

// busy reports whether a request came within the last busyFor.
func (p *pacer) busy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.asked() {
		p.mu.busy = now.Add(busyFor)
	}
	return now.Before(p.mu.busy)
}
