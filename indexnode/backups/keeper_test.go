package backups

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// bench is a store and a bucket beside it.
type bench struct {
	t     *testing.T
	dir   string
	store *store.Store
	n     int
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir()}
	must(t, os.Mkdir(filepath.Join(b.dir, "bucket"), 0o755))
	b.store = b.open("store")
	return b
}

func (b *bench) open(name string) *store.Store {
	b.t.Helper()
	s, err := store.Open(filepath.Join(b.dir, name), store.Options{FlushEvery: -1})
	must(b.t, err)
	b.t.Cleanup(func() { must(b.t, s.Close()) })
	return s
}

func (b *bench) keeper(s *store.Store, name string, change func(*KeeperConfig)) *Keeper {
	b.t.Helper()
	cfg := KeeperConfig{
		Config: Config{To: "file://" + filepath.Join(b.dir, "bucket"), MiBPerSecond: -1}, Node: millrace.NodeID(name), Store: s, Dir: filepath.Join(b.dir, name+"-scratch"),
		Identity: func(context.Context) (backup.Identity, error) { return backup.Identity{Name: "test", ID: "1"}, nil },
		Mine:     topology.All, Whole: func(p millrace.Partition) bool { return s.Applied(p).Content >= 0 }, Log: slog.New(slog.DiscardHandler),
	}
	if change != nil {
		change(&cfg)
	}
	k, err := NewKeeper(cfg)
	must(b.t, err)
	b.t.Cleanup(func() { must(b.t, k.Close()) })
	return k
}

// post puts records into the timelines of some members.
func (b *bench) post(n int) {
	b.t.Helper()
	var batch store.Batch
	batch.PutSchema(9, []byte(`{"type":"string"}`))
	for range n {
		b.n++
		e := millrace.Entity(fmt.Sprint("member:", b.n%50))
		p := partition.Of(e)
		batch.Put(p, millrace.Timeline{Entity: e, Type: "post"}, millrace.Record{
			ID: millrace.RecordID(fmt.Sprint("post:", b.n)), Time: millrace.Time(b.n), Version: 1, Schema: 9, Body: make([]byte, 200),
		})
		batch.SetApplied(p, store.Content, millrace.Offset(b.n))
		batch.SetOrigin(p, []byte(`{"cluster":"k"}`))
	}
	_, err := b.store.Apply(&batch, nil)
	must(b.t, err)
}

