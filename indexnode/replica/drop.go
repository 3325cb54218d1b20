package replica

import (
	"context"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// dropAgain is the pause after a deletion that failed, for example because the disk is
// full.
const dropAgain = 5 * time.Second

// drop begins to delete the next partition that this node is ordered to delete (see
// Replicas.Drop), unless one is being deleted. A deletion counts as a renewal: a replica
// that is assigned to this node again meanwhile waits until the deletion ends, and begins
// with no content.
func (all *Replicas) drop(ctx context.Context, now time.Time) {
	if now.Before(all.dropAfter) || all.dropping != nil {
		return
	}
	wanted, ordered := all.orders()
	turn := slices.Collect(ordered.All())
	next, _ := slices.BinarySearch(turn, all.dropFrom) // one that cannot be deleted must not hold up the others
	for _, p := range slices.Concat(turn[next:], turn[:next]) {
		r := &all.replicas[p]
		if wanted.Has(p) || r.State() != Absent || r.renewal != nil || r.gone {
			continue
		}
		if all.keptByOperator(r) {
			if !r.spared {
				all.cfg.Log.Warn("a partition that is assigned elsewhere is not deleted: an operator has quarantined it", "partition", p, "way_out", "millrace partition release")
			}
			r.spared = true
			continue
		}
		w := &renewal{cancel: func() {}, done: make(chan struct{})}
		r.renewal, all.dropping = w, r
		all.renewals.Go(func() {
			defer poke(all.changed)
			defer close(w.done)
			if w.err = ctx.Err(); w.err == nil {
				w.err = all.delete(r)
			}
		})
		return
	}
}

// keptByOperator reports whether an operator has quarantined what this node has of a
// partition, and has not released it. The operator wants to look into that content, so it
// stays on the disk even if the partition is assigned elsewhere. Memory is asked first,
// since it knows of a quarantine before the store does.
func (all *Replicas) keptByOperator(r *Replica) bool {
	if r.condemnedFor().Reason == ByOperator {
		return true
	}
	err := all.cfg.Store.Quarantined(r.partition)
	return err != nil && whyQuarantined(err).Reason == ByOperator
}

// delete removes everything of a partition from the caches and the disk. The caches may
// then still note that a timeline of it is empty, since uncache removes only what the store
// has; see Replica.dropped.
func (all *Replicas) delete(r *Replica) error {
	r.Barrier() // readers of what is there have ended
	if all.has(r.partition) {
		began := time.Now()
		all.uncache(r)
		if err := all.cfg.Store.DropPartition(r.partition); err != nil {
			return err
		}
		all.cfg.Log.Info("a partition that is assigned elsewhere is deleted", "partition", r.partition, "took", time.Since(began).Round(time.Millisecond))
	}
	if all.cfg.Backups == nil {
		return nil
	}
	return all.cfg.Backups.Forget(r.partition)
}

// uncache removes from the caches what the store has of a partition.
func (all *Replicas) uncache(r *Replica) {
	if err := all.cfg.Host.ForgetPartition(r.partition); err != nil { // the store cannot be read: empty the caches whole
		all.cfg.Host.Forget()
	}
}

// finishDrop notes the outcome of a deletion. It runs in the reconciler.
func (all *Replicas) finishDrop(r *Replica, w *renewal) {
	all.dropping = nil
	if w.err != nil {
		all.dropAfter, all.dropFrom = time.Now().Add(dropAgain), r.partition+1
		all.cfg.Log.Warn("a partition that is assigned elsewhere could not be deleted; trying again", "partition", r.partition, "err", w.err)
		return
	}
	if r.State() != Quarantined { // if it was condemned meanwhile, the cause is still needed
		r.setCause(Why{})
	}
	r.gone, r.dropped, r.sought = true, true, false
	for s := range r.applied {
		r.applied[s].Store(0)
	}
	poke(all.moved)
}

// Held returns the partitions that this node does not host, but of which its disk still
// has something.
func (all *Replicas) Held() (held topology.Set) {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.State() == Absent && all.has(r.partition) {
			held.Add(r.partition)
		}
	}
	return held
}

// has reports whether the disk has something of a partition.
func (all *Replicas) has(p millrace.Partition) bool {
	return all.cfg.Store.Applied(p) != store.Offsets{Content: -1, Features: -1} || all.cfg.Store.Quarantined(p) != nil
}
