package artefacts

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/cluster/documents"
)

// keepAgain is the pause before bytes that could not be read are read again.
const keepAgain = 5 * time.Second

// keepServing keeps on disk the bytes of all versions that serve, even those that this
// process does not use: if etcd is lost, no other directory may have them to restore from.
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

// keepAll reads the bytes that are not on disk yet, which has them written there. It
// reports whether it could read all of them; a write that failed is tried again elsewhere.
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
