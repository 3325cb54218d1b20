package backups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/figure/pagecache"
	"github.com/millrace/millrace/internal/partition"
)

// The load of the figures: records of 500 bytes of noise, on timelines chosen
// by Zipf.
const (
	benchTimelines = 50_000
	benchBytes     = 500
	benchPoll      = 5_000
)

// turns is how often a rate and what it is compared with are measured, in turn.
const turns = 3

// BenchmarkBackups tells what a backup costs, and how fast it comes back,
// beside copying the same bytes, by turns. MILLRACE_S3 names a server (make s3)
// for the same from there.
//
// What a backup puts into the bucket, manifests and all, is compared with the
// tables of the store that it is of, at the moment when it is made. For an
// incremental one these are the tables that the one before it did not have.
func BenchmarkBackups(b *testing.B) {
	records := 3_200_000
	if testing.Short() {
		records = 20_000
	}
	for b.Loop() {
		w := newWork(b)
		w.load(records)
		w.backup()
		full, tables := w.inBucket(), w.tables()
		figure.Print("backup_full_vs_live", float64(full)/float64(sizeOf(tables, nil)), "x")
		w.load(records / 20)
		w.backup()
		added := w.inBucket() - full
		figure.Print("backup_incremental_vs_changed", float64(added)/float64(max(1, sizeOf(w.tables(), tables))), "x")
		figure.Print("backup_incremental_vs_records", float64(added)/float64(records/20*benchBytes), "x")

		restored, copied := w.restoreAndCopy(w.to)
		figure.Print("restore_rate", restored, "MiB/s")
		figure.Print("cp_rate", copied, "MiB/s")
		figure.Print("restore_vs_cp", restored/copied, "x")
		if server := os.Getenv("MILLRACE_S3"); server != "" {
			b.Setenv("AWS_ACCESS_KEY_ID", "millrace")
			b.Setenv("AWS_SECRET_ACCESS_KEY", "millrace-secret")
			w.to = fmt.Sprintf("s3://millrace/bench-%d?endpoint=http://%s", time.Now().UnixNano(), server)
			bytes, took := w.backup()
			figure.Print("backup_s3_rate", rate(bytes, took), "MiB/s")
			restored, copied := w.restoreAndCopy(w.to)
			figure.Print("restore_s3_rate", restored, "MiB/s")
			figure.Print("restore_s3_vs_cp", restored/copied, "x")
		}
	}
}

// rate is so many bytes in such a time, in MiB/s.
func rate(bytes int64, took time.Duration) float64 {
	return float64(bytes) / took.Seconds() / (1 << 20)
}

// restoreAndCopy restores and copies the newest backups by turns, each from the
// disk, and returns the median rates.
func (w *work) restoreAndCopy(from string) (restored, copied float64) {
	w.b.Helper()
	var r, c []float64
	for range turns {
		must(w.b, pagecache.Drop(w.bucket))
		bytes, took := w.restore(from)
		must(w.b, pagecache.Drop(w.bucket))
		r, c = append(r, rate(bytes, took)), append(c, rate(bytes, w.copy()))
	}
	slices.Sort(r)
	slices.Sort(c)
	return r[turns/2], c[turns/2]
}

type work struct {
	b      *testing.B
	dir    string
	bucket string
	to     string
	store  *store.Store
	rng    *rand.Rand
	zipf   *rand.Zipf
	n      int
}

func newWork(b *testing.B) *work {
	b.Helper()
	w := &work{b: b, dir: b.TempDir(), rng: rand.New(rand.NewPCG(1, 2))}
	w.zipf = rand.NewZipf(w.rng, 1.1, 10, benchTimelines-1)
	w.bucket = filepath.Join(w.dir, "bucket")
	must(b, os.Mkdir(w.bucket, 0o755))
	w.to = "file://" + w.bucket
	var err error
	w.store, err = store.Open(filepath.Join(w.dir, "store"), store.Options{})
	must(b, err)
	b.Cleanup(func() { must(b, w.store.Close()) })
	return w
}

func (w *work) load(records int) {
	w.b.Helper()
	for left := records; left > 0; left -= benchPoll {
		var batch store.Batch
		for range min(left, benchPoll) {
			w.n++
			e := millrace.Entity(fmt.Sprint("member:", w.zipf.Uint64()))
			p := partition.Of(e)
			body := make([]byte, benchBytes)
			for i := range body {
				body[i] = byte(w.rng.Uint32())
			}
			batch.Put(p, millrace.Timeline{Entity: e, Type: "post"}, millrace.Record{
				ID: millrace.RecordID(fmt.Sprint("post:", w.n)), Time: millrace.Time(w.n), Version: 1, Schema: 9, Body: body,
			})
			batch.SetApplied(p, store.Content, millrace.Offset(w.n))
			batch.SetOrigin(p, []byte(`{"cluster":"k"}`))
		}
		_, err := w.store.Apply(&batch, nil)
		must(w.b, err)
	}
}

