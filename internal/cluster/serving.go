package cluster

import (
	"context"
	"time"
)

// keepAgain is how soon bytes are read again that could not be.

// keepServing keeps on disk the bytes of all that serves, also of what this process
// has no use for: a restoration may have no other directory.
func (a *Artefacts) keepServing(ctx context.Context) {
	for {
		changed, again := a.Changed(), (<-chan time.Time)(nil)
		if !a.keepAll(ctx) {
			again = time.After(keepAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.c.ctx.Done():
			return
		case <-changed:
		case <-again:
		}
	}
}

// keepAll reports whether all bytes are there, or are written once there is space.
func (a *Artefacts) keepAll(ctx context.Context) (all bool) {
	ledgers, _ := a.state.Get()
	all = true
	for name, l := range ledgers {
		e, serves := l.find(l.Serving)
		v := Version{name, e.Version, e.Sum}
		if !serves || onDisk(a.file(e.Sum), e) || a.Unkept(v) != nil {
			continue
		}
		if _, err := a.Body(ctx, v); err != nil {
			all = false
		}
	}
	return all
}
