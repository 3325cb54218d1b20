package backups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// DefaultDrill is how often a cluster drills a restore: it tries one to see that it works.
const DefaultDrill = 24 * time.Hour

// DrillConfig says what is drilled. Bucket, Partitions, Node and Log are
// required.
type DrillConfig struct {
	Bucket     *backup.Bucket
	Partitions topology.Set     // one of these that has a backup is drilled
	Node       millrace.NodeID  // the node that drills
	Scratch    string           // a directory; empty: the system's for temporary files
	Progress   *backup.Progress // may be nil
	Log        *slog.Logger
}

// ErrNothingToDrill says that none of the partitions has a backup.
var ErrNothingToDrill = errors.New("backups: no partition has a backup to drill")

// Drill restores the newest backup of a random partition into a store of its own, reads
// every row of it, compares its digest and offsets with those of the manifest, and
// records the result in the bucket. What is wrong with the backup becomes the Fault of
// the backup.Drill; an error says why the drill itself could not be done.
func Drill(ctx context.Context, cfg DrillConfig) (*backup.Drill, error) {
	ids, err := cfg.Bucket.AllIDs(ctx)
	if err != nil {
		return nil, err
	}
	maps.DeleteFunc(ids, func(p millrace.Partition, all []string) bool { return len(all) == 0 || !cfg.Partitions.Has(p) })
	if len(ids) == 0 {
		return nil, ErrNothingToDrill
	}
	order := slices.Sorted(maps.Keys(ids))
	p := order[rand.IntN(len(order))]
	began := time.Now()
	d := &backup.Drill{Time: millrace.TimeOf(began), Node: cfg.Node, Partition: p, Backup: ids[p][0]}
	bad, err := drill(ctx, cfg, d)
	if err != nil {
		return nil, err
	}
	if bad != nil {
		d.Fault = bad.Error()
	}
	d.Seconds = time.Since(began).Seconds()
	return d, cfg.Bucket.WriteDrill(ctx, d)
}

// drill restores the backup that d names, and sets d.Bytes. bad is what is wrong with the
// backup; err is why it could not be drilled.
func drill(ctx context.Context, cfg DrillConfig, d *backup.Drill) (bad, err error) {
	m, err := cfg.Bucket.Manifest(ctx, d.Partition, d.Backup)
	if err == nil {
		d.Bytes = m.Bytes()
		cfg.Progress.Expect(d.Bytes)
		rc := RestoreConfig{Bucket: cfg.Bucket, Data: cfg.Scratch, Progress: cfg.Progress, Log: cfg.Log, Store: store.Options{CacheBytes: 8 << 20, MaxDirtyBytes: 16 << 20, Retention: RetentionOf(m)}}
		err = withScratch(rc, func(r *restorer) error {
			if err := r.restorePartition(ctx, &way{from: m, to: m.Applied}); err != nil {
				return err
			}
			if err := same(r.store, m); err != nil {
				return err
			}
			if _, err := r.store.Check(ctx, m.Partition); err != nil {
				return fmt.Errorf("%w: %w", store.ErrRefused, err)
			}
			return nil
		})
	}
	if err != nil && ctx.Err() == nil && damaged(err) {
		return err, nil
	}
	return nil, err
}

// looksForDrills is the longest that a Keeper waits before it looks at the drills of the
// cluster again. So its metrics soon tell a failure that another node found, and that it is
// mended.
const looksForDrills = 10 * time.Minute

// RunDrills drills at intervals until ctx is done, and returns ctx's error; nil at once if
// drills are turned off. All Keepers of a cluster share the interval: it counts from the
// newest drill in the bucket, whichever node did it.
func (k *Keeper) RunDrills(ctx context.Context) error {
	if k.cfg.Drill < 0 {
		return nil
	}
	wait := min(settle, k.cfg.Drill)
	for {
		err := about(ctx, wait)
		if err != nil {
			return err
		}
		if wait, err = k.drillWhenDue(ctx); err != nil && ctx.Err() == nil {
			if !errors.Is(err, ErrNothingToDrill) {
				k.cfg.Log.Error("a restore drill was not done; trying again", "err", err)
			}
			wait = min(again, k.cfg.Drill)
		}
	}
}

