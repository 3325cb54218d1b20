package campaign

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// TestCutsEqualTheLog takes cuts under load, with partitioners that are frozen
// or killed now and then, restores each out of the bucket alone, and compares
// offsets and digests of all partitions with a store that has read the log up
// to there. Then it does the same with times between the first and the last cut.
func TestCutsEqualTheLog(t *testing.T) {
	s := need(t)
	s.backups = backupEvery
	w := startWorld(t, s, "cuts", true)
	w.load.burst(w.ctx, 10*members)
	w.settle()
	if err := w.backedUp(); err != nil {
		t.Fatal(err)
	}
	stop := w.underLoad()
	defer stop()
	bucket, err := backup.Open(w.ctx, w.bucket, backup.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	ref := newReference(t, w)
	cuts := 100
	if s.short {
		cuts = 2
	}
	var first, last time.Time
	compared := 0
	for i := range cuts {
		mend := w.disturb(i + 1)
		began := time.Now()
		name := fmt.Sprintf("cut-%d", i)
		cut, err := backups.TakeCut(w.ctx, backups.CutConfig{
			Name: name, Bucket: bucket, Brokers: kafka.At(w.kafka.addr()), Topics: kafka.Prefixed(w.prefix), Log: slog.New(slog.DiscardHandler),
		})
		took := time.Since(began)
		mend()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := ref.compare(w, bucket, cut)
		compared += n
		if last = time.Now(); i == 0 {
			first = last // what cut 0 keeps is of before
		}
		t.Logf("%s: taken in %.1fs, %d partitions are equal, restored in %.1fs", name, took.Seconds(), n, time.Since(began.Add(took)).Seconds())
	}
	stop()
	w.settle()
	figure.Print("cuts_partitions_not_equal", float64(cuts*partition.Count-compared), "partitions")
	if compared != cuts*partition.Count {
		t.Errorf("%d partitions are as the log says at cuts; want %d", compared, cuts*partition.Count)
	}
	w.asker.drain()
	t.Log(w.asker.take())
	for range backupsKept + 1 { // of between the cuts the bucket has only what cut 0 keeps then
		if err := w.backedUp(); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range slices.Concat(w.partitioners, w.nodes, w.brokers) {
		p.kill(syscall.SIGTERM) // what follows is between the log and the bucket
	}
	t.Parallel() // the other tests, of which none is parallel, run while this one waits
	compared = newReference(t, w).times(w, bucket, first, last, cuts)
	figure.Print("times_partitions_not_equal", float64(cuts*partition.Count-compared), "partitions")
	if compared != cuts*partition.Count {
		t.Errorf("%d partitions are as the log says at times; want %d", compared, cuts*partition.Count)
	}
	w.verdict()
}

// disturb freezes or kills a partitioner, for some cuts.
func (w *world) disturb(i int) (mend func()) {
	p := w.partitioners[i%len(w.partitioners)]
	switch i % 3 {
	case 1:
		p.signal(syscall.SIGSTOP)
		return func() { p.signal(syscall.SIGCONT) }
	case 2:
		p.kill(syscall.SIGKILL)
		return func() {
			if err := p.start(); err != nil {
				w.t.Error(err)
			}
		}
	}
	return func() {}
}

// reference is a store that reads the log from its beginning, cut after cut.
type reference struct {
	t        *testing.T
	store    *store.Store
	schemas  *registry.Registry
	log      *schemalog.Log
	replicas *replica.Replicas
}

// alone is a node that has neither caches nor dead letters.
type alone struct{}

func (alone) Written(kafka.Stream, []store.Change, []millrace.Entity) {}
func (alone) Forget()                                                 {}
func (alone) ForgetPartition(millrace.Partition) error                { return nil }
func (alone) HasFeatures()                                            {}
func (alone) Applied(kafka.Stream, []store.Change, int)               {}
func (alone) Refused(schemas.Reason)                                  {}
func (alone) ProduceThen(_ context.Context, _ kafka.Outgoing, then func(error)) {
	then(nil)
}

func newReference(t *testing.T, w *world) *reference {
	t.Helper()
	r := &reference{t: t}
	var err error
	if r.store, err = store.Open(filepath.Join(t.TempDir(), "store"), store.Options{MinFreeBytes: -1}); err != nil {
		t.Fatal(err)
	}
	if r.schemas, err = registry.New(nil, nil); err != nil {
		t.Fatal(err)
	}
	if r.log, err = schemalog.Open(schemalog.Config{Brokers: kafka.At(w.kafka.addr()), Topic: w.prefix + "schemas", Registry: r.schemas}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.log.Close()
		if err := r.store.Close(); err != nil {
			t.Error(err)
		}
	})
	r.replicas = replica.New(replica.Config{Store: r.store, Schemas: r.schemas, SchemaLog: r.log, Letters: alone{}, Host: alone{}, Log: slog.New(slog.DiscardHandler)})
	for p := range partition.All() {
		r.replicas.Serve(p, time.Now())
	}
	return r
}

// compare restores a cut, and returns how many partitions of it are as the log
// says.
func (r *reference) compare(w *world, bucket *backup.Bucket, cut *backup.Cut) (equal int) {
	r.t.Helper()
	if err := r.log.Refresh(w.ctx); err != nil {
		r.t.Fatal(err)
	}
	spans := map[kafka.TopicPartition]streams.Span{}
	for p := range partition.All() {
		at := applied(r.store, p)
		for s, end := range []millrace.Offset{cut.Content[p], cut.Features[p]} {
			if from := millrace.Offset(at[s]); from < end {
				spans[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: p}] = streams.Span{From: kafka.Position{Next: from, Epoch: -1}, To: end}
			}
		}
	}
	topics := kafka.Prefixed(w.prefix)
	if err := streams.ReadTails(w.ctx, streams.TailsConfig{Brokers: kafka.At(w.kafka.addr()), Topics: topics}, spans, func(f streams.Fetched) error {
		return r.replicas.Bring(w.ctx, f)
	}); err != nil {
		r.t.Fatal(err)
	}
	restored := r.restore(w, bucket, backups.Target{Cut: cut.Name})
	defer restored.Close()
	var differ []string
	for p := range partition.All() {
		got, want := applied(restored, p), [kafka.Streams]int64{int64(cut.Content[p]), int64(cut.Features[p])}
		if got == want && got == applied(r.store, p) && restored.Digest(p) == r.store.Digest(p) {
			equal++
			continue
		}
		differ = append(differ, fmt.Sprintf("%d is at %v with %x, and should be at %v with %x", p, got, restored.Digest(p), want, r.store.Digest(p)))
	}
	if len(differ) > 0 {
		w.told("differing", cut.Name+": "+strings.Join(differ[:min(5, len(differ))], "; "))
	}
	return equal
}

