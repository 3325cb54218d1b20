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
	// Written keeps the caches equal to the store after a commit: what records
	// did, and whose features changed. The caller holds the partition's lock
	// for writing.
	Written(s kafka.Stream, changes []store.Change, routes []millrace.Entity)
	// Forget empties the caches: the store has less than they, or other.
	Forget()
	// ForgetPartition removes from the caches all timelines that the store has
	// of a partition. Nobody reads or writes the partition meanwhile.
	ForgetPartition(millrace.Partition) error
	// HasFeatures says that some entity has features.
	HasFeatures()
	// Applied and Refused count.
	Applied(s kafka.Stream, changes []store.Change, records int)
	Refused(reason schemas.Reason)
}

// Letters keeps what is refused; see kafka.Producer.
type Letters interface {
	ProduceThen(ctx context.Context, o kafka.Outgoing, then func(error))
}

// SchemaLog tells of schemas that come; see schemalog.Log.
type SchemaLog interface {
	Moved() <-chan struct{}
	Refused(millrace.Fingerprint) bool
}

// Input tells up to when what came in is in the log; see progress.Log.
type Input interface {
	Through() (through time.Time, known bool)
	Moved() <-chan struct{}
}

// Warmer fills the caches for a replica before it is announced, within a bound.
type Warmer interface {
	// Warm reports whether a partition need not be waited for, and else how far
	// it is. The first call of a replica's life begins the warming; what ends
	// it calls [Replicas.Wake].
	Warm(p millrace.Partition) (warm bool, progress string)
	// Cool says that the partition is no longer hosted.
	Cool(p millrace.Partition)
}

// Config is what replicas work with. All of it is required, but for Input,
// Keeps, Backups, Waited and Warmer.
type Config struct {
	Store     *store.Store
	Consumer  *streams.Consumer
	Topics    kafka.Topics
	Node      millrace.NodeID // who has the replicas; only with Backups
	Schemas   *registry.Registry
	SchemaLog SchemaLog
	Letters   Letters
	Input     Input // nil: nothing is known of what comes in
	Host      Host
	Aged      bool // some type is kept by age
	// Limit is how old an answer may be without being flagged.
	Limit time.Duration
	// Keeps reports why the log does not keep all that a new replica needs, or
	// cannot be asked; nil: it is believed to.
	Keeps func(context.Context) error
	// Backups are where partitions come from that have nothing, or nothing that
	// can be trusted or continued; nil: there are none.
	Backups Backups
	// Waited reports whether a partition has fewer ready replicas than it
	// should, so that somebody waits for it to be renewed; nil: always.
	Waited func(millrace.Partition) bool
	// Warmer is waited for before a replica is announced whose timelines are
	// not cached yet; nil: nothing is.
	Warmer Warmer
	Log    *slog.Logger
}

// Replicas are a node's replicas: one of each partition, most of them absent.
type Replicas struct {
	cfg      Config
	replicas [partition.Count]Replica
	ingest   ingest
	told     teller
	keeps    struct { // of the reconciler: what Config.Keeps said
		at  time.Time
		err error
	}
	renewals  sync.WaitGroup            // all that are under way, and records of them
	renewing  chan struct{}             // holds a token for each renewal that works and is waited for
	unhurried chan struct{}             // holds one for the one that is not
	dropping  *Replica                  // of the reconciler: which is being deleted
	dropAfter time.Time                 // likewise: when a deletion that failed is tried again
	begun     time.Time                 // of the reconciler: when it was asked where the log begins
	changed   chan struct{}             // holds one token when the reconciler should look
	moved     chan struct{}             // holds one token when states changed
	drainFor  time.Duration             // see drainFor
	seekFor   time.Duration             // see seekBackupFor
	answered  atomic.Pointer[time.Time] // when the backups last answered; nil: never
	paused    atomic.Int64              // until when nothing is applied, Unix ms; 0: it is
	through   atomic.Int64              // up to when input is in the log, Unix ms; 0: not known

	mu struct {
		sync.Mutex
		wanted topology.Set
		drop   topology.Set
		lost   map[millrace.Partition]error // see lost
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

// Configure gives replicas what they work with, before Run.
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

// Run reads the log and brings what is into line with what is wanted, until
// ctx is done: no outage and no damage ends it.
func (all *Replicas) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return all.ingest.run(ctx) })
	g.Go(func() error { return all.ingest.wakeForSchemas(ctx) })
	g.Go(func() error { return all.reconcile(ctx) })
	return g.Wait()
}

// Want says which partitions this node is to host. What is no longer hosted
// stays on disk until Drop names it: a mistaken map must not delete anything.
func (all *Replicas) Want(set topology.Set) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.mu.wanted = set
	poke(all.changed)
}

