package replica

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// world is the replicas of a node beside a Kafka, with everything else that
// they lean on in the test's hand.
type world struct {
	t        *testing.T
	ctx      context.Context
	kafka    *kfake.Cluster
	topics   kafka.Topics
	producer *kafka.Producer
	adm      *kadm.Client
	schemas  *registry.Registry
	log      *schemaLog
	letters  *letters
	input    *input
	disk     *disk
	dir      string
	host     *counting
	backups  Backups // of what is started next; nil: none
	waited   func(millrace.Partition) bool
	warmer   Warmer // likewise
	limit    time.Duration
	drain    time.Duration // 0: 100 ms
	seek     time.Duration // 0: seekBackupFor

	store    *store.Store
	replicas *Replicas
	stop     func()
	offset   int
}

// schemaLog is a schemas topic of which the test says what has come.
type schemaLog struct {
	mu      sync.Mutex
	moved   chan struct{}
	refused map[millrace.Fingerprint]bool
}

func (l *schemaLog) Moved() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moved
}

func (l *schemaLog) Refused(fp millrace.Fingerprint) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.refused[fp]
}

// move says that something came on the topic.
func (l *schemaLog) move() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.moved)
	l.moved = make(chan struct{})
}

func (l *schemaLog) refuse(fp millrace.Fingerprint) {
	l.mu.Lock()
	l.refused[fp] = true
	l.mu.Unlock()
	l.move()
}

// letters are dead letters, which fail while broken is set, and while slow is
// set wait in sent for the test to say what became of them.
type letters struct {
	broken, slow atomic.Bool
	tried        atomic.Int64
	mu           sync.Mutex
	kept         []kafka.Outgoing
	sent         []func(error)
}

func (l *letters) ProduceThen(_ context.Context, o kafka.Outgoing, then func(error)) {
	l.tried.Add(1)
	if l.slow.Load() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.sent = append(l.sent, then)
		return
	}
	if l.broken.Load() {
		go then(errors.New("the topic takes no record as large"))
		return
	}
	l.mu.Lock()
	l.kept = append(l.kept, o)
	l.mu.Unlock()
	go then(nil)
}

func (l *letters) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.kept)
}

// input is what partitioners say of themselves: nothing, until told.
type input struct {
	asked    atomic.Int64 // once whenever the reconciler looks, while nothing is known
	through  atomic.Int64
	unproven atomic.Bool // there is a group that has proven nothing
	moved    chan struct{}
}

func (i *input) Through() (time.Time, bool) {
	i.asked.Add(1)
	at := i.through.Load()
	return time.UnixMilli(at), at > 0 || i.unproven.Load()
}

func (i *input) Moved() <-chan struct{} { return i.moved } // nil: it is asked now and then besides

// disk is a file system that can be full.
type disk struct {
	vfs.FS
	full atomic.Bool
}

func (d *disk) GetDiskUsage(string) (vfs.DiskUsage, error) {
	if d.full.Load() {
		return vfs.DiskUsage{}, nil
	}
	return vfs.DiskUsage{AvailBytes: 1 << 40}, nil
}

// counting is a node without caches.
type counting struct {
	forgotten, refused, features, applied atomic.Int64
	unreadable                            error                          // what ForgetPartition returns
	written                               func(routes []millrace.Entity) // in place of the caches; nil: nothing
	mu                                    sync.Mutex
	removed                               []millrace.Partition // from the caches
}

func (c *counting) ForgetPartition(p millrace.Partition) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.removed = append(c.removed, p)
	return c.unreadable
}

func (c *counting) uncached() []millrace.Partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.removed)
}

func (c *counting) Written(_ kafka.Stream, _ []store.Change, routes []millrace.Entity) {
	if c.written != nil {
		c.written(routes)
	}
}

func (c *counting) HasFeatures()                                    { c.features.Add(1) }
func (c *counting) Applied(_ kafka.Stream, _ []store.Change, n int) { c.applied.Add(int64(n)) }
func (c *counting) Forget()                                         { c.forgotten.Add(1) }
func (c *counting) Refused(schemas.Reason)                          { c.refused.Add(1) }

