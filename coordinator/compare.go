package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/digest"
	"github.com/millrace/millrace/internal/kafka"
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
		found, unseen, err := c.compareOnce(ctx)
		if err != nil && ctx.Err() == nil {
			c.cfg.Log.Warn("not all replicas could be compared", "err", err)
		}
		c.tellDiffer(found, unseen)
	}
}

// differing is replicas that differ, of which it is not known which is wrong: in
// words, by what they are of.
type differing map[differs]string

type differs struct {
	partition millrace.Partition
	stream    kafka.Stream
}

// first is what is said of the first partition.
func (d differing) first() string {
	return d[slices.MinFunc(slices.Collect(maps.Keys(d)), func(a, b differs) int {
		return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.stream, b.stream))
	})]
}

// tellDiffer tells what a comparison found. Of partitions that it did not see whole it
// says nothing: what was known of them before stays beside what it found.
func (c *Coordinator) tellDiffer(found differing, unseen topology.Set) {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := differing{}
	for of, what := range c.mu.differ {
		if unseen.Has(of.partition) {
			all[of] = what
		}
	}
	maps.Copy(all, found)
	c.mu.differ = all
}

// compareOnce compares all replicas, and returns what is not settled, and of which
// partitions it has not seen all.
func (c *Coordinator) compareOnce(ctx context.Context) (unsettled differing, unseen topology.Set, err error) {
	s, err := steering.Read(ctx, c.cfg.Cluster)
	if err != nil {
		return nil, topology.All(), err
	}
	unsettled = differing{}
	differences, unseen, err := digest.Compare(ctx, s.Map, c.cfg.Dial)
	for i := range differences {
		d := &differences[i]
		c.cfg.Log.Error("replicas differ", "difference", d)
		settle, cancel := context.WithTimeout(ctx, settleWithin)
		bad := digest.Settle(settle, s.Map, c.cfg.Dial, d)
		cancel()
		if bad != nil {
			unsettled[differs{d.Partition, d.Stream}] = fmt.Sprintf("%s: %v", d, bad)
			continue
		}
		c.cfg.Log.Info("the replica that is wrong is made anew", "difference", d)
	}
	return unsettled, unseen, err
}
