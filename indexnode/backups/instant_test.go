package backups

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/kafkatest"
	"github.com/millrace/millrace/internal/kafka/schemalog"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// history is a log of which the test wrote every record.
type history struct {
	*bench
	ctx     context.Context
	brokers kafka.Brokers
	topics  kafka.Topics
	log     kafka.LogID
	set     topology.Set
	all     map[millrace.Partition][]streams.Record // in the log's order
}

// newLog makes Millrace's topics, all empty, in a real Kafka or, if there is
// none, in one of its own.
func newLog(ctx context.Context, t *testing.T, real string) (brokers kafka.Brokers, topics kafka.Topics, log kafka.LogID) {
	t.Helper()
	brokers = kafka.At(real)
	if real == "" {
		c, err := kfake.NewCluster(kfake.NumBrokers(1))
		must(t, err)
		t.Cleanup(c.Close)
		brokers = kafka.At(c.ListenAddrs()...)
	}
	topics = kafka.Prefixed(crand.Text() + "-")
	must(t, kafka.EnsureTopics(ctx, brokers, topics, nil))
	t.Cleanup(func() { // a real Kafka keeps thousands of files of them open
		cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(brokers)...))
		if err != nil {
			return
		}
		defer cl.Close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if _, err := kadm.NewClient(cl).DeleteTopics(ctx, topics.All()...); err != nil {
			t.Logf("topics stay behind: %v", err)
		}
	})
	log, err := logOf(ctx, brokers, topics)
	must(t, err)
	return brokers, topics, log
}

// realKafka returns the address of a real Kafka, or skips.
func realKafka(t *testing.T) string {
	t.Helper()
	addr := os.Getenv("MILLRACE_KAFKA")
	if addr == "" {
		t.Skip("MILLRACE_KAFKA names no Kafka")
	}
	return addr
}