// restore brings a state of the whole cluster back.
func (r *reference) restore(w *world, bucket *backup.Bucket, to backups.Target) *store.Store {
	r.t.Helper()
	dir := filepath.Join(w.dir, "restored")
	r.t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.RemoveAll(dir); err != nil {
		r.t.Fatal(err)
	}
	if n, err := backups.RestoreData(w.ctx, backups.RestoreConfig{
		Bucket: bucket, To: to, Partitions: topology.All(), Data: dir, Brokers: kafka.At(w.kafka.addr()), Topics: kafka.Prefixed(w.prefix),
		Store: store.Options{MinFreeBytes: -1}, Log: slog.New(slog.DiscardHandler),
	}); err != nil {
		r.t.Fatalf("%s: %d partitions were restored: %v", to, n, err)
	}
	restored, err := store.Open(filepath.Join(dir, "store"), store.Options{MinFreeBytes: -1})
	if err != nil {
		r.t.Fatal(err)
	}
	return restored
}

// times restores to random times, and returns how many partitions are then as
// the log says: all records of the time or before, and none after it. A
// partition may go on from before records that it has, and never from behind one
// that it lacks.
func (r *reference) times(w *world, bucket *backup.Bucket, first, last time.Time, n int) (equal int) {
	r.t.Helper()
	if err := r.log.Refresh(w.ctx); err != nil {
		r.t.Fatal(err)
	}
	log := r.whole(w)
	at := make([]time.Time, n)
	for i := range at {
		at[i] = first.Add(rand.N(last.Sub(first))).Truncate(time.Millisecond)
	}
	slices.SortFunc(at, time.Time.Compare)
	if wait := time.Until(last.Add(2 * time.Minute)); wait > 0 {
		time.Sleep(wait) // until no transaction of the last time can be under way
	}
	before := millrace.Time(0)
	for i, to := range at {
		until := millrace.TimeOf(to)
		r.bring(w, log, before, until)
		before = until
		began := time.Now()
		restored := r.restore(w, bucket, backups.Target{Time: to})
		took := time.Since(began)
		var differ []string
		for p := range partition.All() {
			got, late := applied(restored, p), lacking(log, p, until)
			if restored.Digest(p) == r.store.Digest(p) && got[content] <= late[content] && got[features] <= late[features] {
				equal++
				continue
			}
			differ = append(differ, fmt.Sprintf("%d goes on at %v, and lacks what is from %v on; its digest is %x and should be %x", p, got, late, restored.Digest(p), r.store.Digest(p)))
		}
		if len(differ) > 0 {
			w.told("differing", to.String()+": "+strings.Join(differ[:min(5, len(differ))], "; "))
		}
		if err := restored.Close(); err != nil {
			r.t.Error(err)
		}
		r.t.Logf("time %d, %s before the last cut: %d partitions differ, restored in %.1fs", i, last.Sub(to).Round(time.Second), len(differ), took.Seconds())
	}
	return equal
}