// What is backed up comes back bit by bit, into another store; what did not
// change is not uploaded again.
func TestBackupAndRestore(t *testing.T) {
	b := newBench(t)
	var said lines
	keep := map[millrace.ContentType]store.Retention{"post": {MaxAge: time.Hour, MaxCount: 7}, "like": {MaxCount: 1}}
	k := b.keeper(b.store, "a", func(c *KeeperConfig) { c.Log, c.Retention = said.log(), keep })
	// The schemas are a file in the bucket, too, and the same in all rounds.
	schemas := int64(len(`{"0000000000000009":"` + base64.StdEncoding.EncodeToString([]byte(`{"type":"string"}`)) + `"}`))
	before := [2]int64{1, schemas} // files that are in the bucket, and their bytes
	var reused int64               // bytes that rounds had no need to upload
	for round := range 3 {
		b.post(300)
		must(t, k.Backup(t.Context()))
		uploaded := k.counters.mu.uploaded
		must(t, k.Backup(t.Context()))
		if again := k.counters.mu.uploaded; again != uploaded {
			t.Errorf("round %d: nothing changed, and %d bytes were uploaded", round, again-uploaded)
		}
		// What is logged and measured is what the bucket then has more.
		var all [2]int64
		newest, err := k.newest(t.Context())
		must(t, err)
		for _, m := range newest {
			for _, f := range m.Files {
				all[0]++
				all[1] += f.Size
			}
			if got := RetentionOf(m); !reflect.DeepEqual(got, keep) {
				t.Errorf("partition %d: the retention is %v", m.Partition, got)
			}
		}
		there := inBucket(t, filepath.Join(b.dir, "bucket", "files"))
		more := [2]int64{there[0] - before[0], there[1] - before[1]}
		before = there
		reused += all[1] - more[1]
		if said.count(fmt.Sprintf("files=%d uploaded=%d bytes=%d uploaded_bytes=%d", all[0], more[0], all[1], more[1])) != 1 || said.count(fmt.Sprintf("partitions=%d unchanged=%[1]d files=0", len(newest))) != round+1 || said.count(fmt.Sprintf("partitions=%d unchanged=0", len(newest))) != round+1 {
			t.Errorf("round %d: of %d files of %d partitions, with %d more in the bucket, it says %v", round, all, len(newest), more, said.all)
		}
		got := gather(t, k)
		if n := float64(2*round + 2); got["millrace_backup_rounds_total ok"] != n || got["millrace_backup_rounds_total failed"] != 0 || got["millrace_backup_running"] != 0 ||
			got["millrace_backup_bytes_total uploaded"] != float64(there[1]-schemas) || got["millrace_backup_bytes_total there"] != float64(reused) ||
			math.Abs(got["millrace_backup_last_success_timestamp_seconds"]-float64(time.Now().Unix())) > 600 {
			t.Errorf("round %d, with %d bytes that were there: metrics %v", round, reused, got)
		}
	}
	other := b.open("other")
	from := b.keeper(other, "b", nil)
	restored := [2]int64{}
	for p := range partition.All() {
		newest, has := newest(t, from, p)
		if want := b.store.Applied(p).Content; want < 0 == has {
			t.Fatalf("partition %d is at %d; it has a backup: %v", p, want, has)
		} else if want < 0 {
			continue
		}
		must(t, from.Restore(t.Context(), p, newest, func(string) {}))
		restored[0]++
		restored[1] += newest.Bytes
		if taken, err := backup.IDTime(newest.Name); err != nil || !newest.Taken.Equal(taken) || newest.Node != "a" || newest.Applied != [2]millrace.Offset{b.store.Applied(p).Content, b.store.Applied(p).Features} || string(newest.Origin) != `{"cluster":"k"}` || newest.Bytes == 0 {
			t.Errorf("partition %d: the newest backup is %+v", p, newest)
		}
		if other.Applied(p) != b.store.Applied(p) || other.Digest(p) != b.store.Digest(p) {
			t.Errorf("partition %d: at %v, %x; backed up at %v, %x", p, other.Applied(p), other.Digest(p), b.store.Applied(p), b.store.Digest(p))
		}
		origin, err := other.Origin(p)
		if must(t, err); string(origin) != `{"cluster":"k"}` {
			t.Errorf("partition %d: origin %q", p, origin)
		}
	}
	if got := gather(t, from); got["millrace_backup_restores_total ok"] != float64(restored[0]) || got["millrace_backup_restored_bytes_total"] != float64(restored[1]) || got["millrace_backup_restores_total failed"] != 0 {
		t.Errorf("restored are %d partitions and bytes, and metrics are %v", restored, got)
	}
	rows, err := other.Schemas()
	if must(t, err); string(rows[9]) != `{"type":"string"}` {
		t.Errorf("schemas %q", rows)
	}
}

// inBucket counts the files below a directory, and their bytes.
func inBucket(t *testing.T, dir string) (all [2]int64) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		info, err := e.Info()
		if err == nil {
			all[0]++
			all[1] += info.Size()
		}
		return err
	}))
	return all
}

// Another cluster's bucket is refused, whatever its name.
func TestBucketOfAnotherCluster(t *testing.T) {
	b := newBench(t)
	b.post(10)
	must(t, b.keeper(b.store, "a", nil).Backup(t.Context()))
	other := b.keeper(b.store, "b", func(c *KeeperConfig) {
		c.Identity = func(context.Context) (backup.Identity, error) { return backup.Identity{Name: "test", ID: "2"}, nil }
	})
	if err := other.Backup(t.Context()); err == nil {
		t.Error("a cluster of the same name and another id may write there")
	}
}

// A bucket that hangs while it is opened is waited for by one caller. Those who
// queue wait no longer than they may, and share the failure, and so do those who
// come soon after; what needs no bucket does not wait.
func TestOneWaitsForABucketThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const hangs = 30 * time.Second
		var asked atomic.Int64
		b := &bench{t: t, dir: t.TempDir()}
		k := b.keeper(nil, "a", func(c *KeeperConfig) {
			c.Identity = func(ctx context.Context) (backup.Identity, error) {
				asked.Add(1)
				select {
				case <-time.After(hangs):
					return backup.Identity{}, errors.New("no answer")
				case <-ctx.Done():
					return backup.Identity{}, ctx.Err()
				}
			}
		})
		ask := func(ctx context.Context) time.Duration {
			began := time.Now()
			if _, err := k.bucket(ctx); err == nil {
				t.Error("it is opened")
			}
			return time.Since(began)
		}
		var callers sync.WaitGroup
		for range 32 {
			callers.Go(func() {
				if took := ask(t.Context()); took != hangs {
					t.Errorf("one waits %s", took)
				}
			})
		}
		synctest.Wait()
		callers.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if took := ask(ctx); took != time.Second {
				t.Errorf("one waits %s that may wait a second", took)
			}
		})
		k.remember(&backup.Manifest{})
		callers.Wait()
		if took := ask(t.Context()); took != 0 || asked.Load() != 1 {
			t.Errorf("who comes after waits %s; it was tried %d times", took, asked.Load())
		}
		time.Sleep(reopenAfter)
		gone, cancel := context.WithCancel(t.Context())
		time.AfterFunc(2*slowFailure, cancel)
		ask(gone)
		if took := ask(t.Context()); took != hangs || asked.Load() != 3 {
			t.Errorf("after a pause, and one who gave up, it takes %s, and was tried %d times", took, asked.Load())
		}
	})
}