// drillWhenDue drills if the last drill of the cluster is longer ago than the interval. It
// returns how long to wait before the next look.
func (k *Keeper) drillWhenDue(ctx context.Context) (time.Duration, error) {
	b, err := k.bucket(ctx)
	if err != nil {
		return 0, err
	}
	last, err := b.Drills(ctx, backup.RecentDrills)
	if err != nil {
		return 0, err
	}
	failing := backup.Failing(last)
	k.drills.look(len(failing) > 0)
	if len(last) > 0 {
		if left := k.cfg.Drill - time.Since(last[0].Time.Std()); left > 0 {
			return min(left, k.cfg.Drill, looksForDrills) + time.Second, nil
		}
	}
	if len(failing) > 0 { // a random choice would rarely fall on these again
		var again topology.Set
		for _, d := range failing {
			again.Add(d.Partition)
		}
		if err := k.drill(ctx, b, again); err != nil && !errors.Is(err, ErrNothingToDrill) {
			return 0, err
		}
	}
	if err := k.drill(ctx, b, topology.All()); err != nil {
		return 0, err
	}
	if last, err = b.Drills(ctx, backup.RecentDrills); err != nil {
		return 0, err
	}
	k.drills.look(len(backup.Failing(last)) > 0)
	return min(k.cfg.Drill, looksForDrills), nil
}

// drill drills a random one of the partitions.
func (k *Keeper) drill(ctx context.Context, b *backup.Bucket, of topology.Set) error {
	d, err := Drill(ctx, DrillConfig{Bucket: b, Partitions: of, Node: k.cfg.Node, Scratch: filepath.Join(k.cfg.Dir, "drill"), Log: k.cfg.Log})
	if err != nil {
		return err
	}
	k.drills.add(d)
	if d.Fault != "" {
		k.cfg.Log.Error("a restore drill failed", "partition", d.Partition, "backup", d.Backup, "err", d.Fault)
	} else {
		k.cfg.Log.Info("a restore drill succeeded", "partition", d.Partition, "backup", d.Backup, "bytes", d.Bytes, "seconds", d.Seconds)
	}
	return nil
}

// drills is what the drills of a Keeper, and of its cluster, have found, for metrics.
type drills struct {
	mu struct {
		sync.Mutex
		last       *backup.Drill // the last drill of this node; nil: none yet
		ok, failed int64         // drills of this node
		failing    bool          // a drill of the cluster failed, and none of the partition succeeded since
	}
}

// look notes whether a drill of the cluster failed and none of its partition succeeded
// since.
func (c *drills) look(failing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.failing = failing
}

func (c *drills) add(d *backup.Drill) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.mu.last = d
	if d.Fault == "" {
		c.mu.ok++
	} else {
		c.mu.failed++
	}
}

// What the metrics of drills are called, and say.
var (
	descDrills      = desc("drills_total", "Restore drills of this node, by outcome.", "outcome")
	descDrillAt     = desc("drill_timestamp_seconds", "When the last restore drill of this node was, 0 none.")
	descDrillTook   = desc("drill_seconds", "How long the last restore drill of this node took.")
	descDrillBytes  = desc("drill_bytes", "Bytes that the last restore drill of this node restored.")
	descDrillFailed = desc("drill_failed", "1 while the newest drill of a partition found a backup that cannot be restored, of the last 20 drills of the cluster, whoever did them.")
)

func (c *drills) describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descDrills, descDrillAt, descDrillTook, descDrillBytes, descDrillFailed} {
		out <- d
	}
}

func (c *drills) collect(out chan<- prometheus.Metric) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last := c.mu.last
	if last == nil {
		last = &backup.Drill{}
	}
	failed := 0.0
	if c.mu.failing {
		failed = 1
	}
	gauge := func(d *prometheus.Desc, v float64) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v)
	}
	gauge(descDrillAt, float64(last.Time)/1000)
	gauge(descDrillTook, last.Seconds)
	gauge(descDrillBytes, float64(last.Bytes))
	gauge(descDrillFailed, failed)
	out <- prometheus.MustNewConstMetric(descDrills, prometheus.CounterValue, float64(c.mu.ok), "ok")
	out <- prometheus.MustNewConstMetric(descDrills, prometheus.CounterValue, float64(c.mu.failed), "failed")
}
