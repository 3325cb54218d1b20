package coordinator

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/digest"
)

// settleWithin bounds what finding out who is wrong may take: a stream of a
// partition is made anew for it.
const settleWithin = 10 * time.Minute

// compare compares all replicas now and then for as long as it leads, and has
// those replaced that differ from what their log makes of a replica. Where that
// cannot be found out, an alarm waits for a person.
func (c *Coordinator) compare(ctx context.Context) {
	if c.cfg.Dial == nil || c.cfg.CompareEvery < 0 {
		return
	}
	tick := time.NewTicker(c.cfg.CompareEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		found, err := c.compareOnce(ctx)
		if err != nil && ctx.Err() == nil {
			c.cfg.Log.Warn("not all replicas could be compared", "err", err)
		}
		c.mu.Lock()
		c.mu.differ = found
		c.mu.Unlock()
	}
}

// compareOnce compares all replicas, and returns in words what is not settled.
func (c *Coordinator) compareOnce(ctx context.Context) (unsettled []string, err error) {
	s, err := steering.Read(ctx, c.cfg.Cluster)
	if err != nil {
		return nil, err
	}
	differences, err := digest.Compare(ctx, s.Map, c.cfg.Dial)
	for i := range differences {
		d := &differences[i]
		c.cfg.Log.Error("replicas differ", "difference", d)
		settle, cancel := context.WithTimeout(ctx, settleWithin)
		bad := digest.Settle(settle, s.Map, c.cfg.Dial, d)
		cancel()
		if bad != nil {
			unsettled = append(unsettled, fmt.Sprintf("%s: %v", d, bad))
			continue
		}
		c.cfg.Log.Info("the replica that is wrong is made anew", "difference", d)
	}
	return unsettled, err
}
