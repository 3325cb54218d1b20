package backups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/kafka/streams"
	"github.com/millrace/millrace/schemas"
	"github.com/millrace/millrace/schemas/registry"
)

// Target is a state of the cluster to go back to: a cut, a time, or, if it is
// zero, the newest backups, each partition for itself.
type Target struct {
	Cut  string
	Time time.Time
}

// RestoreConfig says what is brought back, and where to.
type RestoreConfig struct {
	Bucket     *backup.Bucket
	To         Target
	Partitions topology.Set
	// Data is the directory of a node that does not run. Its store must not be
	// there yet.
	Data    string
	Brokers kafka.Brokers // the Kafka of the log; only a Time and NewLog need it
	Topics  kafka.Topics
	// NewLog: the log was created anew. The node then goes on at its beginning, and the
	// log gets the schemas of the backups.
	NewLog   bool
	Store    store.Options
	Progress *backup.Progress // may be nil
	// Older is told of each partition that is restored from an older backup because a
	// newer one is damaged. Several goroutines may call it at once. nil: only Log is told.
	Older func(p millrace.Partition, instead *backup.Manifest, damage error)
	Log   *slog.Logger
}

// RestoreData makes the store of a node out of backups. It works in the directory
// store.restoring, and renames it to store at the end. After a failure the next call goes
// on where this one was. It returns how many partitions it restored, also with an error.
// When the node starts, it reads the log on from the state that was restored.
func RestoreData(ctx context.Context, cfg RestoreConfig) (restored int, err error) {
	place := filepath.Join(cfg.Data, "store")
	if _, err := os.Stat(place); !errors.Is(err, os.ErrNotExist) {
		return 0, errors.Join(err, &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "data", Detail: fmt.Sprintf("%s has a store", cfg.Data),
			WayOut: "name another directory, or move its store away; nothing was touched",
		})
	}
	r := restorer{cfg: cfg, dir: filepath.Join(cfg.Data, "backup")}
	plan, err := r.plan(ctx) // before anything is written
	if err != nil {
		return 0, err
	}
	work := place + ".restoring"
	if err := os.MkdirAll(work, 0o700); err != nil {
		return 0, fmt.Errorf("backups: %w", err)
	}
	cfg.Store.Offline, cfg.Store.Log = true, cfg.Log
	s, err := store.Open(work, cfg.Store)
	if err != nil {
		return 0, err
	}
	r.store = s
	restored, err = r.carry(ctx, plan)
	if err = errors.Join(err, s.Close()); err != nil {
		if restored == 0 && ctx.Err() == nil && damaged(err) { // there is nothing that a later try could go on with
			err = errors.Join(err, os.RemoveAll(work), os.RemoveAll(r.dir))
		}
		return restored, err
	}
	return restored, errors.Join(os.Rename(work, place), os.RemoveAll(r.dir))
}

// restorer restores partitions into a store that nobody else uses.
type restorer struct {
	cfg   RestoreConfig
	store *store.Store
	dir   string // for downloads, tails and the mark
	mu    sync.Mutex
	done  int // partitions restored; guarded by mu
}

// run restores what cfg says, and returns how many partitions it restored.
func (r *restorer) run(ctx context.Context) (int, error) {
	plan, err := r.plan(ctx)
	if err != nil {
		return 0, err
	}
	return r.carry(ctx, plan)
}

// carry carries out a plan, and returns how many partitions it restored.
func (r *restorer) carry(ctx context.Context, plan []way) (int, error) {
	if err := r.begin(plan); err != nil {
		return 0, err
	}
	for i := range plan {
		r.cfg.Progress.Expect(plan[i].from.Bytes() + plan[i].tail.Size)
	}
	g, each := errgroup.WithContext(ctx)
	g.SetLimit(restores)
	for i := range plan {
		g.Go(func() error {
			if err := r.bring(each, &plan[i]); err != nil {
				return fmt.Errorf("partition %d: %w", plan[i].from.Partition, err)
			}
			r.mu.Lock()
			defer r.mu.Unlock()
			r.done++
			return nil
		})
	}
	err := g.Wait()
	if err == nil && !r.cfg.To.Time.IsZero() {
		err = r.follow(ctx, plan)
	}
	if err == nil && r.cfg.NewLog {
		err = r.beginLog(ctx, plan)
	}
	return r.done, err
}

// way says how a partition is restored: from a backup, and from a tail, a piece of the
// log that a cut has in the bucket.
type way struct {
	from *backup.Manifest
	tail backup.Ref     // zero: none
	to   backup.Offsets // the offsets of the partition once it is restored
	any  backup.Offsets // only for a restore to a time: the offsets up to which the log is read
	// older finds the newest backup before from that would do, or nil. It is nil itself if
	// no other backup would do, as for a cut.
	older func(ctx context.Context, from *backup.Manifest) (*backup.Manifest, error)
}

