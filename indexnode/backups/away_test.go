package backups

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// A Kafka that answers no request of some kind fails every restore and every witness that needs
// it: none says that it is whole.
func TestAKafkaThatFails(t *testing.T) {
	fake, k := kafkatest.Controlled(t)
	ctx := kafkatest.Deadline(t)
	known, err := registry.New(nil, nil)
	must(t, err)
	l, err := schemalog.Open(schemalog.Config{Brokers: k.Brokers, Topic: k.Topics.Schemas, Registry: known})
	must(t, err)
	must(t, l.Publish(ctx, schemas.Activity()))
	l.Close()
	log, err := logOf(ctx, k.Brokers, k.Topics)
	must(t, err)
	const e = millrace.Entity("member:1")
	p := partition.Of(e)
	h := &history{bench: newBench(t), ctx: ctx, brokers: k.Brokers, topics: k.Topics, log: log, set: one(p)}
	var entries []*kgo.Record
	for i := range 3 {
		entries = append(entries, h.posted(schemas.Activity(), k.Topics.Timeline, e, fmt.Sprintf(`{"id":"r%d","actor":%q,"verb":"post","created_at":%d}`, i, e, i)))
	}
	for _, r := range entries {
		r.Timestamp = time.Now().Add(-time.Hour)
	}
	h.produce(entries...)
	var bucket [2]*backup.Bucket // of the log that is there, and of one that is gone
	for i, of := range []kafka.LogID{log, {Cluster: "gone"}} {
		b := newBench(t)
		must(t, putRows(b.store, []registry.StoredSchema{{Fingerprint: schemas.Activity().Fingerprint(), Order: 1, JSON: schemas.Activity().JSON()}}))
		var batch store.Batch
		batch.SetApplied(p, store.Content, 1)
		batch.SetApplied(p, store.FeatureStream, 0)
		batch.SetOrigin(p, replica.OriginOf(of, false))
		_, err := b.store.Apply(&batch, nil)
		must(t, err)
		keeper := b.keeper(b.store, "a", func(c *KeeperConfig) { c.Mine = func() topology.Set { return one(p) } })
		must(t, keeper.Backup(ctx))
		bucket[i], err = keeper.bucket(ctx)
		must(t, err)
	}
	tries := 0
	restore := func(ctx context.Context, from *backup.Bucket, to Target, newLog bool) (err error) {
		tries++
		defer func() {
			if refused := (*millrace.Error)(nil); errors.As(err, &refused) && refused.Field == "to" {
				t.Errorf("backups are blamed: %v", err)
			}
		}()
		_, err = RestoreData(ctx, RestoreConfig{Bucket: from, To: to, NewLog: newLog, Partitions: one(p), Data: filepath.Join(h.dir, fmt.Sprint("data-", tries)), Brokers: k.Brokers, Topics: k.Topics, Store: store.Options{FlushEvery: -1}, Log: slog.New(slog.DiscardHandler)})
		return err
	}
	witness := func(ctx context.Context) error {
		_, _, err := Witness(ctx, WitnessConfig{
			Brokers: k.Brokers, Topics: k.Topics, Scratch: filepath.Join(h.dir, "witness"), Log: slog.New(slog.DiscardHandler), Partition: p, Of: log.String(), Offset: 3,
			Bucket: func(context.Context) (*backup.Bucket, error) { return bucket[0], nil }, Trusts: func(*backup.Manifest) bool { return true },
		})
		return err
	}
	kafkatest.EachRequestMatters(t, fake, map[string]func(context.Context) error{
		"to a time": func(ctx context.Context) error {
			return restore(ctx, bucket[0], Target{Time: time.Now().Add(-30 * time.Minute)}, false)
		},
		"to a new log": func(ctx context.Context) error { return restore(ctx, bucket[1], Target{}, true) },
		"witness":      witness,
		"schemas": func(ctx context.Context) error {
			_, _, err := (&cutter{cfg: CutConfig{Brokers: k.Brokers, Topics: k.Topics, Log: slog.New(slog.DiscardHandler)}}).schemas(ctx)
			return err
		},
	})
	// The new log must be another one, and whole.
	for what, c := range map[string]struct {
		from  *backup.Bucket
		wants string
	}{"the log of the backups": {bucket[0], "the log that is there is the one that the backups are of"}, "a log that begins later": {bucket[1], "is gone already"}} {
		if strings.Contains(c.wants, "gone") {
			_, err := kafkatest.Admin(t, k.Brokers).DeleteRecords(ctx, kadm.Offsets{k.Topics.Timeline: {int32(p): kadm.Offset{Topic: k.Topics.Timeline, Partition: int32(p), At: 1}}})
			must(t, err)
		}
		if err := restore(ctx, c.from, Target{}, true); err == nil || !strings.Contains(err.Error(), c.wants) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A bucket that cannot be read any more fails what needs it, each time, and a backup is counted
// as failed.
func TestABucketThatFails(t *testing.T) {
	b, k, bucket, set := backedUp(t, nil)
	var p millrace.Partition
	for p = range set.All() {
		break
	}
	one, _ := newest(t, k, p)
	m, err := bucket.Manifest(t.Context(), p, one.Name)
	must(t, err)
	must(t, bucket.Close()) // every call of it fails from now on
	cfg := RestoreConfig{Bucket: bucket, Partitions: set, Data: filepath.Join(b.dir, "data"), Store: store.Options{FlushEvery: -1}, Log: slog.New(slog.DiscardHandler)}
	for name, call := range map[string]func(context.Context) error{
		"newest":  func(ctx context.Context) error { _, err := k.newest(ctx); return err },
		"backup":  func(ctx context.Context) error { return k.Backup(ctx) },
		"restore": func(ctx context.Context) error { return k.Restore(ctx, p, one, func(string) {}) },
		"data":    func(ctx context.Context) error { _, err := RestoreData(ctx, cfg); return err },
		"a cut": func(ctx context.Context) error {
			c := cfg
			c.To.Cut = "noon"
			_, err := RestoreData(ctx, c)
			return err
		},
		"search": func(ctx context.Context) (err error) {
			for _, bad := range k.Newest(ctx, p) {
				err = errors.Join(err, bad)
			}
			return err
		},
		"a timeline": func(ctx context.Context) error {
			_, err := Timeline(ctx, cfg, millrace.Timeline{Entity: "member:1", Type: "post"}, io.Discard)
			return err
		},
		"changes": func(ctx context.Context) error { _, err := DiffRows(ctx, cfg, m, m); return err },
		"take a cut": func(ctx context.Context) error {
			_, err := TakeCut(ctx, CutConfig{Name: "noon", Bucket: bucket, Log: cfg.Log})
			return err
		},
		"look over": func(ctx context.Context) error {
			return (&round{k: k, bucket: bucket}).lookOver(ctx, bucket, m, b.dir, m)
		},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond) // it is tried again and again
		if err := call(ctx); err == nil {
			t.Errorf("%s: the bucket is away, and nothing is said", name)
		}
		cancel()
	}
	failed := k.counters.mu.failures
	k.mu.bucket = nil
	must(t, k.Backup(t.Context()))
	cfg.Bucket = k.mu.bucket
	if k.counters.mu.failures != failed || failed != 1 {
		t.Errorf("%d rounds failed, and %d when it is back", failed, k.counters.mu.failures)
	}
	changes, err := DiffRows(t.Context(), cfg, m, m)
	if must(t, err); len(changes) > 0 {
		t.Errorf("a backup has changed from itself by %v", changes)
	}
}
