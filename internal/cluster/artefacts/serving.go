package artefacts

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/cluster/documents"
)

// keepAgain is how soon bytes are read again that could not be.
const keepAgain = 5 * time.Second

// keepServing keeps on disk the bytes of all that serves, also of what this process
// has no use for: a restoration may have no other directory.
func (a *Kind) keepServing(ctx context.Context) {
	for {
		changed, again := a.Changed(), (<-chan time.Time)(nil)
		if !a.keepAll(ctx) {
			again = time.After(keepAgain)
		}
		select {
		case <-ctx.Done():
			return
		case <-a.c.Context().Done():
			return
		case <-changed:
		case <-again:
		}
	}
}

// keepAll reports whether all bytes are there, or are written once there is space.
func (a *Kind) keepAll(ctx context.Context) (all bool) {
	ledgers, _ := a.state.Get()
	all = true
	for name, l := range ledgers {
		e, serves := l.Find(l.Serving)
		v := Version{name, e.Version, e.Sum}
		if !serves || documents.OnDisk(a.file(e.Sum), e) || a.Unkept(v) != nil {
			continue
		}
		if _, err := a.Body(ctx, v); err != nil {
			all = false
		}
	}
	return all
}