// whole reads all that the log has.
func (r *reference) whole(w *world) map[kafka.TopicPartition][]streams.Record {
	r.t.Helper()
	ends, err := w.ends(w.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	spans := map[kafka.TopicPartition]streams.Span{}
	for s := range ends {
		for p, end := range ends[s] {
			if end > 0 {
				spans[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: millrace.Partition(p)}] = streams.Span{From: kafka.Position{Epoch: -1}, To: millrace.Offset(end)}
			}
		}
	}
	log := map[kafka.TopicPartition][]streams.Record{}
	if err := streams.ReadTails(w.ctx, streams.TailsConfig{Brokers: kafka.At(w.kafka.addr()), Topics: kafka.Prefixed(w.prefix)}, spans, func(f streams.Fetched) error {
		log[f.TopicPartition] = append(log[f.TopicPartition], f.Records...)
		return f.Err
	}); err != nil {
		r.t.Fatal(err)
	}
	return log
}

// bring applies the records after a time up to another. Their offsets may be
// before some that are applied: transactions overlap.
func (r *reference) bring(w *world, log map[kafka.TopicPartition][]streams.Record, after, until millrace.Time) {
	r.t.Helper()
	for tp, all := range log {
		var of []streams.Record
		for _, rec := range all {
			if after < rec.Time && rec.Time <= until {
				of = append(of, rec)
			}
		}
		if len(of) == 0 {
			continue
		}
		var b store.Batch
		b.SetApplied(tp.Partition, store.Stream(tp.Stream), of[0].Offset)
		if _, err := r.store.Apply(&b, nil); err != nil {
			r.t.Fatal(err)
		}
		r.replicas.Serve(tp.Partition, time.Now())
		if err := r.replicas.Bring(w.ctx, streams.Fetched{TopicPartition: tp, Records: of, Next: of[len(of)-1].Offset + 1}); err != nil {
			r.t.Fatal(err)
		}
	}
}

// lacking is where the first record of each stream after a time is.
func lacking(log map[kafka.TopicPartition][]streams.Record, p millrace.Partition, after millrace.Time) (first [kafka.Streams]int64) {
	for s := range first {
		first[s] = math.MaxInt64
		for _, rec := range log[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: p}] {
			if rec.Time > after {
				first[s] = int64(rec.Offset)
				break
			}
		}
	}
	return first
}
