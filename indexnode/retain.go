package indexnode

import (
	"context"
	"math"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/query"
)

// Retention drops records in the store by the log alone: by age against the
// log's clock, by count with each record that comes. What is cached must not
// show more than the store would:
//
//   - A timeline that retention bounds by count is not continued, since the
//     cache does not know what falls out at its end; it is read anew.
//   - Records that are too old stay where they are, and a question's window is
//     cut to what the partition's clock, read with its offsets, keeps.

// ages reports whether any type is kept by age.
func (n *Node) ages() bool {
	for _, r := range n.cfg.Store.Retention {
		if r.MaxAge > 0 {
			return true
		}
	}
	return false
}

// oldest returns the oldest time that is kept of a type at an instant of the
// log.
func (n *Node) oldest(t millrace.ContentType, clock millrace.Time) millrace.Time {
	if r := n.cfg.Store.Retention[t]; r.MaxAge > 0 {
		return clock - millrace.Time(r.MaxAge.Milliseconds())
	}
	return math.MinInt64
}

// keeps cuts the window of what is added to q next to what is kept of a type.
func (n *Node) keeps(q *query.Query, t millrace.ContentType, v *view) {
	if n.aged {
		q.NotBefore(n.oldest(t, v.Clock))
	}
}

// sweepEvery is how often the space of what retention dropped is reclaimed
// where no record comes to do so.
const sweepEvery = time.Hour

// sweep reclaims space until ctx is done, one partition after the other.
func (h *hosting) sweep(ctx context.Context) error {
	n := h.node
	for len(n.cfg.Store.Retention) > 0 {
		if err := pause(ctx, sweepEvery); err != nil {
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

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
