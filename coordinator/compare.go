package coordinator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/digest"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/wait"
)

const (
	// settleWithin bounds how long it may take to find out which replica is wrong: what
	// the log makes of a partition's stream is computed anew for it.
	settleWithin = 10 * time.Minute
	// condemnWithin bounds how long it may take to take a replica out. Its node first
	// keeps a copy of what differs.
	condemnWithin = 30 * time.Second
	// shownWithin bounds the wait until the cluster map shows that it is out.
	shownWithin = 10 * time.Second
)

// compare compares all replicas every CompareEvery until ctx ends. It has replicas made anew
// that differ from what the log makes of their partition. If it cannot find out which
// replica is wrong, it raises an alarm for a person.
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

// differing describes in words each difference between replicas that is not settled.
type differing map[differs]string

// differs is what replicas differ in: a stream (content or features) of a partition.
type differs struct {
	partition millrace.Partition
	stream    kafka.Stream
}

// first returns the description for the lowest partition. d must not be empty.
func (d differing) first() string {
	return d[slices.MinFunc(slices.Collect(maps.Keys(d)), func(a, b differs) int {
		return cmp.Or(cmp.Compare(a.partition, b.partition), cmp.Compare(a.stream, b.stream))
	})]
}

// tellDiffer notes what a comparison found. For the partitions in unseen, which it could not
// compare completely, what was known before is kept as well.
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

// compareOnce compares all replicas and settles the differences. It returns those that it
// could not settle, and the partitions that it could not compare completely; err says why.
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
		if bad := c.settle(ctx, s.Map, d); bad != nil {
			unsettled[differs{d.Partition, d.Stream}] = fmt.Sprintf("%s: %v", d, bad)
			continue
		}
		c.cfg.Log.Info("the replica that is wrong is made anew", "difference", d)
	}
	return unsettled, unseen, err
}

// settle has the wrong replicas made anew, one after the other. It first finds out which
// they are, if that is not known, which may take minutes. Each replica is then taken out
// under the cluster's lock ([cluster.Client.Alone]) and by the cluster's state at that
// moment, so that no two replicas of a partition are out at once.
func (c *Coordinator) settle(ctx context.Context, m *topology.Map, d *digest.Difference) error {
	if len(d.Wrong) == 0 {
		witness, cancel := context.WithTimeout(ctx, settleWithin)
		defer cancel()
		if err := digest.Witness(witness, m, c.cfg.Dial, d); err != nil {
			return err
		}
	}
	var errs []error
	for _, id := range d.Wrong {
		err := c.cfg.Cluster.Alone(ctx, fmt.Sprintf("have partition %d on %s made anew, which differs", d.Partition, id), func(ctx context.Context) error {
			return c.condemn(ctx, d, id)
		})
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// condemn has a replica taken out. It returns once the cluster map shows that, or after
// shownWithin: the next one to take a replica out decides by the map.
func (c *Coordinator) condemn(ctx context.Context, d *digest.Difference, id millrace.NodeID) error {
	order, cancel := context.WithTimeout(ctx, condemnWithin)
	defer cancel()
	s, err := steering.Read(order, c.cfg.Cluster)
	if err != nil {
		return err
	}
	if err := digest.Condemn(order, s.Map, c.cfg.Dial, d, id); err != nil {
		return err
	}
	ctx, cancel = context.WithTimeout(ctx, shownWithin)
	defer cancel()
	for {
		s, err := steering.Read(ctx, c.cfg.Cluster)
		if err == nil {
			if ready := s.Map.Ready(id); !ready.Has(d.Partition) {
				return nil
			}
		}
		if wait.For(ctx, 200*time.Millisecond) != nil {
			return nil
		}
	}
}
