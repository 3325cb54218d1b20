package backups

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/partition"
)

// The load of the figures: records of 500 bytes of noise, on timelines chosen
// by Zipf.
const (
	benchTimelines = 50_000
	benchBytes     = 500
	benchPoll      = 5_000
)

// BenchmarkBackups tells what a backup costs, and how fast it comes back,
// beside copying the same bytes. MILLRACE_S3 names a server (make s3) for the
// same from there.
func BenchmarkBackups(b *testing.B) {
	records := 800_000
	if testing.Short() {
		records = 20_000
	}
	for b.Loop() {
		w := newWork(b)
		w.load(records)
		uploaded, _ := w.backup()
		figure.Print("backup_full_vs_live", float64(uploaded)/float64(w.live(nil)), "x", 1.05)
		before := w.tables()
		w.load(records / 20)
		uploaded, _ = w.backup()
		figure.Print("backup_incremental_vs_changed", float64(uploaded)/float64(max(1, w.live(before))), "x", 1.3)

		bytes, took := w.restore("file://" + w.bucket)
		copied := w.copy()
		rate := func(d time.Duration) float64 { return float64(bytes) / d.Seconds() / (1 << 20) }
		figure.Tell("restore_rate", rate(took), "MiB/s")
		figure.Tell("cp_rate", rate(copied), "MiB/s")
		figure.Print("restore_vs_cp", rate(took)/rate(copied), "x", 0.7)
		if server := os.Getenv("MILLRACE_S3"); server != "" {
			b.Setenv("AWS_ACCESS_KEY_ID", "millrace")
			b.Setenv("AWS_SECRET_ACCESS_KEY", "millrace-secret")
			w.to = fmt.Sprintf("s3://millrace/bench-%d?endpoint=http://%s", time.Now().UnixNano(), server)
			_, took := w.backup()
			figure.Tell("backup_s3_rate", rate(took), "MiB/s")
			_, took = w.restore(w.to)
			figure.Print("restore_s3_rate", rate(took), "MiB/s", 100)
		}
	}
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
	w.store = w.open("store")
	return w
}

func (w *work) open(name string) *store.Store {
	w.b.Helper()
	s, err := store.Open(filepath.Join(w.dir, name), store.Options{})
	must(w.b, err)
	w.b.Cleanup(func() { must(w.b, s.Close()) })
	return s
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
		Mine:     cluster.All, Whole: func(p millrace.Partition) bool { return s.Applied(p).Content >= 0 }, Log: slog.New(slog.DiscardHandler),
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

// tables returns the sizes of the store's tables.
func (w *work) tables() map[string]int64 {
	w.b.Helper()
	all := map[string]int64{}
	names, err := filepath.Glob(filepath.Join(w.dir, "store", "*.sst"))
	must(w.b, err)
	for _, name := range names {
		if i, err := os.Stat(name); err == nil { // a compaction may have removed it
			all[name] = i.Size()
		}
	}
	return all
}

// live returns the bytes of the tables that were not there before.
func (w *work) live(before map[string]int64) (bytes int64) {
	for name, size := range w.tables() {
		if _, was := before[name]; !was {
			bytes += size
		}
	}
	return bytes
}

// restore brings everything back into another store.
func (w *work) restore(from string) (bytes int64, took time.Duration) {
	w.b.Helper()
	name := fmt.Sprint("restored-", w.rng.Uint32())
	s := w.open(name)
	k := w.keeper(s, from, name)
	must(w.b, exec.Command("sync").Run())
	began := time.Now()
	var g errgroup.Group
	g.SetLimit(restores)
	for p := range partition.All() {
		g.Go(func() error {
			all, err := k.Newest(w.b.Context(), p)
			if err != nil || len(all) == 0 {
				return err
			}
			return k.Restore(w.b.Context(), p, all[0], func(string) {})
		})
	}
	must(w.b, g.Wait())
	must(w.b, exec.Command("sync", "-f", w.dir).Run())
	took = time.Since(began)
	must(w.b, k.Close())
	return k.counters.mu.restored, took
}

// copy copies the files of the newest backups, as restore reads them.
func (w *work) copy() time.Duration {
	w.b.Helper()
	bucket, err := backup.Open(w.b.Context(), "file://"+w.bucket, backup.Options{})
	must(w.b, err)
	newest, err := bucket.Newest(w.b.Context(), func(*backup.Damage) {})
	must(w.b, err)
	must(w.b, bucket.Close())
	var list []string
	for _, m := range newest {
		for _, r := range m.Refs() {
			hash := r.SHA256.String()
			list = append(list, filepath.Join(w.bucket, "files", hash[:2], hash))
		}
	}
	to := filepath.Join(w.dir, "copied")
	must(w.b, os.Mkdir(to, 0o755))
	must(w.b, exec.Command("sync").Run())
	cp := exec.Command("xargs", "cp", "-t", to)
	cp.Stdin = strings.NewReader(strings.Join(list, "\n"))
	began := time.Now()
	must(w.b, cp.Run())
	must(w.b, exec.Command("sync", "-f", w.dir).Run())
	return time.Since(began)
}
