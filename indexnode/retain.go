package indexnode

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/wait"
)

// sweepEvery is how often the space of what retention dropped is reclaimed. A record that
// comes to a timeline reclaims the space there at once; this is for the other timelines.
const sweepEvery = time.Hour

// sweep reclaims space until ctx is done, one partition after the other. It returns nil at
// once if there is no retention.
func (h *hosting) sweep(ctx context.Context) error {
	n := h.node
	for len(n.cfg.Store.Retention) > 0 {
		if err := wait.For(ctx, sweepEvery); err != nil {
			return err
		}
		answering, _, _ := n.replicas.Answering(time.Now())
		for p := range answering.All() {
			if err := n.store.Sweep(ctx, p, nil); err != nil && ctx.Err() == nil {
				n.log.Error("reclaiming what retention dropped", "partition", p, "err", err)
			}
		}
	}
	return nil
}