func (w *work) keeper(s *store.Store, to, name string) *Keeper {
	w.b.Helper()
	k, err := NewKeeper(KeeperConfig{
		Config: Config{To: to, MiBPerSecond: -1}, Node: millrace.NodeID(name), Store: s, Dir: filepath.Join(w.dir, name+"-scratch"),
		Identity: func(context.Context) (backup.Identity, error) { return backup.Identity{Name: "bench", ID: "1"}, nil },
		Mine:     topology.All, Whole: func(p millrace.Partition) bool { return s.Applied(p).Content >= 0 }, Log: slog.New(slog.DiscardHandler),
	})
	must(w.b, err)
	return k
}

// backup backs everything up, and returns what was uploaded.
func (w *work) backup() (uploaded int64, took time.Duration) {
	w.b.Helper()
	k := w.keeper(w.store, w.to, "from")
	began := time.Now()
	must(w.b, k.Backup(w.b.Context()))
	took = time.Since(began)
	must(w.b, k.Close())
	return k.counters.mu.uploaded, took
}

// newest returns the newest backup of each partition in the directory.
func (w *work) newest() map[millrace.Partition]*backup.Manifest {
	w.b.Helper()
	bucket, err := backup.Open(w.b.Context(), "file://"+w.bucket, backup.Options{})
	must(w.b, err)
	newest, err := bucket.Newest(w.b.Context(), func(d *backup.Damage) { w.b.Fatal(d) })
	must(w.b, errors.Join(err, bucket.Close()))
	return newest
}

// tables returns the names and sizes of the store's tables of which the newest
// backups are. A copy of some rows of a table is none.
func (w *work) tables() map[string]int64 {
	all := map[string]int64{}
	for _, m := range w.newest() {
		for _, f := range m.Files {
			if !strings.HasPrefix(f.Name, "partition-") {
				all[f.Name] = f.Size
			}
		}
	}
	return all
}

// sizeOf sums what was not there before.
func sizeOf(tables, before map[string]int64) (bytes int64) {
	for name, size := range tables {
		if _, was := before[name]; !was {
			bytes += size
		}
	}
	return bytes
}

// inBucket returns the size of all objects in the directory.
func (w *work) inBucket() (bytes int64) {
	w.b.Helper()
	must(w.b, filepath.WalkDir(w.bucket, func(_ string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		i, err := e.Info()
		if err == nil {
			bytes += i.Size()
		}
		return err
	}))
	return bytes
}

// restore brings everything back into another store. It stays: ext4 makes a
// file many times as slowly in the minute after others were removed.
func (w *work) restore(from string) (bytes int64, took time.Duration) {
	w.b.Helper()
	name := fmt.Sprint("restored-", w.rng.Uint32())
	s, err := store.Open(filepath.Join(w.dir, name), store.Options{})
	must(w.b, err)
	k := w.keeper(s, from, name)
	must(w.b, exec.Command("sync").Run())
	began := time.Now()
	var g errgroup.Group
	g.SetLimit(restores)
	for p := range partition.All() {
		g.Go(func() error {
			for newest, err := range k.Newest(w.b.Context(), p) {
				if err != nil {
					return err
				}
				return k.Restore(w.b.Context(), p, newest, func(string) {})
			}
			return nil
		})
	}
	must(w.b, g.Wait())
	must(w.b, exec.Command("sync", "-f", w.dir).Run())
	took = time.Since(began)
	must(w.b, errors.Join(k.Close(), s.Close()))
	return k.counters.mu.restored, took
}

// copy copies the files of the newest backups, as restore reads them.
func (w *work) copy() time.Duration {
	w.b.Helper()
	var list []string
	for _, m := range w.newest() {
		for _, r := range m.Refs() {
			hash := r.SHA256.String()
			list = append(list, filepath.Join(w.bucket, "files", hash[:2], hash))
		}
	}
	to := filepath.Join(w.dir, fmt.Sprint("copied-", w.rng.Uint32()))
	must(w.b, os.Mkdir(to, 0o755))
	must(w.b, exec.Command("sync").Run())
	cp := exec.Command("xargs", "cp", "-t", to)
	cp.Stdin = strings.NewReader(strings.Join(list, "\n"))
	began := time.Now()
	must(w.b, cp.Run())
	must(w.b, exec.Command("sync", "-f", w.dir).Run())
	return time.Since(began)
}
