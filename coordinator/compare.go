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
	// settleWithin bounds what finding out who is wrong may take: a stream of a
	// partition is made anew for it.
	settleWithin = 10 * time.Minute
	// condemnWithin bounds what taking a replica out may take: its node first keeps
	// what differs. shownWithin is for the cluster to show it.
	condemnWithin = 30 * time.Second
	shownWithin   = 10 * time.Second
)

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
		if bad := c.settle(ctx, s.Map, d); bad != nil {
			unsettled[differs{d.Partition, d.Stream}] = fmt.Sprintf("%s: %v", d, bad)
			continue
		}
		c.cfg.Log.Info("the replica that is wrong is made anew", "difference", d)
	}
	return unsettled, unseen, err
}

// settle has the replicas taken out and renewed that are wrong, one after the other.
// To find out which ones they are may take minutes. So each is judged by the cluster as
// it is then, while nobody else takes replicas out.
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

// condemn has a replica taken out, and returns once the cluster shows it: whoever
// takes one out next goes by that.
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
