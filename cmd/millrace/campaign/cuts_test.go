package campaign

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/backups"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// TestCutsEqualTheLog takes cuts under load, with partitioners that are frozen
// or killed now and then, restores each out of the bucket alone, and compares
// offsets and digests of all partitions with a store that has read the log up
// to there.
func TestCutsEqualTheLog(t *testing.T) {
	s := need(t)
	s.backups = true
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
	cuts := 3
	if !s.short {
		cuts = 100
	}
	compared := 0
	for i := range cuts {
		mend := w.disturb(i)
		began := time.Now()
		name := fmt.Sprintf("cut-%d", i)
		cut, err := backups.TakeCut(w.ctx, backups.CutConfig{
			Name: name, Bucket: bucket, Brokers: []string{w.kafka.addr()}, Topics: kafka.Prefixed(w.prefix), Log: slog.New(slog.DiscardHandler),
		})
		took := time.Since(began)
		mend()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		n := ref.compare(w, bucket, cut)
		compared += n
		t.Logf("%s: taken in %.1fs, %d partitions are equal, restored in %.1fs", name, took.Seconds(), n, time.Since(began.Add(took)).Seconds())
		if err := bucket.RemoveCut(w.ctx, name); err != nil {
			t.Error(err)
		}
	}
	figure.Print("cuts_partitions_equal", float64(compared), "partitions", float64(cuts*partition.Count))
	if compared != cuts*partition.Count {
		t.Errorf("%d partitions are as the log says; want %d", compared, cuts*partition.Count)
	}
	stop()
	w.asker.drain()
	t.Log(w.asker.take())
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
	schemas  *schemas.Registry
	log      *kafka.SchemaLog
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
	if r.schemas, err = schemas.NewRegistry(nil, nil); err != nil {
		t.Fatal(err)
	}
	if r.log, err = kafka.OpenSchemaLog(kafka.SchemaLogConfig{Brokers: []string{w.kafka.addr()}, Topic: w.prefix + "schemas", Registry: r.schemas}); err != nil {
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
	spans := map[kafka.TopicPartition]kafka.Span{}
	for p := range partition.All() {
		at := applied(r.store, p)
		for s, end := range []millrace.Offset{cut.Content[p], cut.Features[p]} {
			if from := millrace.Offset(at[s]); from < end {
				spans[kafka.TopicPartition{Stream: kafka.Stream(s), Partition: p}] = kafka.Span{From: kafka.Position{Next: from, Epoch: -1}, To: end}
			}
		}
	}
	topics := kafka.Prefixed(w.prefix)
	if err := kafka.ReadTails(w.ctx, kafka.TailsConfig{Brokers: []string{w.kafka.addr()}, Topics: topics}, spans, func(f kafka.Fetched) error {
		return r.replicas.Bring(w.ctx, f)
	}); err != nil {
		r.t.Fatal(err)
	}
	dir := r.t.TempDir()
	if n, err := backups.RestoreData(w.ctx, backups.RestoreConfig{
		Bucket: bucket, To: backups.Target{Cut: cut.Name}, Partitions: cluster.All(), Data: dir, Topics: topics, Store: store.Options{MinFreeBytes: -1}, Log: slog.New(slog.DiscardHandler),
	}); err != nil {
		r.t.Fatalf("%s: %d partitions were restored: %v", cut.Name, n, err)
	}
	restored, err := store.Open(filepath.Join(dir, "store"), store.Options{MinFreeBytes: -1})
	if err != nil {
		r.t.Fatal(err)
	}
	defer restored.Close()
	var differ []string
	for p := range partition.All() {
		got, want := applied(restored, p), [streams]int64{int64(cut.Content[p]), int64(cut.Features[p])}
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
