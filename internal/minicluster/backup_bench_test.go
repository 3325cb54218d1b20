package minicluster

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/figure/pagecache"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// backupBench is a log with records in it, a bucket, and a cluster of one node,
// which is started again and again over the same.
type backupBench struct {
	*testing.B
	ctx    context.Context
	dir    string
	bucket string // a directory
	kafka  string
	begun  time.Time        // when the node was started last
	text   func(int) string // of a record
}

func newBackupBench(b *testing.B, records int, text func(int) string) *backupBench {
	b.Helper()
	w := &backupBench{B: b, ctx: b.Context(), dir: b.TempDir(), bucket: b.TempDir(), text: text}
	k, err := StartKafka(b.TempDir(), "127.0.0.1:0")
	w.must(err)
	b.Cleanup(k.Close)
	w.kafka = k.Addr()
	topics := kafka.Prefixed("")
	w.must(kafka.EnsureTopics(w.ctx, kafka.At(w.kafka), topics, nil))
	fill(w.ctx, b, w.kafka, topics.Timeline, records, text)
	return w
}

func (w *backupBench) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// start starts the cluster, and waits until it serves everything. A zero every
// is no backups.
func (w *backupBench) start(every time.Duration) *Cluster {
	w.Helper()
	c, err := Start(w.ctx, Config{Dir: w.dir, Nodes: 1, Kafka: w.kafka, Node: func(n *indexnode.Config) {
		w.begun = time.Now()
		if every > 0 {
			n.Backup = backups.Config{To: "file://" + w.bucket, Every: every, Keep: 2, Drill: -1}
		}
	}})
	w.must(err)
	_, err = c.Produce(w.ctx, c.ContentTopic(), schemas.Activity(), func(func([]byte, error) bool) {})
	w.must(errors.Join(err, c.WaitReady(w.ctx)))
	return c
}

// backedUp waits until the newest backups have all that the node has.
func (w *backupBench) backedUp(c *Cluster) map[millrace.Partition]*backup.Manifest {
	w.Helper()
	bucket, err := backup.Open(w.ctx, "file://"+w.bucket, backup.Options{})
	w.must(err)
	defer bucket.Close()
	var newest map[millrace.Partition]*backup.Manifest
	w.must(c.wait(w.ctx, func() (err error) {
		if newest, err = bucket.Newest(w.ctx, func(d *backup.Damage) { w.Fatal(d) }); err != nil {
			return err
		}
		for p := range partition.All() {
			if m, at := newest[p], c.Nodes[0].Applied(p); m == nil || [2]millrace.Offset{m.Applied.Content, m.Applied.Features} != at {
				return fmt.Errorf("partition %d is not backed up yet", p)
			}
		}
		return nil
	}))
	return newest
}

// BenchmarkBootstrap tells how long a node with an emptied disk takes to serve
// all partitions, where the log is cut to where its backups end, beside copying
// the same bytes, each from the disk; and how much of the log it has read for it.
func BenchmarkBootstrap(b *testing.B) {
	records := 1_000_000
	if testing.Short() {
		records = 10_000
	}
	for b.Loop() {
		w := newBackupBench(b, records, noise)
		c := w.start(200 * time.Millisecond)
		newest := w.backedUp(c)
		w.must(c.Close())
		w.cut(newest)
		later := records / 200
		fill(w.ctx, b, w.kafka, kafka.Prefixed("").Timeline, later, w.text)
		var took, copied []float64
		share := 0.0
		for range 3 {
			w.must(pagecache.Drop(w.bucket))
			copied = append(copied, w.copy(newest))
			w.must(os.Rename(filepath.Join(w.dir, "node-1"), filepath.Join(w.TempDir(), "was")))
			w.must(pagecache.Drop(w.bucket))
			c = w.start(time.Hour)
			took = append(took, time.Since(w.begun).Seconds())
			share = max(share, 100*w.metric(c, "millrace_indexnode_records_total")/float64(records+later))
			w.must(c.Close())
		}
		figure.Print("bootstrap_seconds", median(took), "s")
		figure.Print("bootstrap_cp_seconds", median(copied), "s")
		figure.Print("bootstrap_vs_cp", median(took)/median(copied), "x")
		figure.Print("bootstrap_log_read", share, "%")
	}
}

