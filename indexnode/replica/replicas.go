package replica

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/wait"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Host is the node that replicas belong to.
type Host interface {
	// Written updates the caches after a commit: changes is what the records changed in
	// the store, and routes has the entities whose features changed. The caller holds
	// the partition's lock for writing.
	Written(s kafka.Stream, changes []store.Change, routes []millrace.Entity)
	// Forget empties the caches of all partitions. It is called when they may have
	// something that the store does not have.
	Forget()
	// ForgetPartition removes from the caches all timelines and features that the store
	// has of a partition. Nobody reads or writes the partition meanwhile.
	ForgetPartition(millrace.Partition) error
	// HasFeatures is called when it becomes known that the store has features of some
	// entity.
	HasFeatures()
	// Applied counts the changes of a commit, and the records that it was made of.
	Applied(s kafka.Stream, changes []store.Change, records int)
	// Refused counts a record that is refused.
	Refused(reason schemas.Reason)
}

// Letters sends refused records to the topic of dead letters; see kafka.Producer.
type Letters interface {
	ProduceThen(ctx context.Context, o kafka.Outgoing, then func(error))
}

// SchemaLog says which schemas have come or are refused; see schemalog.Log. The channel
// of Moved is closed when something new comes.
type SchemaLog interface {
	Moved() <-chan struct{}
	Refused(millrace.Fingerprint) bool
}

// Input says up to when everything that came in from outside is in the log, as
// partitioners report it; see progress.Log. known is false if no partitioner has ever
// reported. The channel of Moved is closed at the next report.
type Input interface {
	Through() (through time.Time, known bool)
	Moved() <-chan struct{}
}

// Warmer fills the caches for a replica before it is announced, within a bound.
type Warmer interface {
	// Warm reports whether the caches are filled for a partition, or the time for that
	// is over. If not, progress says how far the filling is. The first call for a
	// replica begins the filling, which calls [Replicas.Wake] when it ends.
	Warm(p millrace.Partition) (warm bool, progress string)
	// Cool says that the partition is no longer hosted.
	Cool(p millrace.Partition)
}

// Config is what replicas work with. Run needs all of it but Input, Keeps, Backups,
// Waited and Warmer. Without Run, for [Replicas.Serve] and [Replicas.Bring], there is no
// Consumer either.
type Config struct {
	Store     *store.Store
	Consumer  *streams.Consumer
	Topics    kafka.Topics
	Node      millrace.NodeID // this node; needed with Backups
	Schemas   *registry.Registry
	SchemaLog SchemaLog
	Letters   Letters
	Input     Input // nil: nothing is known of what comes in
	Host      Host
	Aged      bool // some content type is kept for a time (not by number), so that the partitions' clocks matter
	// Limit is how old an answer may be without being flagged as old.
	Limit time.Duration
	// Keeps returns why the log does not keep all that a new replica needs, or cannot
	// be asked. Nil: the log is taken to keep it.
	Keeps func(context.Context) error
	// Backups are the source of a partition of which this node has nothing, or nothing
	// that can be trusted or continued. Nil: there are none.
	Backups Backups
	// Waited reports whether a partition has fewer ready replicas than wanted, so that
	// its renewal is urgent. Nil: every renewal is.
	Waited func(millrace.Partition) bool
	// Warmer fills the caches before a replica is announced. Nil: nothing does.
	Warmer Warmer
	Log    *slog.Logger
}

// Replicas are a node's replicas: one of each partition, most of them absent.
type Replicas struct {
	cfg      Config
	replicas [partition.Count]Replica
	ingest   ingest
	told     teller
	keeps    struct { // of the reconciler: what Config.Keeps said last, and when
		at  time.Time
		err error
	}
	renewals  sync.WaitGroup            // all renewals and deletions under way, and the calls of Backups.Healed
	renewing  chan struct{}             // holds a token for each urgent renewal at work
	unhurried chan struct{}             // holds a token for the one other renewal at work
	dropping  *Replica                  // of the reconciler: the replica that is being deleted; nil: none
	dropAfter time.Time                 // of the reconciler: when a deletion that failed is tried again
	dropFrom  millrace.Partition        // of the reconciler: deletions begin here, behind the last one that failed
	begun     time.Time                 // of the reconciler: when Kafka was last asked where the log begins
	changed   chan struct{}             // holds one token when the reconciler should look
	moved     chan struct{}             // see Moved
	drainFor  time.Duration             // the constant drainFor, but in tests
	seekFor   time.Duration             // the constant seekBackupFor, but in tests
	answered  atomic.Pointer[time.Time] // when the backups last answered; nil: never
	paused    atomic.Int64              // until when nothing is applied, Unix ms; 0: there is no pause

	// through is the time up to which everything that came in from outside is in the
	// log, as partitioners report it, in Unix ms. 0: no partitioner has ever
	// reported; 1: some have, and have proven nothing yet.
	through atomic.Int64

	mu struct {
		sync.Mutex
		wanted topology.Set                 // what Want said last
		drop   topology.Set                 // what Drop said last
		lost   map[millrace.Partition]error // see the method lost
	}
}

