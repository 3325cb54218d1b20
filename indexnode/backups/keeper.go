// Package backups backs up what an index node has, and restores it. It works between the
// store's files and the log on one side and the bucket (internal/backup) on the other. A
// node backs up at intervals, and restores a replica that has lost its data or its place
// in the log. The command line does both for a whole cluster.
//
// A backup is of one partition: a manifest in the bucket, which names files of the store by
// their hashes, and has the offsets that were applied and a digest of what was. A cut is
// one moment of the whole log. For each partition it has a backup and a tail, the records
// of the log from the backup to that moment. A drill restores a backup to see that it
// works. A witness is a replica that is made anew to see which of several is right.
package backups

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/backup"
	"github.com/millrace/millrace/internal/backup/objects"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Config says where, how often and how much is backed up.
type Config struct {
	To           string        `yaml:"to" form:"URL" doc:"where backups go: s3://bucket/prefix, gs://, azblob:// or file:///dir, the same for all nodes; left out: there are none, and the log must keep everything"`
	Insecure     bool          `yaml:"insecure,omitempty" doc:"true: a store of objects may be spoken to by plain text (endpoint=http://host:port) beyond loopback, where other means guard the network"`
	Every        time.Duration `yaml:"every" range:"0s.." doc:"how often a partition is backed up"`
	Keep         int           `yaml:"keep" range:"0.." doc:"how many backups of each partition are kept"`
	MiBPerSecond int64         `yaml:"mib_per_second" unit:"MiB a second" doc:"at most, of what is uploaded; negative: no bound"`
	Drill        time.Duration `yaml:"drill" doc:"how often the cluster tries to restore one of them; negative: never"`
}

// The defaults of a [Config].
const (
	DefaultEvery        = 15 * time.Minute
	DefaultKeep         = 24
	DefaultMiBPerSecond = 64
)

// WithDefaults fills in what was left out.
func (c Config) WithDefaults() Config {
	c.Every = cmp.Or(c.Every, DefaultEvery)
	c.Keep = cmp.Or(c.Keep, DefaultKeep)
	c.MiBPerSecond = cmp.Or(c.MiBPerSecond, DefaultMiBPerSecond)
	c.Drill = cmp.Or(c.Drill, DefaultDrill)
	return c
}

// Validate reports every fault at once.
func (c Config) Validate() error {
	var errs []error
	need := func(ok bool, field, detail, wayOut string) {
		if !ok {
			errs = append(errs, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "backup." + field, Detail: detail, WayOut: wayOut})
		}
	}
	need(c.To != "" || c == Config{} || c == Config{}.WithDefaults(), "to", "nothing says where backups go", "name a bucket, such as s3://bucket/prefix or file:///dir")
	need(c.Every >= 0, "every", fmt.Sprintf("%s is negative", c.Every), "leave it out for 15m")
	need(c.Keep >= 0, "keep", fmt.Sprintf("%d backups cannot be kept", c.Keep), "leave it out for 24")
	if c.To != "" {
		errs = append(errs, objects.CheckURL(c.To, c.Insecure))
	}
	return errors.Join(errs...)
}

// KeeperConfig is what a [Keeper] works with. All of it is required, except Asked and
// Retention.
type KeeperConfig struct {
	Config
	Node     millrace.NodeID
	Identity func(context.Context) (backup.Identity, error) // of the cluster
	Store    *store.Store
	Dir      string              // the Keeper's own, on the store's file system
	Mine     func() topology.Set // which partitions this node is to back up now
	// Whole reports whether the node has all of a partition, so that it can be backed up.
	Whole func(millrace.Partition) bool
	// Asked reports whether a request came since its last call. Backups then take little of
	// the processors. nil: none ever comes.
	Asked func() bool
	// Retention is the store's: how long and how many records of a content type are kept.
	Retention map[millrace.ContentType]store.Retention
	Log       *slog.Logger
}