// newHistory writes n records, one each second from begin on, give or take
// twenty: transactions overlap.
func newHistory(t *testing.T, real string, begin time.Time, n int) *history {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	h := &history{bench: newBench(t), ctx: ctx, all: map[millrace.Partition][]streams.Record{}}
	h.brokers, h.topics, h.log = newLog(ctx, t, real)
	registry, err := registry.New(nil, nil)
	must(t, err)
	l, err := schemalog.Open(schemalog.Config{Brokers: h.brokers, Topic: h.topics.Schemas, Registry: registry})
	must(t, err)
	defer l.Close()
	must(t, l.Publish(ctx, schemas.Activity()))
	cl, err := kgo.NewClient(kgo.SeedBrokers(kafkatest.Addrs(h.brokers)...), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	must(t, err)
	defer cl.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range n {
		e := millrace.Entity(fmt.Sprint("member:", rng.IntN(12)))
		body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"post:%d","actor":%q,"verb":"post","version":%d,"created_at":"2026-01-01T00:00:00Z"}`, rng.IntN(n/2), e, rng.IntN(5)))
		must(t, err)
		value := schemas.Frame(schemas.Activity().Fingerprint(), body)
		at := begin.Add(time.Duration(i)*time.Second + time.Duration(rng.IntN(40)-20)*time.Second)
		p := partition.Of(e)
		r := &kgo.Record{Topic: h.topics.Timeline, Partition: int32(p), Key: []byte(e), Value: value, Timestamp: at, Headers: []kgo.RecordHeader{{Key: "crc", Value: kafka.CRC(value)}}}
		must(t, cl.ProduceSync(ctx, r).FirstErr())
		h.set.Add(p)
		h.all[p] = append(h.all[p], streams.Record{Offset: millrace.Offset(len(h.all[p])), Key: r.Key, Value: value, CRC: r.Headers[0].Value, Time: millrace.TimeOf(at)})
	}
	return h
}

// apply brings a store what of the log is before an offset and of a time or
// earlier.
func (h *history) apply(s *store.Store, next func(millrace.Partition) millrace.Offset, until time.Time) {
	h.t.Helper()
	must(h.t, putRows(s, []registry.StoredSchema{{Fingerprint: schemas.Activity().Fingerprint(), Order: 1, JSON: schemas.Activity().JSON()}}))
	all, err := replay(s, givenUp{}, false)
	must(h.t, err)
	var b store.Batch
	for p, records := range h.all {
		all.Serve(p, time.Now())
		var take []streams.Record
		for _, r := range records {
			if r.Offset < next(p) && r.Time <= millrace.TimeOf(until) {
				take = append(take, r)
			}
		}
		must(h.t, all.Bring(h.ctx, streams.Fetched{TopicPartition: kafka.TopicPartition{Partition: p}, Records: take, Next: next(p)}))
		b.SetApplied(p, store.Content, next(p))
		b.SetApplied(p, store.FeatureStream, 0)
		b.SetOrigin(p, replica.OriginOf(h.log, false))
	}
	_, err = s.Apply(&b, nil)
	must(h.t, err)
}

// before returns where the first record after a time is in each partition.
func (h *history) before(at time.Time) func(millrace.Partition) millrace.Offset {
	return func(p millrace.Partition) millrace.Offset {
		for _, r := range h.all[p] {
			if r.Time > millrace.TimeOf(at) {
				return r.Offset
			}
		}
		return h.end(p)
	}
}

func (h *history) end(p millrace.Partition) millrace.Offset {
	return millrace.Offset(len(h.all[p]))
}

// backUp backs up a store that has read the log up to a time.
func (h *history) backUp(s *store.Store, name string) *backup.Bucket {
	h.t.Helper()
	k := h.keeper(s, name, func(c *KeeperConfig) { c.Mine = func() topology.Set { return h.set } })
	must(h.t, k.Backup(h.ctx))
	b, err := k.bucket(h.ctx)
	must(h.t, err)
	return b
}

// same compares the partitions of two stores.
func (h *history) same(what string, got, want *store.Store) {
	h.t.Helper()
	for p := range h.set.All() {
		if got.Digest(p) != want.Digest(p) {
			h.t.Errorf("%s: partition %d: the digest is %x, and not %x", what, p, got.Digest(p), want.Digest(p))
		}
	}
}

// A restore to any time between two backups has what was logged up to then and
// nothing else; the node that goes on from there misses nothing.
func TestRestoreToATime(t *testing.T) { testRestoreToATime(t, "") }

// On a real Kafka.
func TestRestoreToATimeRealKafka(t *testing.T) { testRestoreToATime(t, realKafka(t)) }

func testRestoreToATime(t *testing.T, real string) {
	begin := time.Now().Add(-time.Hour).Truncate(time.Second)
	h := newHistory(t, real, begin, 300)
	var b *backup.Bucket
	for i, at := range []time.Duration{60 * time.Second, 200 * time.Second} {
		s := h.open(fmt.Sprint("node-", i))
		h.apply(s, h.before(begin.Add(at)), begin.Add(at))
		b = h.backUp(s, fmt.Sprint("keeper-", i))
	}
	whole := h.open("whole")
	h.apply(whole, h.end, begin.Add(time.Hour))
	rng := rand.New(rand.NewPCG(3, 4))
	for i := range 12 {
		at := begin.Add(100*time.Second + time.Duration(rng.IntN(220))*time.Second)
		name := fmt.Sprintf("at-%d", i)
		want := h.open("want-" + name)
		h.apply(want, h.end, at)
		data := filepath.Join(h.dir, name)
		cfg := RestoreConfig{Bucket: b, To: Target{Time: at}, Partitions: h.set, Data: data, Brokers: h.brokers, Topics: h.topics, Store: store.Options{FlushEvery: -1}, Log: slog.New(slog.DiscardHandler)}
		n, err := RestoreData(h.ctx, cfg)
		if must(t, err); n != h.set.Len() {
			t.Fatalf("%d partitions of %d", n, h.set.Len())
		}
		got := h.open(filepath.Join(name, "store"))
		h.same(name, got, want)
		for p := range h.set.All() {
			if at := got.Applied(p).Content; at != h.before(cfg.To.Time)(p) {
				t.Errorf("%s: partition %d goes on at %d, and not at %d", name, p, at, h.before(cfg.To.Time)(p))
			}
		}
		h.apply(got, h.end, begin.Add(time.Hour)) // from where it is
		h.same(name+", and on", got, whole)
	}
	early := RestoreConfig{Bucket: b, To: Target{Time: begin.Add(-time.Hour)}, Partitions: h.set, Data: filepath.Join(h.dir, "early"), Brokers: h.brokers, Topics: h.topics, Log: slog.New(slog.DiscardHandler)}
	var refusal *millrace.Error
	if _, err := RestoreData(h.ctx, early); !errors.As(err, &refusal) || refusal.Field != "to" {
		t.Errorf("a time before all backups: %v", err)
	}
	early.Brokers = kafka.Brokers{}
	if _, err := RestoreData(h.ctx, early); !errors.As(err, &refusal) || refusal.Field != "brokers" {
		t.Errorf("without a log: %v", err)
	}
}

// An earlier try has restored a partition if that is where it leads to: on the way to a time, any
// point from its backup to the last record that may be of the time.
func TestWhatAnEarlierTryHasRestored(t *testing.T) {
	b := newBench(t)
	const p = millrace.Partition(3)
	w := &way{from: &backup.Manifest{Partition: p, Applied: backup.Offsets{Content: 2, Features: 3}}, to: backup.Offsets{Content: 4, Features: 5}, any: backup.Offsets{Content: 6, Features: 7}}
	for at, has := range map[store.Offsets][2]bool{ // of exactly w.to, and on the way to a time
		{Content: 4, Features: 5}: {true, true}, {Content: 4, Features: 6}: {false, true}, {Content: 5, Features: 5}: {false, true},
		{Content: 2, Features: 3}: {false, true}, {Content: 6, Features: 7}: {false, true}, {Content: 1, Features: 3}: {false, false},
		{Content: 2, Features: 2}: {false, false}, {Content: 7, Features: 7}: {false, false}, {Content: 6, Features: 8}: {false, false}, {Content: -1, Features: -1}: {false, false},
	} {
		must(t, b.store.DropPartition(p))
		if at.Content >= 0 {
			var batch store.Batch
			batch.SetApplied(p, store.Content, at.Content)
			batch.SetApplied(p, store.FeatureStream, at.Features)
			_, err := b.store.Apply(&batch, nil)
			must(t, err)
		}
		for i, to := range []Target{{}, {Time: time.Now()}} {
			r := restorer{cfg: RestoreConfig{To: to}, store: b.store}
			if r.has(w) != has[i] {
				t.Errorf("%s, at %+v: it is restored: %t", to, at, !has[i])
			}
		}
	}
	var batch store.Batch
	batch.SetApplied(p, store.Content, 4)
	batch.SetApplied(p, store.FeatureStream, 5)
	_, err := b.store.Apply(&batch, nil)
	must(t, errors.Join(err, b.store.Quarantine(p, errFull)))
	if (&restorer{store: b.store}).has(w) {
		t.Error("what is quarantined counts as restored")
	}
	for to, want := range map[Target]string{{}: "the newest backups", {Cut: "noon"}: "the cut noon", {Time: time.Unix(1, 5)}: "1970-01-01T00:00:01.000000005Z"} {
		if got := to.String(); got != want {
			t.Errorf("%s is named %s", want, got)
		}
	}
}

// A restore that broke off on its way to one time, and goes on to another, has
// nothing of the first.
func TestRestoreChangesItsMind(t *testing.T) {
	begin := time.Now().Add(-time.Hour).Truncate(time.Second)
	h := newHistory(t, "", begin, 120)
	s := h.open("node")
	h.apply(s, h.before(begin.Add(20*time.Second)), begin.Add(20*time.Second))
	b := h.backUp(s, "keeper")
	late, early := begin.Add(100*time.Second), begin.Add(60*time.Second)
	cfg := RestoreConfig{Bucket: b, To: Target{Time: late}, Partitions: h.set, Brokers: h.brokers, Topics: h.topics, Store: store.Options{FlushEvery: -1}, Log: slog.New(slog.DiscardHandler)}
	got := h.open("got")
	for i, at := range []time.Time{late, late, early} {
		cfg.To.Time = at
		r := restorer{cfg: cfg, store: got, dir: filepath.Join(h.dir, "work")}
		_, err := r.run(h.ctx)
		must(t, err)
		want := h.open(fmt.Sprint("want-", i))
		h.apply(want, h.end, at)
		h.same(at.String(), got, want)
	}
}

// A restore that broke off, and goes on for other partitions, has none but those;
// of those that both are for, it does not begin anew.
func TestRestoreOfOtherPartitions(t *testing.T) {
	b, _, bucket, set := backedUp(t, nil)
	some := slices.Collect(set.All())[:3]
	got := b.open("got")
	restore := func(of ...millrace.Partition) int64 {
		cfg := RestoreConfig{Bucket: bucket, Progress: backup.NewProgress(0), Log: slog.New(slog.DiscardHandler)}
		for _, p := range of {
			cfg.Partitions.Add(p)
		}
		r := restorer{cfg: cfg, store: got, dir: filepath.Join(b.dir, "work")}
		_, err := r.run(t.Context())
		must(t, err)
		for _, p := range some {
			want := store.Offsets{Content: -1, Features: -1}
			if slices.Contains(of, p) {
				want = b.store.Applied(p)
			}
			if at := got.Applied(p); at != want {
				t.Errorf("partition %d is at %+v, and not at %+v", p, at, want)
			}
		}
		return cfg.Progress.Now().Done
	}
	one := restore(some[0])
	if both := restore(some[0], some[1]); one == 0 || both > one*3/2 {
		t.Errorf("one takes %d bytes, and %d when it is restored already, with another", one, both)
	}
	restore(some[1], some[2])
}

// A restore that went on at the beginning of a new log, broke off, and goes on as
// one that reads on in the log of the backups, is of that one, also where a
// partition is as empty as the new log.
func TestRestoreChangesItsLog(t *testing.T) {
	begin := time.Now().Add(-time.Hour)
	h := newHistory(t, "", begin, 20)
	for p := range partition.All() {
		if !h.set.Has(p) {
			h.all[p] = nil
			h.set.Add(p)
			break
		}
	}
	s := h.open("node")
	h.apply(s, h.end, begin.Add(time.Hour))
	b := h.backUp(s, "keeper")
	cfg := RestoreConfig{Bucket: b, Partitions: h.set, NewLog: true, Log: slog.New(slog.DiscardHandler)}
	var log kafka.LogID
	cfg.Brokers, cfg.Topics, log = newLog(h.ctx, t, "")
	got := h.open("got")
	for _, want := range []kafka.LogID{log, h.log} {
		r := restorer{cfg: cfg, store: got, dir: filepath.Join(h.dir, "work")}
		_, err := r.run(h.ctx)
		must(t, err)
		for p := range h.set.All() {
			origin, err := got.Origin(p)
			if must(t, err); replica.LogOf(origin) != want.String() {
				t.Errorf("partition %d goes on in %s, and not in %s", p, replica.LogOf(origin), want)
			}
		}
		cfg.NewLog = false
	}
}

// Where the log is gone, a node goes on at the beginning of a new one: with the
// digests of the backup, and its schemas in the new topic.
func TestRestoreBesideANewLog(t *testing.T) { testRestoreBesideANewLog(t, "") }

// On a real Kafka.
func TestRestoreBesideANewLogRealKafka(t *testing.T) { testRestoreBesideANewLog(t, realKafka(t)) }

func testRestoreBesideANewLog(t *testing.T, real string) {
	begin := time.Now().Add(-time.Hour)
	h := newHistory(t, real, begin, 60)
	s := h.open("node")
	h.apply(s, h.end, begin.Add(time.Hour))
	b := h.backUp(s, "keeper")
	cfg := RestoreConfig{Bucket: b, Partitions: h.set, Data: filepath.Join(h.dir, "new"), Brokers: h.brokers, Topics: h.topics, NewLog: true, Store: store.Options{FlushEvery: -1}, Log: slog.New(slog.DiscardHandler)}
	var refusal *millrace.Error
	if _, err := RestoreData(h.ctx, cfg); !errors.As(err, &refusal) || refusal.Field != "log" {
		t.Errorf("the log of the backups as a new one: %v", err)
	}
	var log kafka.LogID
	cfg.Brokers, cfg.Topics, log = newLog(h.ctx, t, real)
	_, err := RestoreData(h.ctx, cfg)
	must(t, err)
	got := h.open(filepath.Join("new", "store"))
	h.same("a new log", got, s)
	for p := range h.set.All() {
		origin, err := got.Origin(p)
		if must(t, err); replica.LogOf(origin) != log.String() || got.Applied(p) != (store.Offsets{}) {
			t.Errorf("partition %d is at %+v of %s", p, got.Applied(p), replica.LogOf(origin))
		}
	}
	registry, err := registry.New(nil, nil)
	must(t, err)
	l, err := schemalog.Open(schemalog.Config{Brokers: cfg.Brokers, Topic: cfg.Topics.Schemas, Registry: registry})
	must(t, err)
	defer l.Close()
	must(t, l.Refresh(h.ctx))
	if !l.Has(schemas.Activity().Fingerprint()) {
		t.Error("the new topic lacks the schema of the records")
	}
	// Who judges of replicas that differ knows that the new log is not all, also
	// by the backups alone.
	b = h.backUp(got, "keeper of the new")
	for p := range h.set.All() {
		sum, source, err := Witness(h.ctx, WitnessConfig{
			Brokers: cfg.Brokers, Topics: cfg.Topics, Bucket: func(context.Context) (*backup.Bucket, error) { return b, nil },
			Scratch: filepath.Join(h.dir, "witness"), Log: cfg.Log, Partition: p, Of: log.String(),
			Trusts: func(*backup.Manifest) bool { return true },
		})
		if must(t, err); sum != s.Digest(p).Content {
			t.Errorf("partition %d made anew from %s has the digest %x, and not %x", p, source, sum, s.Digest(p).Content)
		}
	}
}
