package backup

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/backup/objects"
)

// maxRecords is how many drills an expiry keeps, how many healings, and how many acts.
const maxRecords = 1000

// Drill is the result of a restore drill, in which a node restores a backup to see whether
// it can. [Bucket.WriteDrill] sets Format, Cluster and ID.
type Drill struct {
	Format    int                `json:"format"`
	Cluster   Identity           `json:"cluster"`
	ID        string             `json:"id"`
	Time      millrace.Time      `json:"time"`
	Node      millrace.NodeID    `json:"node"` // which node did it
	Partition millrace.Partition `json:"partition"`
	Backup    string             `json:"backup"`  // the id of the backup that was restored
	Bytes     int64              `json:"bytes"`   // the size of the backup's files
	Seconds   float64            `json:"seconds"` // how long the restore took
	Fault     string             `json:"fault"`   // why the drill failed; empty if it did not
}

// WriteDrill records the result of a drill.
func (b *Bucket) WriteDrill(ctx context.Context, d *Drill) error {
	d.Format = format
	return b.createRecord(ctx, drillsPrefix, d.Time, d.Node, func(cluster Identity, id string) any {
		d.Cluster, d.ID = cluster, id
		return d
	})
}

// Drills reads the results of up to most drills, the newest first. It leaves out damaged
// ones.
func (b *Bucket) Drills(ctx context.Context, most int) ([]*Drill, error) {
	return records(ctx, b, drillsPrefix, most, func(d *Drill) (*Identity, *string) { return &d.Cluster, &d.ID })
}

// RecentDrills is how many of the newest drills callers read for [Failing].
const RecentDrills = 20

// Failing returns the drills that failed and are the newest of their partition. A later
// drill of another partition does not excuse them. drills has the newest first.
func Failing(drills []*Drill) (failing []*Drill) {
	seen := map[millrace.Partition]bool{}
	for _, d := range drills {
		if d.Fault != "" && !seen[d.Partition] {
			failing = append(failing, d)
		}
		seen[d.Partition] = true
	}
	return failing
}

// Healing is the record of damage to a node's copy of a partition that was
// replaced by a good one. [Bucket.WriteHealing] sets Format, Cluster and ID.
type Healing struct {
	Format    int                `json:"format"`
	Cluster   Identity           `json:"cluster"`
	ID        string             `json:"id"`
	Time      millrace.Time      `json:"time"` // when the good copy was in place; it still had to catch up with the log then
	Node      millrace.NodeID    `json:"node"` // the node whose copy it was
	Partition millrace.Partition `json:"partition"`
	Damage    string             `json:"damage"`  // what was found
	From      string             `json:"from"`    // the backup; empty: the log, from its beginning
	Bytes     int64              `json:"bytes"`   // the size of the backup's files; 0 without one
	Seconds   float64            `json:"seconds"` // how long it took to put the good copy in place
}

// WriteHealing records damage that was healed.
func (b *Bucket) WriteHealing(ctx context.Context, h *Healing) error {
	h.Format = format
	return b.createRecord(ctx, healingsPrefix, h.Time, h.Node, func(cluster Identity, id string) any {
		h.Cluster, h.ID = cluster, id
		return h
	})
}

// Healings reads up to most records of damage that was healed, the newest first. It leaves
// out records that are damaged themselves.
func (b *Bucket) Healings(ctx context.Context, most int) ([]*Healing, error) {
	return records(ctx, b, healingsPrefix, most, func(h *Healing) (*Identity, *string) { return &h.Cluster, &h.ID })
}

// Act is what somebody did to the bucket or with it, such as a removal or a restore.
// [Bucket.WriteAct] sets Format, Cluster, ID and the time.
type Act struct {
	Format  int      `json:"format"`
	Cluster Identity `json:"cluster"`
	ID      string   `json:"id"`
	audit.Entry
}

// WriteAct records what somebody is about to do. If it fails, the caller must not do it,
// since nothing would tell who did.
func (b *Bucket) WriteAct(ctx context.Context, e audit.Entry) error {
	e.Time = time.Now().UTC()
	return b.createRecord(ctx, actsPrefix, millrace.TimeOf(e.Time), millrace.NodeID(e.Who), func(cluster Identity, id string) any {
		return &Act{Format: format, Cluster: cluster, ID: id, Entry: e}
	})
}

// Acts reads up to most acts, the newest first. It leaves out damaged ones.
func (b *Bucket) Acts(ctx context.Context, most int) ([]*Act, error) {
	return records(ctx, b, actsPrefix, most, func(a *Act) (*Identity, *string) { return &a.Cluster, &a.ID })
}

// maxAtOnce bounds how many ids createRecord tries. Records that a node writes at the same
// time try the same ids, and a node heals far fewer partitions at a time.
const maxAtOnce = 100

// createRecord writes a record whose id sorts after those that are there. as returns the
// record for the owner of the bucket and an id. If another record is written with that id
// at the same time, createRecord tries the next one.
func (b *Bucket) createRecord(ctx context.Context, prefix string, at millrace.Time, node millrace.NodeID, as func(Identity, string) any) error {
	owner, err := b.owner(ctx)
	if err != nil {
		return err
	}
	ids, err := b.recordIDs(ctx, prefix)
	if err != nil {
		return err
	}
	last := ""
	if len(ids) > 0 {
		last = ids[0]
	}
	for tries := 1; ; tries++ {
		last = newID(at.Std(), node, last)
		err := b.createObject(ctx, prefix+last+objectSuffix, as(owner, last))
		if tries == maxAtOnce || !objects.IsThere(err) {
			return err
		}
	}
}

// records reads up to most records, the newest first, and leaves out damaged ones. of
// returns the fields of a record for its cluster and its id.
func records[R any](ctx context.Context, b *Bucket, prefix string, most int, of func(*R) (*Identity, *string)) ([]*R, error) {
	ids, err := b.recordIDs(ctx, prefix)
	if err != nil {
		return nil, err
	}
	all, err := parallel(ctx, ids[:min(most, len(ids))], func(ctx context.Context, id string) (*R, error) {
		r := new(R)
		cluster, is := of(r)
		var damage *Damage
		_, err := b.readOurs(ctx, prefix+id+objectSuffix, r, cluster)
		if errors.As(err, &damage) || err == nil && *is != id {
			return nil, nil
		}
		return r, err
	})
	return slices.DeleteFunc(all, func(r *R) bool { return r == nil }), err
}

// recordIDs returns the ids of records, the newest first.
func (b *Bucket) recordIDs(ctx context.Context, prefix string) (ids []string, err error) {
	err = b.objects.List(ctx, prefix, func(o objects.Object) error {
		if at := parse(o.Name); (at.kind == isDrill || at.kind == isHealing || at.kind == isAct) && !o.Odd && !ahead(at.id) {
			ids = append(ids, at.id)
		}
		return nil
	})
	newestFirst(ids)
	return ids, err
}