// A restore goes on with the files that an earlier try has left of the same
// backup, and removes those of another.
func TestIncomingKeepsTheFilesOfABackup(t *testing.T) {
	d := incoming(filepath.Join(t.TempDir(), "in"))
	m := &backup.Manifest{Partition: 16, Files: []backup.File{{Name: "1.sst"}, {Name: "2.sst"}}}
	must(t, d.keep(m)) // makes the directory
	want := map[string]bool{"016-1.sst": true, "016-2.sst.part": true, "016-3.sst": false, "016-3.sst.part": false, "014-3.sst": true}
	for name := range want {
		must(t, os.WriteFile(filepath.Join(string(d), name), nil, 0o644))
	}
	must(t, d.keep(m))
	for name, kept := range want {
		if _, err := os.Stat(filepath.Join(string(d), name)); (err == nil) != kept {
			t.Errorf("%s is there: %v", name, !kept)
		}
	}
	if name := d.name(16, "1.sst"); !want[name] {
		t.Errorf("a file is named %s", name)
	}
}

// What a restore downloaded before it broke off is there for the next try, and
// gone where there will be none: of partitions that are whole, that are hosted
// elsewhere, or that the node was ordered to delete.
func TestRestoresThatBrokeOffLeaveNothing(t *testing.T) {
	b := newBench(t)
	b.post(50)
	k := b.keeper(b.store, "a", nil)
	whole := partition.Of("member:1")
	var missing []millrace.Partition
	for p := range partition.All() {
		if b.store.Applied(p).Content < 0 && len(missing) < 3 {
			missing = append(missing, p)
		}
	}
	there := func(p millrace.Partition) bool {
		_, err := os.Stat(k.incoming().path(p, "1.sst"))
		return err == nil
	}
	for _, p := range append(missing, whole) {
		must(t, os.MkdirAll(string(k.incoming()), 0o755))
		must(t, os.WriteFile(k.incoming().path(p, "1.sst"), []byte("a part"), 0o644))
	}
	var hosted topology.Set
	hosted.Add(whole)
	hosted.Add(missing[0])
	hosted.Add(missing[1])
	must(t, k.Tidy(hosted))
	for p, want := range map[millrace.Partition]bool{whole: false, missing[0]: true, missing[1]: true, missing[2]: false} {
		if there(p) != want {
			t.Errorf("partition %d: its files are there: %v", p, !want)
		}
	}
	must(t, k.Forget(missing[0]))
	if there(missing[0]) || !there(missing[1]) {
		t.Error("a partition that was deleted has files, or another has lost them")
	}
}

// What is downloaded whole stays for the next try when the store cannot take it
// now; what it refuses for what it is, and what is restored, does not.
func TestWhatIsDownloadedStaysForTheNextTry(t *testing.T) {
	b, _, bucket, set := backedUp(t, nil)
	p := slices.Collect(set.All())[0]
	ids, err := bucket.IDs(t.Context(), p)
	must(t, err)
	m, err := bucket.Manifest(t.Context(), p, ids[0])
	must(t, err)
	must(t, inMemory.Acquire(t.Context(), memoryBytes)) // all files go to the disk
	defer inMemory.Release(memoryBytes)
	dir := incoming(filepath.Join(b.dir, "in"))
	left := func() int {
		all, err := os.ReadDir(string(dir))
		must(t, err)
		return len(all)
	}
	closed, err := store.Open(filepath.Join(b.dir, "closed"), store.Options{FlushEvery: -1})
	must(t, errors.Join(err, closed.Close()))
	if err := Restore(t.Context(), bucket, m, closed, dir); err == nil || errors.Is(err, store.ErrRefused) || left() == 0 {
		t.Errorf("by a store that is closed: %v, and %d files are left", err, left())
	}
	other, wrong := b.open("other"), *m
	wrong.Digest.Content++
	if err := Restore(t.Context(), bucket, &wrong, other, dir); !errors.Is(err, store.ErrRefused) || left() > 0 {
		t.Errorf("one that is refused: %v, and %d files are left", err, left())
	}
	if must(t, Restore(t.Context(), bucket, m, other, dir)); left() > 0 {
		t.Errorf("%d files are left of one that is restored", left())
	}
}

