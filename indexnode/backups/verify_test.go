package backups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster"
)

// backedUp returns a bench with backups of some partitions, its bucket, and
// what it backed up.
func backedUp(t *testing.T, change func(*KeeperConfig)) (*bench, *Keeper, *backup.Bucket, cluster.Set) {
	t.Helper()
	b := newBench(t)
	b.post(200)
	k := b.keeper(b.store, "a", change)
	must(t, k.Backup(t.Context()))
	bucket, err := k.bucket(t.Context())
	must(t, err)
	ids, err := bucket.AllIDs(t.Context())
	must(t, err)
	var set cluster.Set
	for p := range ids {
		set.Add(p)
	}
	return b, k, bucket, set
}

// lie writes a backup of a partition whose every byte is good, and that says
// something else of what it is.
func lie(t *testing.T, b *backup.Bucket, p millrace.Partition, change func(*backup.Manifest)) *backup.Manifest {
	t.Helper()
	ids, err := b.IDs(t.Context(), p)
	must(t, err)
	m, err := b.Manifest(t.Context(), p, ids[0])
	must(t, err)
	change(m)
	must(t, b.WriteManifest(t.Context(), m))
	return m
}

// What only a restore refuses is found by the verification that restores, all of
// it, and by a restore of the same backups; the others are restorable for both.
func TestVerifyRestores(t *testing.T) {
	b, _, bucket, set := backedUp(t, nil)
	all := slices.Collect(set.All())
	lies := map[millrace.Partition]*backup.Manifest{
		all[0]: lie(t, bucket, all[0], func(m *backup.Manifest) { m.Digest.Content++ }),
		all[1]: lie(t, bucket, all[1], func(m *backup.Manifest) { m.Applied.Content++ }),
		all[2]: lie(t, bucket, all[2], func(m *backup.Manifest) { m.Files = m.Files[:0] }),
	}
	var open, found []*backup.Damage
	_, err := bucket.Verify(t.Context(), backup.DepthOpen, func(d *backup.Damage) { open = append(open, d) })
	if must(t, err); len(open) > 0 {
		t.Errorf("the bytes are good, and it says %v", open)
	}
	progress := backup.NewProgress(0)
	good, err := Verify(t.Context(), VerifyConfig{Bucket: bucket, Partitions: set, Scratch: filepath.Join(b.dir, "scratch"), Progress: progress, Log: slog.New(slog.DiscardHandler), Report: func(d *backup.Damage) { found = append(found, d) }})
	if must(t, err); len(found) != len(lies) {
		t.Errorf("%d damaged, and found are %v", len(lies), found)
	}
	if s := progress.Now(); s.Done < s.Total || s.Total == 0 {
		t.Errorf("it is over, and its progress is %v", s)
	}
	for _, p := range all {
		m := lies[p]
		_, err := RestoreData(t.Context(), RestoreConfig{Bucket: bucket, Partitions: one(p), Data: filepath.Join(b.dir, fmt.Sprint("data-", p)), Store: store.Options{MinFreeBytes: -1}, Log: slog.New(slog.DiscardHandler)})
		if (err != nil) != (m != nil) {
			t.Errorf("partition %d: restoring it gives %v", p, err)
		}
		if m == nil {
			if len(good.Backups[p]) != 1 {
				t.Errorf("partition %d: restorable are %v", p, good.Backups[p])
			}
			continue
		}
		if slices.Contains(good.Backups[p], m.ID) || len(good.Backups[p]) != 1 {
			t.Errorf("partition %d: restorable are %v, and %s is not", p, good.Backups[p], m.ID)
		}
		if !slices.ContainsFunc(found, func(d *backup.Damage) bool {
			return d.Kind == Unrestorable && d.Object == backup.ObjectOf(p, m.ID, "")
		}) {
			t.Errorf("partition %d: nobody tells of %s", p, m.ID)
		}
	}
}

func one(p millrace.Partition) (set cluster.Set) {
	set.Add(p)
	return set
}

// A drill restores, and tells what it found in the bucket and in metrics. The
// keepers of a cluster share their drills.
func TestDrill(t *testing.T) {
	b, k, bucket, set := backedUp(t, func(c *KeeperConfig) { c.Drill = time.Hour })
	other := b.keeper(b.store, "b", func(c *KeeperConfig) { c.Drill = time.Hour })
	for range 3 {
		for _, each := range []*Keeper{k, other} {
			wait, err := each.drillWhenDue(t.Context())
			if must(t, err); wait <= 0 || wait > time.Hour+time.Second {
				t.Errorf("the next drill is in %v", wait)
			}
		}
	}
	drills, err := bucket.Drills(t.Context(), 10)
	if must(t, err); len(drills) != 1 || drills[0].Fault != "" || drills[0].Node != "a" || drills[0].Bytes == 0 {
		t.Fatalf("drills %+v", drills)
	}
	if got := gather(t, k); got["millrace_backup_drills_total ok"] != 1 || got["millrace_backup_drill_failed"] != 0 || got["millrace_backup_drill_bytes"] != float64(drills[0].Bytes) {
		t.Errorf("metrics %v", got)
	}
	p := slices.Collect(set.All())[0]
	lie(t, bucket, p, func(m *backup.Manifest) { m.Digest.Features++ })
	d, err := Drill(t.Context(), DrillConfig{Bucket: bucket, Partitions: one(p), Node: "c", Scratch: b.dir, Log: slog.New(slog.DiscardHandler)})
	if must(t, err); d.Fault == "" {
		t.Error("a backup with another digest was restored")
	}
	k.drills.add(d)
	if got := gather(t, k); got["millrace_backup_drills_total failed"] != 1 || got["millrace_backup_drill_failed"] != 1 {
		t.Errorf("metrics %v", got)
	}
	if left, err := filepath.Glob(filepath.Join(b.dir, "millrace-scratch-*")); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	if _, err := Drill(t.Context(), DrillConfig{Bucket: bucket, Node: "c", Log: slog.New(slog.DiscardHandler)}); !errors.Is(err, ErrNothingToDrill) {
		t.Errorf("of no partition: %v", err)
	}
	ctx, stop := context.WithCancel(t.Context())
	stop()
	if _, err := Drill(ctx, DrillConfig{Bucket: bucket, Partitions: set, Node: "c", Log: slog.New(slog.DiscardHandler)}); err == nil {
		t.Error("a drill that was stopped has a result")
	}
}

// gather returns a keeper's metrics, by name and label.
func gather(t *testing.T, k *Keeper) map[string]float64 {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	must(t, r.Register(k))
	families, err := r.Gather()
	must(t, err)
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			all[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return all
}