// cut removes from the log what the backups have.
func (w *backupBench) cut(newest map[millrace.Partition]*backup.Manifest) {
	w.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(w.kafka))
	w.must(err)
	defer cl.Close()
	to := kadm.Offsets{}
	for p, m := range newest {
		if m.Applied.Content > 0 {
			to.Add(kadm.Offset{Topic: kafka.Prefixed("").Timeline, Partition: int32(p), At: int64(m.Applied.Content)})
		}
	}
	done, err := kadm.NewClient(cl).DeleteRecords(w.ctx, to)
	w.must(errors.Join(err, done.Error()))
}

// copy copies the files of backups by cp, and returns how many seconds it took
// until they were on disk.
func (w *backupBench) copy(newest map[millrace.Partition]*backup.Manifest) float64 {
	w.Helper()
	var list []string
	for _, m := range newest {
		for _, r := range m.Refs() {
			hash := r.SHA256.String()
			list = append(list, filepath.Join(w.bucket, "files", hash[:2], hash))
		}
	}
	slices.Sort(list)
	to := w.TempDir()
	w.must(exec.Command("sync").Run())
	cp := exec.Command("xargs", "cp", "-t", to)
	cp.Stdin = strings.NewReader(strings.Join(slices.Compact(list), "\n"))
	began := time.Now()
	w.must(errors.Join(cp.Run(), exec.Command("sync", "-f", to).Run()))
	took := time.Since(began).Seconds()
	return took
}

// metric sums a counter of the cluster.
func (w *backupBench) metric(c *Cluster, name string) (sum float64) {
	w.Helper()
	all, err := c.metrics.Gather()
	w.must(err)
	for _, f := range all {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

func median(all []float64) float64 {
	slices.Sort(all)
	return all[len(all)/2]
}

// BenchmarkQueriesBesideBackups tells what backups that never pause cost those
// who ask: the p99 of questions at half of saturation and the CPU time of all
// roles a question, beside none, by turns. Records come in meanwhile, so that
// there is something to back up.
func BenchmarkQueriesBesideBackups(b *testing.B) {
	records, step, turns := 200_000, 10*time.Second, 20
	if testing.Short() {
		records, step, turns = 5_000, 200*time.Millisecond, 2
	}
	for b.Loop() {
		w := newBackupBench(b, records, short)
		c := w.start(0)
		perSecond := w.saturation(c, step) / 2
		w.must(c.Close())
		var p99, cpu [2][]float64 // without and with
		var refused [2]int
		for turn := range turns {
			with := (turn + 1) / 2 % 2 // what drifts is the same for both
			c := w.start([]time.Duration{0, time.Millisecond}[with])
			latency, used, n := w.ask(c, perSecond, step)
			w.must(c.Close())
			refused[with] += n
			p99[with], cpu[with] = append(p99[with], latency), append(cpu[with], used)
		}
		figure.Print("queries_half_saturation", perSecond, "queries/s")
		figure.Print("queries_refused_without_backups", float64(refused[0]), "queries")
		figure.Print("queries_refused_with_backups", float64(refused[1]), "queries")
		figure.Print("query_p99_without_backups", median(p99[0])*1e3, "ms")
		figure.Print("query_p99_with_backups", median(p99[1])*1e3, "ms")
		figure.Print("query_p99_spread_without_backups", p99[0][len(p99[0])*3/4]/p99[0][len(p99[0])/4], "x") // of the quartiles
		figure.Print("query_p99_backups_vs_none", median(p99[1])/median(p99[0]), "x")
		figure.Print("cpu_backups_vs_none", median(cpu[1])/median(cpu[0]), "x")
	}
}

// question is one that many timelines answer.
func question(n uint64) *feedv1.GetFeedRequest {
	r := rand.New(rand.NewPCG(n, 1))
	req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: fmt.Sprint(n)}}
	for range 50 {
		req.Entities = append(req.Entities, fmt.Sprint("member:", r.IntN(10_000)))
	}
	return req
}