// Keeper backs up the partitions of a node, and brings them back. It is a
// replica.Backups.
type Keeper struct {
	cfg      KeeperConfig
	counters counters
	drills   drills
	pacer    *pacer
	hashes   backup.Hashes // of the store's files
	last     struct {      // the schemas of the last restore
		sync.Mutex
		ref  backup.Ref
		rows map[millrace.Fingerprint][]byte
	}
	opening chan struct{} // holds a token while the bucket is opened; taken before mu
	mu      struct {
		sync.Mutex
		bucket  *backup.Bucket
		failed  error                                   // why the bucket could not be opened, if the attempt took long
		retryAt time.Time                               // until then callers get failed, and nobody tries again
		known   map[millrace.Partition]*backup.Manifest // the newest backup of each partition, as far as it was read
	}
}

// NewKeeper returns a Keeper that has not opened the bucket yet, which may be
// unreachable. It removes what an earlier one has left in its directory. Close it at the
// end.
func NewKeeper(cfg KeeperConfig) (*Keeper, error) {
	if err := cfg.Config.Validate(); err != nil {
		return nil, err
	}
	cfg.Config = cfg.Config.WithDefaults()
	if cfg.Asked == nil {
		cfg.Asked = func() bool { return false }
	}
	k := &Keeper{cfg: cfg, pacer: newPacer(cfg.Asked), opening: make(chan struct{}, 1)}
	k.mu.known = map[millrace.Partition]*backup.Manifest{}
	for _, left := range []string{"out", "drill"} {
		if err := os.RemoveAll(filepath.Join(cfg.Dir, left)); err != nil {
			return nil, fmt.Errorf("backups: %w", err)
		}
	}
	if err := os.MkdirAll(cfg.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("backups: %w", err)
	}
	return k, nil
}

// Close releases the bucket.
func (k *Keeper) Close() error {
	k.opening <- struct{}{} // if the bucket is being opened, wait, and close it, too
	defer func() { <-k.opening }()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.bucket == nil {
		return nil
	}
	return k.mu.bucket.Close()
}

const (
	// slowFailure is how long an attempt to open the bucket must take so that its failure
	// counts for all who ask soon after it. Dozens of partitions ask at a time, and must
	// not each wait for a bucket that hangs.
	slowFailure = time.Second
	// reopenAfter is the pause after such an attempt.
	reopenAfter = 10 * time.Second
)