// plan returns how each partition of the configuration is restored. It writes nothing.
func (r *restorer) plan(ctx context.Context) ([]way, error) {
	switch {
	case r.cfg.To.Cut != "":
		return r.toCut(ctx)
	case !r.cfg.To.Time.IsZero():
		return r.toTime(ctx)
	}
	return r.ways(ctx, func(ctx context.Context, p millrace.Partition) (*way, error) {
		all := func(*backup.Manifest) bool { return true }
		m, err := r.newest(ctx, p, all)
		if m == nil {
			return nil, err
		}
		return &way{from: m, to: m.Applied, older: r.olderThat(all)}, nil
	})
}

// olderThat returns the older of a way: do says which backups would do.
func (r *restorer) olderThat(do func(*backup.Manifest) bool) func(context.Context, *backup.Manifest) (*backup.Manifest, error) {
	return func(ctx context.Context, from *backup.Manifest) (*backup.Manifest, error) {
		return r.newest(ctx, from.Partition, func(m *backup.Manifest) bool { return m.ID < from.ID && do(m) })
	}
}

// ways finds how each partition of the configuration is restored, several at a time. It
// fails if there is no way for one of them.
func (r *restorer) ways(ctx context.Context, find func(context.Context, millrace.Partition) (*way, error)) ([]way, error) {
	asked := slices.Collect(r.cfg.Partitions.All())
	found := make([]*way, len(asked))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(restores)
	for i, p := range asked {
		g.Go(func() (err error) {
			found[i], err = find(ctx, p)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	var plan []way
	var lacking topology.Set
	for i, w := range found {
		if w == nil {
			lacking.Add(asked[i])
			continue
		}
		plan = append(plan, *w)
	}
	return plan, lack(lacking)
}

// newest returns the newest backup of a partition for which do returns true and that can be
// read, or nil. If a newer one is damaged, it tells Older.
func (r *restorer) newest(ctx context.Context, p millrace.Partition, do func(*backup.Manifest) bool) (*backup.Manifest, error) {
	var damage *backup.Damage // the first
	told := func(d *backup.Damage) {
		r.cfg.Log.Error("a backup is damaged", "err", d)
		if damage == nil {
			damage = d
		}
	}
	for m, err := range r.cfg.Bucket.Manifests(ctx, p, r.cfg.To.Time, told) {
		if err != nil {
			return nil, err
		}
		if do(m) {
			if damage != nil && r.cfg.Older != nil {
				r.cfg.Older(p, m, damage)
			}
			return m, nil
		}
	}
	return nil, nil
}

// lack returns an error that names the lacking partitions; nil if there are none.
func lack(lacking topology.Set) error {
	n := lacking.Len()
	if n == 0 {
		return nil
	}
	return &millrace.Error{
		Reason: millrace.ReasonUnavailable, Field: "to", Detail: fmt.Sprintf("%d partitions have no backup that is old enough and whole: %s", n, &lacking),
		WayOut: "choose a later time, or fewer partitions; millrace backup list says what there is",
	}
}

// toCut returns how each partition is restored to a cut: from the backup and the tail that
// the cut names.
func (r *restorer) toCut(ctx context.Context) ([]way, error) {
	cut, err := r.cfg.Bucket.Cut(ctx, r.cfg.To.Cut)
	if err != nil {
		return nil, err
	}
	return r.ways(ctx, func(ctx context.Context, p millrace.Partition) (*way, error) {
		part, m, err := r.cfg.Bucket.CutPart(ctx, cut, p)
		if err != nil {
			return nil, err
		}
		return &way{from: m, tail: part.Tail, to: part.To}, nil
	})
}

// bring restores one partition. If a backup is damaged, it takes the one before it.
func (r *restorer) bring(ctx context.Context, w *way) error {
	for {
		failed := r.restorePartition(ctx, w)
		if failed == nil || ctx.Err() != nil || w.older == nil || !damaged(failed) {
			return failed
		}
		m, err := w.older(ctx, w.from)
		if m == nil {
			return errors.Join(failed, err)
		}
		r.cfg.Log.Error("a backup is damaged; taking an older one", "partition", m.Partition, "backup", w.from.ID, "older", m.ID, "err", failed)
		if r.cfg.Older != nil {
			r.cfg.Older(m.Partition, m, failed)
		}
		r.cfg.Progress.Expect(m.Bytes())
		if w.any == (backup.Offsets{}) { // not a restore to a time: the partition is then where the backup is
			w.to = m.Applied
		}
		w.from = m
	}
}

// restorePartition restores a partition as w says, unless an earlier try did. It does not
// read the log.
func (r *restorer) restorePartition(ctx context.Context, w *way) error {
	p := w.from.Partition
	if r.has(w) {
		return nil
	}
	b := r.cfg.Bucket.Counted(r.cfg.Progress)
	if err := Restore(ctx, b, w.from, r.store, incoming(filepath.Join(r.dir, "in"))); err != nil {
		return err
	}
	if w.tail.IsZero() {
		return nil
	}
	path := filepath.Join(r.dir, fmt.Sprintf("tail-%03d", p))
	if err := b.GetFile(ctx, w.tail, path); err != nil {
		return err
	}
	a, err := newApplier(ctx, r.store, p, r.cfg.Store.Retention)
	if err != nil {
		return err
	}
	if err := errors.Join(readTail(path, a), os.Remove(path)); err != nil {
		return err
	}
	return a.finish(w.to)
}

// applier applies a tail to a store as a replica applies the log. It is a tailTaker.
type applier struct {
	ctx      context.Context
	store    *store.Store
	p        millrace.Partition
	aged     bool                // a content type has a maximal age
	given    givenUp             // the schemas that an operator has given up
	replicas *replica.Replicas   // nil until the first records are applied
	gathered [2][]streams.Record // by stream: records that are not applied yet
}

func newApplier(ctx context.Context, s *store.Store, p millrace.Partition, retention map[millrace.ContentType]store.Retention) (*applier, error) {
	a := &applier{ctx: ctx, store: s, p: p, given: givenUp{}}
	for _, r := range retention {
		a.aged = a.aged || r.MaxAge > 0
	}
	return a, nil
}

// givenUp is the log of schemas for replicas, after it was read to its end: the
// fingerprints that an operator has given up.
type givenUp map[millrace.Fingerprint]bool

func (givenUp) Moved() <-chan struct{}                 { return nil }
func (g givenUp) Refused(fp millrace.Fingerprint) bool { return g[fp] }

// nobody is the host of replicas that have no node around them: there is nothing to tell.
type nobody struct{}

func (nobody) Written(kafka.Stream, []store.Change, []millrace.Entity) {}
func (nobody) Forget()                                                 {}
func (nobody) ForgetPartition(millrace.Partition) error                { return nil }
func (nobody) HasFeatures()                                            {}
func (nobody) Applied(kafka.Stream, []store.Change, int)               {}
func (nobody) Refused(schemas.Reason)                                  {}

// ProduceThen drops a dead letter: the log has the one that was written when a node first
// applied the record.
func (nobody) ProduceThen(_ context.Context, _ kafka.Outgoing, then func(error)) { then(nil) }

func (a *applier) schema(fp millrace.Fingerprint, row []byte) error {
	return a.store.ReplaceSchema(fp, row)
}

func (a *applier) refused(fp millrace.Fingerprint) error {
	a.given[fp] = true
	return nil
}

func (a *applier) begin() error {
	var err error
	if a.replicas, err = replay(a.store, a.given, a.aged); err == nil {
		a.replicas.Serve(a.p, time.Now())
	}
	return err
}

// replay returns replicas on a store that apply the records they are brought, by the
// schemas that the store has.
func replay(s *store.Store, given givenUp, aged bool) (*replica.Replicas, error) {
	registry, err := registry.New(replica.StoredSchemas(s), nil)
	if err != nil {
		return nil, err
	}
	return replica.New(replica.Config{
		Store: s, Schemas: registry, SchemaLog: given, Letters: nobody{}, Host: nobody{}, Aged: aged, Log: slog.New(slog.DiscardHandler),
	}), nil
}

// gatherRecords is how many records are applied at a time.
const gatherRecords = 500

func (a *applier) add(s kafka.Stream, r *streams.Record) error {
	a.gathered[s] = append(a.gathered[s], *r)
	if len(a.gathered[s]) < gatherRecords {
		return nil
	}
	return a.apply(s, r.Offset+1)
}

// apply applies what was gathered of a stream, whose next offset is then next.
func (a *applier) apply(s kafka.Stream, next millrace.Offset) error {
	if a.replicas == nil {
		if err := a.begin(); err != nil {
			return err
		}
	}
	f := streams.Fetched{TopicPartition: kafka.TopicPartition{Stream: s, Partition: a.p}, Records: a.gathered[s], Next: next}
	err := a.replicas.Bring(a.ctx, f)
	a.gathered[s] = a.gathered[s][:0]
	return err
}

// errBeside says that a tail does not end where its cut is.
var errBeside = errors.New("backups: the tail does not end at the cut")

// finish applies the rest of the tail, and checks that the partition is then at the cut.
func (a *applier) finish(to backup.Offsets) error {
	for s, next := range []millrace.Offset{to.Content, to.Features} {
		if err := a.apply(kafka.Stream(s), next); err != nil {
			return err
		}
	}
	if got := a.store.Applied(a.p); got != store.Offsets(to) {
		return fmt.Errorf("%w: it is at %+v, and should be at %+v", errBeside, got, to)
	}
	return nil
}