// A restore that is told to stop is none that failed; one that cannot even read what
// it is to bring back is.
func TestRestoresThatFailAreCounted(t *testing.T) {
	b, k, _, set := backedUp(t, nil)
	p := slices.Collect(set.All())[0]
	from := b.keeper(b.open("other"), "other", nil)
	last, has := newest(t, k, p)
	if !has {
		t.Fatal("there is no backup")
	}
	failed := func() float64 { return gather(t, from)["millrace_backup_restores_total failed"] }
	ctx, cancel := context.WithCancel(t.Context())
	from.last.Lock() // so that it cannot go on before it is told
	stop := sync.OnceFunc(func() { cancel(); from.last.Unlock() })
	if err := from.Restore(ctx, p, last, func(string) { stop() }); !errors.Is(err, context.Canceled) || failed() != 0 {
		t.Errorf("one that was told to stop: %v; %v failed", err, failed())
	}
	last.Name = "gone"
	if err := from.Restore(t.Context(), p, last, func(string) {}); err == nil || failed() != 1 {
		t.Errorf("one of a backup that is not there: %v; %v failed", err, failed())
	}
}

// The node that backs up partition 0 expires for all, also when its own backup
// fails, and no other node does.
func TestOneNodeExpiresForAll(t *testing.T) {
	b := newBench(t)
	var first millrace.Entity
	for n := 0; partition.Of(first) != 0; n++ {
		first = millrace.Entity(fmt.Sprint("first:", n))
	}
	write := func(n int) {
		b.post(50)
		var batch store.Batch
		batch.Put(0, millrace.Timeline{Entity: first, Type: "post"}, millrace.Record{ID: "a", Version: int64(n), Schema: 9, Body: make([]byte, 200)})
		batch.SetApplied(0, store.Content, millrace.Offset(n))
		batch.SetOrigin(0, []byte(`{"cluster":"k"}`))
		_, err := b.store.Apply(&batch, nil)
		must(t, err)
	}
	keeper := func(name string, mine topology.Set) *Keeper {
		return b.keeper(b.store, name, func(c *KeeperConfig) {
			c.Keep, c.Mine = 1, func() topology.Set { return mine }
		})
	}
	others := topology.All()
	others.Remove(0)
	some, zero := keeper("some", others), keeper("zero", one(0))
	bucket, err := some.bucket(t.Context())
	must(t, err)
	p := partition.Of("member:1")
	kept := func(want int) {
		t.Helper()
		ids, err := bucket.IDs(t.Context(), p)
		if must(t, err); len(ids) != want {
			t.Errorf("%d backups are kept, not %d", len(ids), want)
		}
	}
	for n := range 3 {
		write(n + 1)
		must(t, some.Backup(t.Context()))
	}
	kept(3)
	must(t, zero.Backup(t.Context()))
	kept(1)
	write(4)
	must(t, some.Backup(t.Context()))
	write(5)
	files := filepath.Join(b.dir, "bucket", "files")
	must(t, os.Rename(files, files+".away"))
	must(t, os.WriteFile(files, nil, 0o600)) // so that nothing can be uploaded
	if err := zero.Backup(t.Context()); err == nil {
		t.Error("a backup succeeds that can upload nothing")
	}
	kept(1)
}