// saturation is the most answers a second that clients get who ask again as
// soon as they are answered, while records come in.
func (w *backupBench) saturation(c *Cluster, step time.Duration) float64 {
	w.Helper()
	cl, err := client.Dial(c.GRPC)
	w.must(err)
	defer cl.Close()
	var g sync.WaitGroup
	counts := make([]int, 8)
	end := time.Now().Add(step)
	g.Go(func() { w.produce(c, end) })
	for i := range counts {
		g.Go(func() {
			for n := uint64(i); time.Now().Before(end); n += 8 {
				if _, err := cl.GetFeed(w.ctx, question(n)); err == nil {
					counts[i]++
				}
			}
		})
	}
	g.Wait()
	sum := 0
	for _, n := range counts {
		sum += n
	}
	return float64(sum) / step.Seconds()
}

// ask asks so many questions a second at random times, whether those before are
// answered or not, while records come in; before that half as many, since what
// was just started has nothing in its caches. It returns the p99 of the latency from
// when each was due, and the CPU time of all that, both in seconds, the latter
// of a question; and how many were refused for overload, as some are when what
// was taken for saturation is more than that.
func (w *backupBench) ask(c *Cluster, perSecond float64, step time.Duration) (p99, cpu float64, refused int) {
	w.Helper()
	cl, err := client.Dial(c.GRPC)
	w.must(err)
	defer cl.Close()
	var g sync.WaitGroup
	due := time.Now()
	begin, end := due.Add(step/2), due.Add(step/2+step)
	g.Go(func() { w.produce(c, end) })
	var mu sync.Mutex
	var took []float64
	r := rand.New(rand.NewPCG(3, 4))
	before := 0.0
	for n := uint64(0); due.Before(end); n++ {
		rate := perSecond
		if due.Before(begin) {
			rate /= 2
		} else if before == 0 {
			before = cpuSeconds()
		}
		due = due.Add(time.Duration(r.ExpFloat64() / rate * float64(time.Second)))
		asked := due
		time.Sleep(time.Until(asked))
		g.Go(func() {
			_, err := cl.GetFeed(w.ctx, question(n))
			mu.Lock()
			defer mu.Unlock()
			if asked.Before(begin) {
				return
			}
			if e, ok := errors.AsType[*millrace.Error](err); ok && e.Reason == millrace.ReasonOverloaded {
				refused++
			} else if err != nil {
				w.Error(err)
			}
			took = append(took, time.Since(asked).Seconds())
		})
	}
	g.Wait()
	used := cpuSeconds() - before
	slices.Sort(took)
	return took[len(took)*99/100], used / float64(len(took)), refused
}

// produce has records come in until some time.
func (w *backupBench) produce(c *Cluster, end time.Time) {
	w.Helper()
	if _, err := c.Produce(w.ctx, c.ContentTopic(), schemas.Activity(), comingIn(end)); err != nil {
		w.Error(err)
	}
}

// comingIn are about five hundred records a second.
func comingIn(end time.Time) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for n := 0; time.Now().Before(end); n++ {
			if !yield(fmt.Appendf(nil, `{"id":"late:%d","actor":"member:%d","verb":"post","created_at":%d}`, time.Now().UnixNano(), n%5000, time.Now().UnixMilli()), nil) {
				return
			}
			time.Sleep(2 * time.Millisecond)
		}
	}
}

// cpuSeconds is the CPU time of this process.
func cpuSeconds() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it takes nothing that could be wrong
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