// New returns replicas that are all absent.
func New(cfg Config) *Replicas {
	all := &Replicas{renewing: make(chan struct{}, maxRenewing), unhurried: make(chan struct{}, 1), changed: make(chan struct{}, 1), moved: make(chan struct{}, 1), drainFor: drainFor, seekFor: seekBackupFor}
	for p := range all.replicas {
		all.replicas[p].partition = millrace.Partition(p)
	}
	all.mu.lost = map[millrace.Partition]error{}
	all.ingest.all = all
	all.ingest.held = map[*backlog]heldStream{}
	all.Configure(cfg)
	return all
}

// Configure replaces the configuration. Call it before Run.
func (all *Replicas) Configure(cfg Config) {
	all.cfg = cfg
	all.ingest.cfg = &all.cfg
	all.told.log = cfg.Log
	for p := range all.replicas {
		all.replicas[p].log = cfg.Log
	}
}

// Of returns the replica of a partition.
func (all *Replicas) Of(p millrace.Partition) *Replica { return &all.replicas[p] }

// Run reads the log and reconciles the replicas with what Want says, until ctx ends. No
// outage and no damage ends it. It returns ctx's error.
func (all *Replicas) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return all.ingest.run(ctx) })
	g.Go(func() error { return all.ingest.wakeForSchemas(ctx) })
	g.Go(func() error { return all.reconcile(ctx) })
	return g.Wait()
}

// Want sets the partitions that this node is to host. Any other partition stays on the
// disk until Drop names it: a mistaken map of the cluster must not delete anything.
func (all *Replicas) Want(set topology.Set) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.mu.wanted = set
	poke(all.changed)
}

// Drop sets the partitions that this node is to delete from its disk. Those that it is to
// host are not deleted.
func (all *Replicas) Drop(set topology.Set) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.mu.drop = set
	poke(all.changed)
}

// orders returns what Want and Drop said last.
func (all *Replicas) orders() (wanted, drop topology.Set) {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.mu.wanted, all.mu.drop
}

// Moved returns a channel that holds a token if a replica has changed its state, or a
// pause has begun or ended, since the last token was taken.
func (all *Replicas) Moved() <-chan struct{} { return all.moved }

// poke puts a token into c, which has room for one, unless it holds one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// step moves a replica by an event, and reports whether that changed its state. A change is
// announced on Moved.
func (all *Replicas) step(r *Replica, e Event, why Why) bool {
	if !r.step(e, why) {
		return false
	}
	if all.cfg.Warmer != nil && r.State() == Absent {
		all.cfg.Warmer.Cool(r.partition)
	}
	poke(all.moved)
	return true
}

// Pause has ingest apply nothing until a time. Ingest then goes on by itself, within half
// a second. The zero time ends a pause at once. A restart ends it too.
func (all *Replicas) Pause(until time.Time) {
	ms := int64(0)
	if !until.IsZero() {
		ms = until.UnixMilli()
	}
	all.paused.Store(ms)
	all.ingest.wake()
	poke(all.moved) // the node announces it, even if no record waits
}

// Paused returns until when nothing is applied; the zero time if there is no pause.
func (all *Replicas) Paused(now time.Time) time.Time {
	if until := all.paused.Load(); until > now.UnixMilli() {
		return time.UnixMilli(until)
	}
	return time.Time{}
}

// Wake has the reconciler look at all replicas soon.
func (all *Replicas) Wake() { poke(all.changed) }

// Condemn takes a partition out of service because its content cannot be trusted or
// continued. It reports whether that changed the state. A replica whose content is being
// replaced cannot be condemned: what was found is about the old content.
func (all *Replicas) Condemn(p millrace.Partition, why Why) bool {
	r := &all.replicas[p]
	if !all.step(r, Condemned, why) {
		return false
	}
	r.setCause(why)
	all.stopReading(r)
	poke(all.changed)
	return true
}

// CondemnDamaged takes a partition out of service if the store has quarantined it, and
// reports whether that changed the state. It asks the store anew: damage that the caller
// found may be in content that was replaced since.
func (all *Replicas) CondemnDamaged(p millrace.Partition) bool {
	err := all.cfg.Store.Quarantined(p)
	return errors.Is(err, store.ErrCorrupt) && all.Condemn(p, whyQuarantined(err))
}