// An expiry says what it removed, and what blocks it, and one that fails is a round that failed.
func TestWhatAnExpirySays(t *testing.T) {
	b := newBench(t)
	var said lines
	k := b.keeper(b.store, "a", func(c *KeeperConfig) {
		c.Keep, c.Log, c.Mine = 2, said.log(), func() topology.Set { return one(0) }
	})
	write := func(n int) {
		var batch store.Batch
		batch.SetApplied(0, store.Content, millrace.Offset(n))
		batch.SetOrigin(0, []byte(`{"cluster":"k"}`))
		_, err := b.store.Apply(&batch, nil)
		must(t, err)
		must(t, k.Backup(t.Context()))
	}
	write(1)
	write(2)
	if n := said.count("expired"); n != 0 {
		t.Errorf("no backup is too many, and some expire: %v", said.all)
	}
	write(3)
	if said.count("msg=expired backups=1 files=0") != 1 || said.count("files stay") != 0 {
		t.Errorf("one backup is too many, and it says %v", said.all)
	}
	newest, _ := newest(t, k, 0)
	torn := filepath.Join(b.dir, "bucket", backup.ObjectOf(0, newest.Name, ""))
	must(t, errors.Join(os.Chmod(torn, 0o644), os.Truncate(torn, 10)))
	write(4)
	if said.count("files stay that may be unnamed") != 1 {
		t.Errorf("a backup is torn, and it says %v", said.all)
	}
	must(t, os.WriteFile(filepath.Join(b.dir, "bucket", "cuts"), nil, 0o600)) // where a directory should be
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)     // it is tried again and again
	defer cancel()
	failures := k.counters.mu.failures
	if err := k.Backup(ctx); err == nil || k.counters.mu.failures != failures+1 {
		t.Errorf("nothing can expire: %v", err)
	}
}

// A partition to which nobody writes is backed up anew where a file of its newest
// backup is gone, or is not whole; the others are left alone.
func TestWhatIsLostInTheBucketIsBackedUpAnew(t *testing.T) {
	for name, lose := range map[string]func(file string) error{
		"gone":  os.Remove,
		"short": func(file string) error { return os.Truncate(file, 10) },
	} {
		t.Run(name, func(t *testing.T) {
			b, k, bucket, set := backedUp(t, nil)
			p := slices.Collect(set.All())[0]
			ids, err := bucket.IDs(t.Context(), p)
			must(t, err)
			m, err := bucket.Manifest(t.Context(), p, ids[0])
			must(t, err)
			hash := m.Files[0].SHA256.String()
			must(t, lose(filepath.Join(b.dir, "bucket", "files", hash[:2], hash)))
			must(t, k.Backup(t.Context()))
			r, err := bucket.Verify(t.Context(), backup.DepthOpen, func(d *backup.Damage) { t.Error(d) })
			must(t, err)
			for of := range set.All() {
				want := len(ids)
				if of == p {
					want++
				}
				if got := len(r.Backups[of]); got != want {
					t.Errorf("partition %d has %d backups, want %d; partition %d lost a file", of, got, want, p)
				}
			}
			has, ok := newest(t, k, p)
			if !ok {
				t.Fatal("there is no backup")
			}
			other := b.open("other")
			must(t, b.keeper(other, "other-node", nil).Restore(t.Context(), p, has, func(string) {}))
			if other.Digest(p) != b.store.Digest(p) {
				t.Error("what is restored is something else")
			}
			uploaded := k.counters.mu.uploaded
			must(t, k.Backup(t.Context()))
			if again := k.counters.mu.uploaded; again != uploaded {
				t.Errorf("all is there, and %d bytes were uploaded", again-uploaded)
			}
		})
	}
}

// newest is the newest backup of a partition, if it has one.
func newest(t testing.TB, k *Keeper, p millrace.Partition) (b replica.Backup, has bool) {
	t.Helper()
	for b, err := range k.Newest(t.Context(), p) {
		must(t, err)
		return b, true
	}
	return b, false
}

// A node that has something to back up tells since when a round is owed; one
// that has nothing does not.
func TestBehindIsTold(t *testing.T) {
	b := newBench(t)
	b.post(10)
	const behind = "millrace_backup_behind_seconds"
	hosts := topology.All()
	k := b.keeper(b.store, "a", func(c *KeeperConfig) {
		c.Mine = func() topology.Set { return hosts }
	})
	must(t, os.Rename(filepath.Join(b.dir, "bucket"), filepath.Join(b.dir, "away")))
	if err := k.Backup(t.Context()); err == nil {
		t.Fatal("there is no bucket, and it is backed up")
	}
	failed := gather(t, k)[behind]
	if time.Sleep(10 * time.Millisecond); failed <= 0 || gather(t, k)[behind] <= failed {
		t.Errorf("behind by %v s after a round that failed", failed)
	}
	must(t, os.Rename(filepath.Join(b.dir, "away"), filepath.Join(b.dir, "bucket")))
	began := time.Now()
	must(t, k.Backup(t.Context()))
	if got := gather(t, k)[behind]; got <= 0 || got > time.Since(began).Seconds() {
		t.Errorf("behind by %v s after a round that succeeded", got)
	}
	hosts = topology.Set{}
	must(t, k.Backup(t.Context()))
	if got := gather(t, k)[behind]; got != 0 {
		t.Errorf("behind by %v s with nothing to back up", got)
	}
}