// bucket returns the cluster's bucket, which it opens when it is first asked
// for. One caller opens it; the others wait for that as long as their ctx allows.
func (k *Keeper) bucket(ctx context.Context) (*backup.Bucket, error) {
	if b, err := k.opened(); b != nil || err != nil {
		return b, err
	}
	select {
	case k.opening <- struct{}{}:
		defer func() { <-k.opening }()
	case <-ctx.Done():
		return nil, fmt.Errorf("backups: wait for the bucket to be opened: %w", context.Cause(ctx))
	}
	if b, err := k.opened(); b != nil || err != nil {
		return b, err
	}
	began := time.Now()
	b, err := k.open(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	switch gaveUp := errors.Is(context.Cause(ctx), context.Canceled); {
	case err == nil:
		k.mu.bucket, k.mu.failed = b, nil
	case time.Since(began) >= slowFailure && !gaveUp:
		k.mu.failed, k.mu.retryAt = err, time.Now().Add(reopenAfter)
	}
	return b, err
}

// opened returns the bucket if it is open, or else why nobody may try to open it now. It
// returns neither if the caller is to open it.
func (k *Keeper) opened() (*backup.Bucket, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.mu.failed != nil && time.Now().Before(k.mu.retryAt) {
		return nil, fmt.Errorf("backups: the bucket could not be opened some seconds ago: %v", k.mu.failed) // not %w: the ctx of another caller may have ended the attempt
	}
	return k.mu.bucket, nil
}

func (k *Keeper) open(ctx context.Context) (*backup.Bucket, error) {
	whose, err := k.cfg.Identity(ctx)
	if err != nil {
		return nil, err
	}
	b, err := backup.Open(ctx, k.cfg.To, backup.Options{Insecure: k.cfg.Insecure, BytesPerSecond: max(0, k.cfg.MiBPerSecond<<20), Pace: k.pacer.pace, Log: k.cfg.Log})
	if err != nil {
		return nil, err
	}
	if err := b.Claim(ctx, whose); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	return b, nil
}

const (
	// again is the pause after a round that failed.
	again = 30 * time.Second
	// settle is how long a node runs before its first round: a start is busy.
	settle = 20 * time.Second
	// uploads is how many partitions are uploaded at a time.
	uploads = 4
)

// about waits for a random part of d, from half to all of it, so that nodes do not all do
// the same at once. It returns early, with ctx's error, when ctx is done.
func about(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d/2 + rand.N(d/2+1))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Run backs up at intervals until ctx is done, and returns ctx's error. It logs failures,
// and tries again.
func (k *Keeper) Run(ctx context.Context) error {
	next := min(settle, k.cfg.Every)
	for {
		if err := about(ctx, next); err != nil {
			return err
		}
		next = k.cfg.Every
		if err := k.Backup(ctx); err != nil && ctx.Err() == nil {
			k.cfg.Log.Error("a backup failed; trying again", "err", err, "after", min(again, k.cfg.Every))
			next = min(again, k.cfg.Every)
		}
	}
}

// Backup backs up once what this node is to back up. If one partition fails, the others
// go on. The node that backs up partition 0 then expires what is too much in the bucket.
// One node does that for all, because expiry reads all backups there are to see which
// files they name.
func (k *Keeper) Backup(ctx context.Context) error {
	set := k.cfg.Mine()
	for p := range set.All() {
		if !k.cfg.Whole(p) {
			set.Remove(p)
		}
	}
	if set.Len() == 0 {
		k.counters.idle()
		return nil
	}
	r := round{k: k, begun: time.Now()}
	k.counters.begin(&r)
	err := r.run(ctx, set)
	k.counters.end(&r, err)
	return err
}

// round is one backup of all partitions that a node is to back up.
type round struct {
	k        *Keeper
	bucket   *backup.Bucket
	begun    time.Time
	progress *backup.Progress
	mu       sync.Mutex
	result   // guarded by mu
}

// result is what a round did.
type result struct {
	partitions, unchanged int   // partitions with a backup of now; those whose newest backup was of this state already
	files, uploaded       int   // files of the other partitions; those that the bucket lacked
	bytes, uploadedBytes  int64 // of these files
}

func (r *round) run(ctx context.Context, set topology.Set) (err error) {
	if r.bucket, err = r.k.bucket(ctx); err != nil {
		return err
	}
	dir := filepath.Join(r.k.cfg.Dir, "out")
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("backups: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	whole, failed := r.k.cfg.Store.Checkpoint(slices.Collect(set.All()), dir)
	if len(whole) > 0 {
		failed = errors.Join(failed, r.upload(ctx, whole, dir))
	}
	if failed == nil {
		r.k.cfg.Log.Info("backed up", "partitions", r.partitions, "unchanged", r.unchanged, "files", r.files, "uploaded", r.uploaded, "bytes", r.bytes, "uploaded_bytes", r.uploadedBytes, "took", time.Since(r.begun).Round(time.Millisecond))
	}
	if set.Has(expires) {
		if err := r.expire(ctx); failed == nil { // also after a failure: a full bucket needs it most
			failed = err
		}
	}
	return failed
}

// expires is the partition whose node also expires backups, see [Keeper.Backup].
const expires = 0

func (r *round) upload(ctx context.Context, whole []store.Checkpoint, dir string) error {
	schemas, err := putSchemas(ctx, r.bucket, whole[0].Schemas)
	if err != nil {
		return err
	}
	r.progress = backup.NewProgress(0)
	r.k.hashes.NewRound()
	b := r.bucket.Counted(r.progress)
	known, err := r.k.newest(ctx)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(uploads)
	errs := make([]error, len(whole))
	turn := r.k.cfg.Every / time.Duration(2*len(whole))
	for i := range whole {
		c, newest := &whole[i], known[whole[i].Partition]
		m := manifest(c, r.k.cfg.Node, schemas, r.k.cfg.Retention)
		if newest != nil && sameState(m, newest) {
			g.Go(func() error {
				if err := r.lookOver(ctx, b, m, dir, newest); err != nil {
					errs[i] = fmt.Errorf("partition %d: %w", c.Partition, err)
				}
				return nil
			})
			continue
		}
		g.Go(func() error {
			if err := r.uploadOne(ctx, b, m, dir, newest); err != nil {
				errs[i] = fmt.Errorf("partition %d: %w", c.Partition, err)
			}
			return nil
		})
		r.k.pacer.rest(ctx, r.k.pacer.backups, turn) // while requests come, a round takes up to half of the interval
	}
	_ = g.Wait() // errs has them
	return errors.Join(errs...)
}

// lookOver is for a partition that is still in the state of its newest backup. It looks
// whether the files of that backup are there, since somebody may have removed them, and
// uploads the partition anew if not. It makes one request a file, as an upload does at
// least.
func (r *round) lookOver(ctx context.Context, b *backup.Bucket, m *backup.Manifest, dir string, newest *backup.Manifest) error {
	err := b.Look(ctx, newest)
	var missing backup.MissingFiles
	switch {
	case errors.As(err, &missing):
		r.k.cfg.Log.Error("files of the newest backup of a partition are gone or damaged; it is backed up anew", "partition", m.Partition, "backup", newest.ID, "files", len(missing), "err", err)
		return r.uploadOne(ctx, b, m, dir, nil)
	case err != nil:
		return err
	}
	r.count(func(t *result) { t.partitions++; t.unchanged++ })
	return nil
}

// uploadOne uploads a partition, except the files that newest, its newest backup, has.
// newest is nil if every file is to be looked for.
func (r *round) uploadOne(ctx context.Context, b *backup.Bucket, m *backup.Manifest, dir string, newest *backup.Manifest) error {
	for tries := 0; ; tries++ {
		known := newest.Known()
		for i := range m.Files {
			ref, uploaded, err := b.PutFile(ctx, filepath.Join(dir, m.Files[i].Name), known, &r.k.hashes)
			if err != nil {
				return err
			}
			m.Files[i].Ref = ref
			r.count(func(t *result) {
				t.files++
				t.bytes += ref.Size
				if uploaded {
					t.uploaded++
					t.uploadedBytes += ref.Size
				}
			})
		}
		err := b.WriteManifest(ctx, m)
		var missing backup.MissingFiles
		if errors.As(err, &missing) && tries < 3 {
			newest = nil // not all files that it names are there: look for every file
			continue
		}
		if err != nil {
			return err
		}
		break
	}
	r.k.remember(m)
	r.count(func(t *result) { t.partitions++ })
	return nil
}

func (r *round) count(add func(*result)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	add(&r.result)
}

// expire removes the backups beyond those that are kept, and files that nothing names.
func (r *round) expire(ctx context.Context) error {
	gone, err := r.bucket.Expire(ctx, backup.ExpireOptions{Keep: r.k.cfg.Keep})
	if gone.Backups > 0 || gone.Files > 0 {
		r.k.cfg.Log.Info("expired", "backups", gone.Backups, "files", gone.Files, "bytes", gone.Bytes)
	}
	for _, d := range gone.Blocked {
		r.k.cfg.Log.Error("files stay that may be unnamed, since something cannot be read that may name them", "err", d)
	}
	return err
}

// newest returns the newest backup of each partition that has one. It lists the ids of all
// backups, and reads only those that it does not know yet.
func (k *Keeper) newest(ctx context.Context) (map[millrace.Partition]*backup.Manifest, error) {
	b, err := k.bucket(ctx)
	if err != nil {
		return nil, err
	}
	ids, err := b.AllIDs(ctx)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	known := maps.Clone(k.mu.known)
	k.mu.Unlock()
	for p, have := range known {
		if len(ids[p]) == 0 || ids[p][0] != have.ID {
			delete(known, p)
		} else {
			delete(ids, p)
		}
	}
	maps.DeleteFunc(ids, func(p millrace.Partition, all []string) bool { return known[p] != nil || len(all) == 0 })
	var g errgroup.Group
	g.SetLimit(4 * uploads)
	var mu sync.Mutex // of known
	for p, all := range ids {
		g.Go(func() error {
			m, err := b.Manifest(ctx, p, all[0])
			var damage *backup.Damage
			if errors.As(err, &damage) {
				k.cfg.Log.Error("the newest backup of a partition is damaged; a full one is made", "partition", p, "err", err)
				return nil
			}
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			known[p] = m
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.known = known
	return maps.Clone(known), nil
}

func (k *Keeper) remember(m *backup.Manifest) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.mu.known[m.Partition] = m
}