// lost notes the error by which reading a log failed for good: Kafka does not have, or
// cannot give, the records that come next. It ends reading; the reconciler then asks Kafka
// for the state of the log.
func (all *Replicas) lost(r *Replica, err error) {
	all.mu.Lock()
	all.mu.lost[r.partition] = err
	all.mu.Unlock()
	all.detach(r)
}

// detach ends reading a replica's log until the reconciler begins it anew.
func (all *Replicas) detach(r *Replica) {
	all.stopReading(r)
	poke(all.changed)
}

// stopReading ends reading a replica's log, if it is read: what was fetched and is not
// applied is dropped.
func (all *Replicas) stopReading(r *Replica) {
	if n := r.reading.Load(); n%2 == 0 || !r.reading.CompareAndSwap(n, n+1) {
		return
	}
	if all.cfg.Consumer != nil { // nil without Run; see Config
		all.cfg.Consumer.Remove(both(r.partition)...)
	}
}

// both returns the two streams of a partition.
func both(p millrace.Partition) []kafka.TopicPartition {
	return []kafka.TopicPartition{{Stream: kafka.Timeline, Partition: p}, {Stream: kafka.Features, Partition: p}}
}

// TrueAge returns how old the content of an answer by a replica may be; UnknownAge if that
// is not known.
func (all *Replicas) TrueAge(p millrace.Partition, now time.Time) time.Duration {
	return all.whole(&all.replicas[p]).age(now)
}

// whole returns up to when a replica has all that came in from outside.
func (all *Replicas) whole(r *Replica) whole {
	through, fresh := all.through.Load(), r.fresh.Load()
	if through == 0 { // no partitioner has ever reported: what is in the log is all there is
		return whole{fresh, math.MaxInt64}
	}
	return whole{fresh, min(through, r.through.Load())}
}

// Proven reports whether partitioners have proven that everything that came in up to some
// time is in the log, and the age of every replica is known.
func (all *Replicas) Proven(now time.Time) bool {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.State() != Absent && all.TrueAge(r.partition, now) == UnknownAge {
			return false
		}
	}
	return all.through.Load() > 1
}

// Age returns the TrueAge of a replica if it is longer than Config.Limit, and else 0.
func (all *Replicas) Age(p millrace.Partition, now time.Time) time.Duration {
	return all.beyond(all.TrueAge(p, now))
}

// AgeOf returns the Age of a replica as it was at a look.
func (all *Replicas) AgeOf(l *Look, now time.Time) time.Duration {
	return all.beyond(l.whole.age(now))
}

// beyond returns an age if it is longer than Config.Limit, and else 0.
func (all *Replicas) beyond(age time.Duration) time.Duration {
	if age > all.cfg.Limit {
		return age
	}
	return 0
}

// Serve makes a partition ready with the content that the store has. fresh is the time up
// to which that content counts as confirmed. Serve is for callers that have no log, do not
// call Run, and apply records by Bring.
func (all *Replicas) Serve(p millrace.Partition, fresh time.Time) {
	r := &all.replicas[p]
	all.load(r)
	r.fresh.Store(momentOf(fresh))
	r.reading.Store(1)
	r.state.Store(int32(Ready))
}

// load sets the replica's offsets, clock and trail to what the store has of the
// partition. It forgets an error of reading that lost noted: that was about the content
// before.
func (all *Replicas) load(r *Replica) {
	all.mu.Lock()
	delete(all.mu.lost, r.partition)
	all.mu.Unlock()
	at := all.cfg.Store.Applied(r.partition)
	r.applied[kafka.Timeline].Store(max(0, int64(at.Content)))
	r.applied[kafka.Features].Store(max(0, int64(at.Features)))
	r.clock.Store(int64(all.cfg.Store.Clock(r.partition)))
	r.trail.begin(r.Applied(), all.cfg.Store.Digest(r.partition))
	if at.Features > 0 {
		all.cfg.Host.HasFeatures()
	}
}

// ErrHeld is the error of Bring if a record could not be applied.
var ErrHeld = errors.New("replica: held back")

// Bring applies a fetch at once, in place of a poll of the log; see Serve. It waits for
// dead letters until ctx ends, and for nothing else.
func (all *Replicas) Bring(ctx context.Context, f streams.Fetched) error {
	r := &all.replicas[f.Partition]
	f.From, f.Epoch = millrace.Offset(r.applied[f.Stream].Load()), -1
	b := backlog{fetched: []streams.Fetched{f}, reading: r.reading.Load()}
	for {
		err := all.ingest.apply(ctx, r, &b)
		var h *Held
		switch {
		case err == nil:
			return nil
		case errors.As(err, &h) && h.Reason == DeadLetters && wait.For(ctx, time.Millisecond) == nil:
			continue // the dead letters are on their way
		}
		return fmt.Errorf("%w: %w", ErrHeld, err)
	}
}
