package coordinator

import (
	"context"
	"fmt"
	"maps"
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
		c.tellDiffer(found, err)
	}
}

// differing is replicas that differ, of which it is not known which is wrong: in
// words, by their partition and stream.
type differing map[string]string

// tellDiffer tells what a comparison found. One that did not see all says nothing of
// what it did not see: what was known before stays beside what it found.
func (c *Coordinator) tellDiffer(found differing, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		c.mu.differ = found
		return
	}
	all := differing{}
	maps.Copy(all, c.mu.differ)
	maps.Copy(all, found)
	c.mu.differ = all
}

// compareOnce compares all replicas, and returns what is not settled.
func (c *Coordinator) compareOnce(ctx context.Context) (unsettled differing, err error) {
	s, err := steering.Read(ctx, c.cfg.Cluster)
	if err != nil {
		return nil, err
	}
	unsettled = differing{}
	differences, err := digest.Compare(ctx, s.Map, c.cfg.Dial)
	for i := range differences {
		d := &differences[i]
		c.cfg.Log.Error("replicas differ", "difference", d)
		settle, cancel := context.WithTimeout(ctx, settleWithin)
		bad := digest.Settle(settle, s.Map, c.cfg.Dial, d)
		cancel()
		if bad != nil {
			unsettled[fmt.Sprint(d.Partition, d.Stream)] = fmt.Sprintf("%s: %v", d, bad)
			continue
		}
		c.cfg.Log.Info("the replica that is wrong is made anew", "difference", d)
	}
	return unsettled, err
}