func newWorld(t *testing.T) *world {
	t.Helper()
	k, err := kfake.NewCluster(kfake.NumBrokers(1))
	must(t, err)
	t.Cleanup(k.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	w := &world{
		t: t, ctx: ctx, kafka: k, topics: kafka.Topics{}.WithDefaults(), dir: "node", host: new(counting),
		log: &schemaLog{moved: make(chan struct{}), refused: map[millrace.Fingerprint]bool{}}, letters: new(letters), input: new(input), disk: &disk{FS: vfs.NewMem()},
	}
	w.schemas, err = registry.New(nil, nil)
	must(t, err)
	for _, s := range []*schemas.Schema{schemas.Activity(), schemas.Features()} {
		_, err = w.schemas.Admit(s)
		must(t, err)
	}
	must(t, kafka.EnsureTopics(ctx, kafka.At(k.ListenAddrs()...), w.topics, nil))
	w.connect()
	cl, err := kgo.NewClient(kgo.SeedBrokers(k.ListenAddrs()...))
	must(t, err)
	t.Cleanup(cl.Close)
	w.adm = kadm.NewClient(cl)
	return w
}

// connect gives the world a producer that knows the topics as they are.
func (w *world) connect() {
	w.t.Helper()
	var err error
	w.producer, err = kafka.NewProducer(kafka.At(w.kafka.ListenAddrs()...), w.topics.DeadLetters, nil)
	must(w.t, err)
	w.t.Cleanup(w.producer.Close)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start opens the store and runs the replicas of some partitions.
func (w *world) start(hosted ...millrace.Partition) {
	w.t.Helper()
	var err error
	w.store, err = store.Open(w.dir, store.Options{FS: w.disk, FlushEvery: -1})
	must(w.t, err)
	consumer, err := streams.NewConsumer(streams.Config{Brokers: kafka.At(w.kafka.ListenAddrs()...), Topics: w.topics})
	must(w.t, err)
	w.replicas = New(Config{
		Store: w.store, Consumer: consumer, Topics: w.topics, Schemas: w.schemas, SchemaLog: w.log, Letters: w.letters, Input: w.input,
		Backups: w.backups, Waited: w.waited, Warmer: w.warmer, Host: w.host, Limit: cmp.Or(w.limit, 400*time.Millisecond), Log: slog.New(slog.NewTextHandler(testWriter{w.t}, nil)),
	})
	w.replicas.drainFor = cmp.Or(w.drain, 100*time.Millisecond)
	w.replicas.seekFor = cmp.Or(w.seek, seekBackupFor)
	w.want(hosted...)
	ctx, cancel := context.WithCancel(w.ctx)
	done := make(chan error, 1)
	go func() { done <- w.replicas.Run(ctx) }()
	w.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			w.t.Errorf("the replicas ended by themselves: %v", err)
		}
		consumer.Close()
		must(w.t, w.store.Close())
	})
	w.t.Cleanup(w.stop)
}

// testWriter logs to a test.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(b []byte) (int, error) {
	if w.t.Context().Err() == nil {
		w.t.Logf("%s", b)
	}
	return len(b), nil
}

// until waits for a replica to be as wanted.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	for !ok() {
		select {
		case <-w.ctx.Done():
			w.t.Fatalf("never: %s; %s", what, w.states())
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// states prints what is hosted.
func (w *world) states() (all string) {
	for p := range w.replicas.replicas {
		if r := &w.replicas.replicas[p]; r.State() != Absent {
			why, _ := r.Why()
			all += fmt.Sprintf("%d: %s at %v (%s: %s); ", p, r.State(), r.Applied(), why.Reason, why.Detail)
		}
	}
	return all
}

// is reports whether a replica is in a state for a reason.
func (w *world) is(p millrace.Partition, s State, reason Reason) func() bool {
	return func() bool {
		r := w.replicas.Of(p)
		why, _ := r.Why()
		return r.State() == s && why.Reason == reason
	}
}

// two entities of two partitions.
const (
	here  millrace.Entity = "member:1"
	there millrace.Entity = "member:2"
)

var partHere, partThere = partition.Of(here), partition.Of(there)

// post writes a record of the activity schema to the timeline of an entity.
func (w *world) post(e millrace.Entity) {
	w.t.Helper()
	w.offset++
	body, err := schemas.Activity().EncodeJSON(fmt.Appendf(nil, `{"id":"r%d","actor":%q,"verb":"post","created_at":%d}`, w.offset, e, 1_700_000_000_000+w.offset))
	must(w.t, err)
	w.write(e, schemas.Frame(schemas.Activity().Fingerprint(), body))
}

// posts is post so many times, to each of the entities.
func (w *world) posts(times int, to ...millrace.Entity) {
	w.t.Helper()
	for range times {
		for _, e := range to {
			w.post(e)
		}
	}
}

// write writes bytes to the timeline of an entity.
func (w *world) write(e millrace.Entity, value []byte) {
	w.t.Helper()
	w.writeTo(w.topics.Timeline, e, value)
}

// writeTo writes bytes to a topic, where an entity's are.
func (w *world) writeTo(topic string, e millrace.Entity, value []byte) {
	w.t.Helper()
	w.producer.Produce(w.ctx, kafka.ToStream(topic, e, value, kafka.Source{Topic: "posts", Offset: millrace.Offset(w.offset)}))
	must(w.t, w.producer.Flush(w.ctx))
}

// count returns how many records a timeline of posts has.
func (w *world) count(e millrace.Entity) int {
	all, err := w.store.Read(nil, partition.Of(e), millrace.Timeline{Entity: e, Type: "post"}, millrace.MinTime, millrace.MaxTime)
	must(w.t, err)
	return len(all)
}

// want changes what is to be hosted.
func (w *world) want(hosted ...millrace.Partition) {
	var set topology.Set
	for _, p := range hosted {
		set.Add(p)
	}
	w.replicas.Want(set)
}

// away has Kafka answer nothing while the returned value is true.
func (w *world) away() *atomic.Bool {
	var away atomic.Bool
	away.Store(true)
	w.kafka.Control(func(kmsg.Request) (kmsg.Response, error, bool) {
		w.kafka.KeepControl()
		if !away.Load() {
			return nil, nil, false
		}
		return nil, errors.New("Kafka is away"), true
	})
	return &away
}
