package backups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// backedUp returns a bench with backups of some partitions, its bucket, and
// what it backed up.
func backedUp(t *testing.T, change func(*KeeperConfig)) (*bench, *Keeper, *backup.Bucket, topology.Set) {
	t.Helper()
	b := newBench(t)
	b.post(200)
	k := b.keeper(b.store, "a", change)
	must(t, k.Backup(t.Context()))
	bucket, err := k.bucket(t.Context())
	must(t, err)
	ids, err := bucket.AllIDs(t.Context())
	must(t, err)
	var set topology.Set
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
		all[2]: lie(t, bucket, all[2], func(m *backup.Manifest) { m.Clock++ }),
		all[3]: lie(t, bucket, all[3], func(m *backup.Manifest) {
			ids, err := bucket.IDs(t.Context(), all[4])
			must(t, err)
			other, err := bucket.Manifest(t.Context(), all[4], ids[0])
			must(t, err)
			m.Files, m.Applied, m.Digest = other.Files, other.Applied, other.Digest
		}),
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
		var older *backup.Manifest // that is taken instead
		_, err := RestoreData(t.Context(), RestoreConfig{
			Bucket: bucket, Partitions: one(p), Data: filepath.Join(b.dir, fmt.Sprint("data-", p)), Store: store.Options{MinFreeBytes: -1}, Log: slog.New(slog.DiscardHandler),
			Older: func(_ millrace.Partition, instead *backup.Manifest, _ error) { older = instead },
		})
		if must(t, err); (older != nil) != (m != nil) || older != nil && older.ID != good.Backups[p][0] {
			t.Errorf("partition %d: restoring it takes %v instead", p, older)
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

func one(p millrace.Partition) (set topology.Set) {
	set.Add(p)
	return set
}

// A drill restores, and tells what it found in the bucket and in metrics. The
// keepers of a cluster share their drills.
func TestDrill(t *testing.T) {
	b, k, bucket, set := backedUp(t, func(c *KeeperConfig) { c.Drill = time.Hour })
	other := b.keeper(b.store, "b", func(c *KeeperConfig) { c.Drill = time.Hour })
	began := time.Now()
	for i := range 3 {
		for _, each := range []*Keeper{k, other} {
			want := looksForDrills + time.Second
			if i == 0 && each == k {
				want = looksForDrills // it drilled just now
			}
			wait, err := each.drillWhenDue(t.Context())
			if must(t, err); wait != want {
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
	if got := gather(t, k); got["millrace_backup_drill_timestamp_seconds"] != float64(drills[0].Time)/1000 || got["millrace_backup_drill_seconds"] != drills[0].Seconds || drills[0].Seconds <= 0 || drills[0].Seconds > time.Since(began).Seconds() {
		t.Errorf("metrics %v of %+v", got, drills[0])
	}
	if got := gather(t, other); got["millrace_backup_drill_timestamp_seconds"] != 0 || got["millrace_backup_drills_total ok"] != 0 {
		t.Errorf("metrics of a keeper that drilled nothing: %v", got)
	}
	k.drills.add(&backup.Drill{Fault: "it lacks a file"})
	if got := gather(t, k); got["millrace_backup_drills_total ok"] != 1 || got["millrace_backup_drills_total failed"] != 1 {
		t.Errorf("metrics %v after one that failed", got)
	}
	p := slices.Collect(set.All())[0]
	lie(t, bucket, p, func(m *backup.Manifest) { m.Digest.Features++ })
	d, err := Drill(t.Context(), DrillConfig{Bucket: bucket, Partitions: one(p), Node: "c", Scratch: b.dir, Log: slog.New(slog.DiscardHandler)})
	if must(t, err); d.Fault == "" {
		t.Error("a backup with another digest was restored")
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

// A drill that failed is told by all keepers, also after a restart, until one of the
// same partition succeeds; the next drill that is due tries it again.
func TestADrillThatFailedIsToldUntilItSucceeds(t *testing.T) {
	b, k, bucket, set := backedUp(t, func(c *KeeperConfig) { c.Drill = time.Hour })
	other := b.keeper(b.store, "b", func(c *KeeperConfig) { c.Drill = time.Hour })
	tell := func(want float64, why string) {
		t.Helper()
		for _, each := range []*Keeper{k, other} {
			wait, err := each.drillWhenDue(t.Context())
			if must(t, err); wait > looksForDrills+time.Second {
				t.Errorf("%s: it looks again in %v", why, wait)
			}
			if got := gather(t, each)["millrace_backup_drill_failed"]; got != want {
				t.Errorf("%s: %s tells %v, want %v", why, each.cfg.Node, got, want)
			}
		}
	}
	at := time.Now().Add(-30 * time.Minute) // some time before now, so that the records are in an order
	record := func(p millrace.Partition, fault string) {
		t.Helper()
		at = at.Add(time.Minute)
		must(t, bucket.WriteDrill(t.Context(), &backup.Drill{Time: millrace.TimeOf(at), Node: "c", Partition: p, Fault: fault}))
	}
	all := slices.Collect(set.All())
	record(all[0], "it lacks a file")
	tell(1, "one failed")
	record(all[1], "")
	tell(1, "one of another partition succeeded")
	other = b.keeper(b.store, "b-again", func(c *KeeperConfig) { c.Drill = time.Hour })
	tell(1, "a node was restarted")
	record(all[0], "")
	tell(0, "it was drilled again")
	record(all[0], "it lacks another")
	k.cfg.Drill = time.Minute // so that it is due
	tell(0, "it was tried again")
	if drills, err := bucket.Drills(t.Context(), 2); err != nil || len(drills) < 2 || drills[1].Partition != all[0] || drills[1].Node != "a" {
		t.Errorf("drills %+v, %v; want that of the partition that failed, and one more", drills, err)
	}
}

// A keeper drills again and again, whatever fails, and not at all if it is told so.
func TestAKeeperDrillsAgainAndAgain(t *testing.T) {
	b, first, bucket, _ := backedUp(t, func(c *KeeperConfig) { c.Drill = -1 })
	must(t, first.RunDrills(t.Context()))
	var said lines
	asked := 0
	k := b.keeper(b.store, "b", func(c *KeeperConfig) {
		c.Drill, c.Log = time.Millisecond, said.log()
		c.Identity = func(context.Context) (backup.Identity, error) {
			if asked++; asked < 3 {
				return backup.Identity{}, errFull
			}
			return backup.Identity{Name: "test", ID: "1"}, nil
		}
	})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- k.RunDrills(ctx) }()
	for len(done) == 0 {
		if all, err := bucket.Drills(t.Context(), 9); err == nil && len(all) >= 2 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	stop()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("it ends with %v", err)
	}
	if n, of := said.count("a restore drill was not done"), said.count("a restore drill succeeded"); n != 2 || of < 2 {
		t.Errorf("%d drills were not done, and %d were", n, of)
	}
	// A bucket of which there is nothing to drill is no failure.
	empty := &bench{t: t, dir: t.TempDir(), store: b.store}
	must(t, os.Mkdir(filepath.Join(empty.dir, "bucket"), 0o755))
	var nothing lines
	k = empty.keeper(b.store, "c", func(c *KeeperConfig) { c.Drill, c.Log = time.Millisecond, nothing.log() })
	if _, err := k.drillWhenDue(t.Context()); !errors.Is(err, ErrNothingToDrill) {
		t.Errorf("of no backups: %v", err)
	}
}

// lines is what was logged.
type lines struct {
	mu  sync.Mutex
	all []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(b))
	return len(b), nil
}

func (l *lines) log() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// count returns how many lines have a text.
func (l *lines) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}

// What a store, a tail or a decoder refuses for its bytes is damage; that something cannot be
// read, or held back for another reason, is none.
func TestWhatIsDamage(t *testing.T) {
	var into struct{ N int }
	for _, c := range []struct {
		err     error
		damaged bool
	}{
		{store.ErrRefused, true}, {errTail, true}, {errBeside, true}, {json.Unmarshal([]byte("{"), &into), true}, {json.Unmarshal([]byte(`{"N":"x"}`), &into), true},
		{func() error { _, err := strconv.ParseUint("zz", 16, 64); return err }(), true}, {&backup.Damage{}, true},
		{&replica.Held{Reason: replica.SchemaUnknown}, true}, {&replica.Held{Reason: replica.StoreFailing}, false},
		{errors.Join(store.ErrRefused, &replica.Held{Reason: replica.DiskFull}), false},
		{os.ErrNotExist, false}, {errFull, false}, {context.Canceled, false},
	} {
		if got := damaged(fmt.Errorf("around: %w", c.err)); got != c.damaged {
			t.Errorf("%v is damage: %v", c.err, got)
		}
	}
}

// Schemas that are no schemas, and are whole by their hash, are refused as what a backup has
// wrong, each time.
func TestSchemasThatAreNone(t *testing.T) {
	b, k, bucket, set := backedUp(t, nil)
	p := slices.Collect(set.All())[0]
	for i, text := range []string{"{", `{"zz":""}`, `[]`, `{"9":7}`} {
		ref, _, err := bucket.Put(t.Context(), []byte(text), nil)
		must(t, err)
		if _, err := k.schemas(t.Context(), bucket, ref, backup.NewProgress(0)); !refused(err) {
			t.Errorf("%s: %v", text, err)
		}
		bad := lie(t, bucket, p, func(m *backup.Manifest) { m.Schemas = ref })
		if err := Restore(t.Context(), bucket, bad, b.store, incoming(filepath.Join(b.dir, "in"))); !refused(err) {
			t.Errorf("%s: restored, %v", text, err)
		}
		var found []*backup.Damage
		good, err := Verify(t.Context(), VerifyConfig{Bucket: bucket, Partitions: one(p), Scratch: b.dir, Log: slog.New(slog.DiscardHandler), Report: func(d *backup.Damage) { found = append(found, d) }})
		if must(t, err); len(found) != i+1 || len(good.Backups[p]) != 1 {
			t.Errorf("%s: found are %v, and good %v", text, found, good.Backups[p])
		}
	}
	if _, err := k.schemas(t.Context(), bucket, backup.Ref{Size: 3}, backup.NewProgress(0)); err == nil {
		t.Error("there are schemas that nobody put there")
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

// A restore of the newest backups takes an older one of a partition where the
// newer is damaged, tells it, and fails where none is whole.
func TestRestoreTakesAnOlderBackup(t *testing.T) {
	b, k, bucket, set := backedUp(t, nil)
	p := slices.Collect(set.All())[0]
	at := b.store.Applied(p)
	b.post(200)
	must(t, k.Backup(t.Context()))
	ids, err := bucket.IDs(t.Context(), p)
	must(t, err)
	if len(ids) != 2 {
		t.Fatalf("backups %v", ids)
	}
	torn := filepath.Join(b.dir, "bucket", backup.ObjectOf(p, ids[0], ""))
	manifest, err := os.ReadFile(torn)
	must(t, err)
	flip := func(id string) {
		m, err := bucket.Manifest(t.Context(), p, id)
		must(t, err)
		hash := m.Files[0].SHA256.String()
		path := filepath.Join(b.dir, "bucket", "files", hash[:2], hash)
		bytes, err := os.ReadFile(path)
		must(t, err)
		bytes[len(bytes)/2] ^= 1
		must(t, os.Chmod(path, 0o644))
		must(t, os.WriteFile(path, bytes, 0o644))
	}
	var progress *backup.Progress // of the last restore
	var said lines
	restore := func(name string) (told []string, err error) {
		progress = backup.NewProgress(0)
		_, err = RestoreData(t.Context(), RestoreConfig{
			Bucket: bucket, Partitions: one(p), Progress: progress, Data: filepath.Join(b.dir, name), Store: store.Options{MinFreeBytes: -1}, Log: said.log(),
			Older: func(_ millrace.Partition, instead *backup.Manifest, _ error) { told = append(told, instead.ID) },
		})
		return told, err
	}
	told, err := restore("whole")
	if must(t, err); len(told) != 0 {
		t.Errorf("nothing is damaged, and it takes %v", told)
	}
	must(t, errors.Join(os.Chmod(torn, 0o644), os.WriteFile(torn, manifest[:len(manifest)/2], 0o644)))
	told, err = restore("newest-torn")
	if must(t, err); !slices.Equal(told, ids[1:]) {
		t.Errorf("it tells of %v, and the older is %s", told, ids[1])
	}
	must(t, os.WriteFile(torn, manifest, 0o644))
	flip(ids[0])
	if n := said.count("a backup is damaged"); n != 1 {
		t.Errorf("of one that is torn it says %v", said.all)
	}
	told, err = restore("newest-damaged")
	if must(t, err); !slices.Equal(told, ids[1:]) || said.count("taking an older one") != 1 {
		t.Errorf("it tells of %v, and the older is %s: %v", told, ids[1], said.all)
	}
	var both int64
	for _, id := range ids {
		m, err := bucket.Manifest(t.Context(), p, id)
		must(t, err)
		both += m.Bytes()
	}
	if s := progress.Now(); s.Total != both {
		t.Errorf("its progress is %v, of two backups of %d bytes", s, both)
	}
	s, err := store.Open(filepath.Join(b.dir, "newest-damaged", "store"), store.Options{FlushEvery: -1})
	must(t, err)
	if got := s.Applied(p); got != at {
		t.Errorf("it is at %v, and the older backup at %v", got, at)
	}
	must(t, s.Close())
	flip(ids[1])
	var damage *backup.Damage
	if _, err := restore("both-damaged"); !errors.As(err, &damage) {
		t.Errorf("no backup is whole: %v", err)
	}
	for _, left := range []string{"store", "store.restoring", "backup"} {
		if _, err := os.Stat(filepath.Join(b.dir, "both-damaged", left)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("a restore that failed left %s: %v", left, err)
		}
	}
	// Where this machine is at fault, the next try goes on.
	flip(ids[1])
	in := filepath.Join(b.dir, "again", "backup", "in")
	must(t, errors.Join(os.MkdirAll(filepath.Dir(in), 0o700), os.WriteFile(in, nil, 0o600)))
	if _, err := restore("again"); err == nil || damaged(err) {
		t.Errorf("nothing can be downloaded: %v", err)
	}
	for _, left := range []string{"store.restoring", "backup"} {
		if _, err := os.Stat(filepath.Join(b.dir, "again", left)); err != nil {
			t.Errorf("the next try has nothing to go on with: %v", err)
		}
	}
	must(t, os.Remove(in))
	_, err = restore("again")
	must(t, err)
	var refused *millrace.Error
	if _, err := restore("again"); !errors.As(err, &refused) || refused.Field != "data" {
		t.Errorf("beside a store: %v", err)
	}
}

// What was damaged, and how it was healed, is recorded in the bucket.
func TestHealingIsRecorded(t *testing.T) {
	_, k, bucket, _ := backedUp(t, nil)
	k.Healed(t.Context(), 7, replica.Why{Reason: replica.Corrupt, Detail: "a flipped bit"}, replica.Backup{Name: "x", Bytes: 9}, time.Second)
	k.Healed(t.Context(), 8, replica.Why{Reason: replica.Corrupt, Detail: "a lost file"}, replica.Backup{}, time.Second)
	all, err := bucket.Healings(t.Context(), 10)
	must(t, err)
	if len(all) != 2 || all[0].Partition != 8 || all[0].From != "" || all[1].Damage != "a flipped bit" || all[1].From != "x" || all[1].Bytes != 9 || all[1].Node != "a" {
		t.Errorf("%+v", all)
	}
}

// A timeline without records is an error, which names those that its entity has.
func TestATimelineThatIsNotThere(t *testing.T) {
	b, _, _, set := backedUp(t, nil)
	p := slices.Collect(set.All())[0]
	var is millrace.Timeline
	for one, err := range b.store.Timelines(p) {
		must(t, err)
		is = one
	}
	err := noTimeline(b.store, p, millrace.Timeline{Entity: is.Entity, Type: "a/b"})
	if err == nil || !strings.Contains(err.Error(), string(is.Type)) {
		t.Errorf("another type: %v", err)
	}
	// Neither another entity has anything, nor a timeline without live records.
	for _, none := range []millrace.Timeline{{Entity: "nobody", Type: is.Type}, is} {
		var refused *millrace.Error
		if err := noTimeline(b.store, p, none); !errors.As(err, &refused) || refused.Field != "entity" {
			t.Errorf("%v: %v", none, err)
		}
	}
}

// What two states of a partition have beside each other is counted once, that of
// a timeline too which has lost all of its records and still has tombstones.
func TestATimelineThatLostAllItsRecordsIsCountedOnce(t *testing.T) {
	b := newBench(t)
	p, old, now := millrace.Partition(3), b.open("old"), b.open("now")
	alter := func(to *store.Store, e millrace.Entity, id string, change func(*millrace.Record)) {
		t.Helper()
		r := millrace.Record{ID: millrace.RecordID(id), Time: 1, Version: 1, Body: []byte("body")}
		change(&r)
		var batch store.Batch
		batch.Put(p, millrace.Timeline{Entity: e, Type: "post"}, r)
		_, err := to.Apply(&batch, nil)
		must(t, err)
	}
	for id, change := range map[string]func(*millrace.Record){ // of a timeline that both have
		"same": func(*millrace.Record) {}, "version": func(r *millrace.Record) { r.Version = 2 },
		"time": func(r *millrace.Record) { r.Time = 9 }, "body": func(r *millrace.Record) { r.Body = []byte("another") },
	} {
		alter(old, "member:5", id, func(*millrace.Record) {})
		alter(now, "member:5", id, change)
	}
	alter(now, "member:5", "new", func(r *millrace.Record) { r.Body = []byte("new") })
	alter(old, "member:5", "gone", func(*millrace.Record) {})
	alter(old, "member:6", "same", func(*millrace.Record) {})
	alter(now, "member:6", "same", func(*millrace.Record) {})
	put := func(to *store.Store, e millrace.Entity, deleted bool) {
		t.Helper()
		var batch store.Batch
		for i := range 2 {
			r := millrace.Record{ID: millrace.RecordID(fmt.Sprint(i)), Time: millrace.Time(i), Version: 1, Body: []byte("body")}
			if deleted {
				r.Version, r.Deleted, r.Body = 2, true, nil
			}
			batch.Put(p, millrace.Timeline{Entity: e, Type: "post"}, r)
		}
		_, err := to.Apply(&batch, nil)
		must(t, err)
	}
	put(old, "member:1", false)
	put(now, "member:1", false)
	put(now, "member:1", true)
	put(old, "member:2", false)
	put(now, "member:3", false)
	put(now, "member:4", true)
	ended, end := context.WithCancel(t.Context())
	if end(); diffRows(ended, old, now, p, map[millrace.ContentType]*Changes{}) == nil {
		t.Error("it was told to stop, and compares all")
	}
	all := map[millrace.ContentType]*Changes{}
	must(t, diffRows(t.Context(), old, now, p, all))
	want := Changes{New: Rows{1, 3, 11}, Gone: Rows{2, 5, 20}, Changed: Rows{1, 3, 15}}
	if got := all["post"]; len(all) != 1 || *got != want {
		t.Errorf("it has changed by %+v, want %+v", got, want)
	}
}

// A restore that was told to stop reads nothing more, and one that is refused
// leaves nothing.
func TestRestoreStopsAndTidies(t *testing.T) {
	b, _, bucket, set := backedUp(t, nil)
	p := slices.Collect(set.All())[0]
	data := filepath.Join(b.dir, "stopped")
	ctx, stop := context.WithCancel(t.Context())
	ids, err := bucket.IDs(ctx, p)
	must(t, err)
	m, err := bucket.Manifest(ctx, p, ids[0])
	must(t, err)
	c := checkpoint(m, nil)
	stop()
	s, err := store.Open(filepath.Join(b.dir, "other"), store.Options{MinFreeBytes: -1, FlushEvery: -1})
	must(t, err)
	if err := s.Restore(ctx, filepath.Join(b.dir, "none"), c); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrRefused) {
		t.Errorf("stopped: %v", err)
	}
	must(t, s.Close())
	for _, to := range []Target{{Cut: "tomorrow"}, {Time: time.Now()}} {
		if _, err := RestoreData(t.Context(), RestoreConfig{Bucket: bucket, To: to, Partitions: one(p), Data: data, Log: slog.New(slog.DiscardHandler)}); err == nil {
			t.Errorf("%v: it is restored", to)
		}
		if _, err := os.Stat(data); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v: something is left: %v", to, err)
		}
	}
}