// Drop says which partitions this node is to delete from its disk, unless it is
// to host them.
func (all *Replicas) Drop(set topology.Set) {
	all.mu.Lock()
	defer all.mu.Unlock()
	all.mu.drop = set
	poke(all.changed)
}

// orders returns what is to be hosted, and what to be deleted.
func (all *Replicas) orders() (wanted, drop topology.Set) {
	all.mu.Lock()
	defer all.mu.Unlock()
	return all.mu.wanted, all.mu.drop
}

// Moved has a token when a replica changed its state, or a pause began or ended,
// since it was last taken.
func (all *Replicas) Moved() <-chan struct{} { return all.moved }

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// step moves a replica and says so.
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

// Pause has nothing applied until a time, whatever the log brings; the zero time
// ends a pause. It goes on by itself then, a moment later, and after a restart.
func (all *Replicas) Pause(until time.Time) {
	ms := int64(0)
	if !until.IsZero() {
		ms = until.UnixMilli()
	}
	all.paused.Store(ms)
	all.ingest.wake()
	poke(all.moved) // it is told, whether a record waits or not
}

// Paused returns until when nothing is applied; the zero time if it is.
func (all *Replicas) Paused(now time.Time) time.Time {
	if until := all.paused.Load(); until > now.UnixMilli() {
		return time.UnixMilli(until)
	}
	return time.Time{}
}

// Wake has the reconciler look soon.
func (all *Replicas) Wake() { poke(all.changed) }

// Condemn takes a partition out of service: what it has cannot be trusted or
// continued. It reports whether that changed anything: what is being replaced
// already is not known yet, and cannot be condemned.
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

// CondemnDamaged takes a partition out of service if the store has it in
// quarantine now, and reports whether that changed anything. What somebody found
// of it may be of what was replaced since.
func (all *Replicas) CondemnDamaged(p millrace.Partition) bool {
	err := all.cfg.Store.Quarantined(p)
	return errors.Is(err, store.ErrCorrupt) && all.Condemn(p, whyQuarantined(err))
}

// lost notes what reading a log said that does not have what comes next. The
// reconciler asks Kafka for the rest.
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

func (all *Replicas) stopReading(r *Replica) {
	if n := r.reading.Load(); n%2 == 0 || !r.reading.CompareAndSwap(n, n+1) {
		return
	}
	if all.cfg.Consumer != nil { // or it is served without a log
		all.cfg.Consumer.Remove(both(r.partition)...)
	}
}

// both returns the timeline and the features partition.
func both(p millrace.Partition) []kafka.TopicPartition {
	return []kafka.TopicPartition{{Stream: kafka.Timeline, Partition: p}, {Stream: kafka.Features, Partition: p}}
}

// TrueAge is how old an answer by a replica may be.
func (all *Replicas) TrueAge(p millrace.Partition, now time.Time) time.Duration {
	return all.whole(&all.replicas[p]).age(now)
}

// whole returns up to when a replica has all that came in.
func (all *Replicas) whole(r *Replica) whole {
	through, fresh := all.through.Load(), r.fresh.Load()
	if through == 0 { // no partitioner ever wrote: the log is all that there is
		return whole{fresh, math.MaxInt64}
	}
	return whole{fresh, min(through, r.through.Load())}
}

// Proven reports whether partitioners have proven that what came in up to some
// time is in the log, and every replica has reached such a time.
func (all *Replicas) Proven(now time.Time) bool {
	for p := range all.replicas {
		if r := &all.replicas[p]; r.State() != Absent && all.TrueAge(r.partition, now) == UnknownAge {
			return false
		}
	}
	return all.through.Load() > 1
}

// Age is the same where it is longer than the limit, and 0 otherwise.
func (all *Replicas) Age(p millrace.Partition, now time.Time) time.Duration {
	return all.beyond(all.TrueAge(p, now))
}

// AgeOf is the Age of what was looked at.
func (all *Replicas) AgeOf(l *Look, now time.Time) time.Duration {
	return all.beyond(l.whole.age(now))
}

func (all *Replicas) beyond(age time.Duration) time.Duration {
	if age > all.cfg.Limit {
		return age
	}
	return 0
}

// Serve makes a partition ready as it is in the store, up to a time, for who
// applies by Bring and has no log.
func (all *Replicas) Serve(p millrace.Partition, fresh time.Time) {
	r := &all.replicas[p]
	all.load(r)
	r.fresh.Store(momentOf(fresh))
	r.reading.Store(1)
	r.state.Store(int32(Ready))
}

// load takes over what the store has of a partition. What reading the log said
// was about what was there before.
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

// ErrHeld is what Bring returns for what is held back.
var ErrHeld = errors.New("replica: held back")

// Bring applies what one poll of the log would bring, at once; see Serve.
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
			continue // they are on their way
		}
		return fmt.Errorf("%w: %w", ErrHeld, err)
	}
}
