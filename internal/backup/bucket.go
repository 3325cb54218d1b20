// Package backup keeps backups of a cluster in a bucket: a directory or a prefix of an
// object store. It is the only package that knows the bucket's layout, and what may be
// removed from it.
//
// A backup is of one partition: a manifest, which names files by their hashes. A cut is
// one moment of the whole cluster: for each partition a part, which names a backup and a
// tail, the records of the log from the backup to that moment. Expiry removes old backups,
// and files that nothing names. A hold says which objects a backup is about to name, and a
// condemnation which ones an expiry is about to remove; see hold.go. Records tell of drills
// (restores for a test), of healed replicas, and of what people did.
package backup

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

// Options are how [Open] opens a bucket. The zero Options is valid.
type Options struct {
	// BytesPerSecond bounds what uploads and downloads move together; 0 is no
	// bound.
	BytesPerSecond int64
	// Pace is called after each piece of work, with how long that took, and returns when
	// the next may begin. Nil: there are no pauses.
	Pace objects.Pace
	// Insecure allows plain text to an object store beyond loopback.
	Insecure bool
	// Log gets a line for what is tried again; nil: nothing is logged.
	Log *slog.Logger
}

// Bucket is a directory or a prefix of an object store. It is safe for
// concurrent use.
type Bucket struct {
	objects  objects.Store // tries again, and calls pace
	body     objects.Store // the same without pace
	pace     objects.Pace  // Options.Pace
	limit    *rate.Limiter // of the bytes that move; nil is no bound
	gets     chan struct{} // holds one for each download that is under way
	progress *Progress     // nil: nothing is counted
	log      *slog.Logger
	cluster  *atomic.Pointer[Identity]   // the cluster that owns the bucket; nil until it was read
	former   *atomic.Pointer[[]Identity] // the clusters that owned it before; read together with cluster
	term     time.Duration               // condemnedTerm, except in tests; see hold.go
	poll     time.Duration               // between two looks at a condemnation
}

// Open opens the bucket at a URL:
//
//	file:///dir
//	s3://bucket/prefix?region=eu-central-1
//	s3://bucket/prefix?endpoint=http://127.0.0.1:7070
//	gs://bucket/prefix
//	azblob://container/prefix
//
// Credentials are those that the clouds' own tools find: AWS_ACCESS_KEY_ID and
// the like, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT and
// AZURE_STORAGE_KEY. Other parameters of the URL are those of gocloud.dev. It
// looks at the bucket once, so that a wrong name is refused here.
func Open(ctx context.Context, to string, o Options) (*Bucket, error) {
	if o.BytesPerSecond < 0 {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "backup.mib_per_second",
			Detail: fmt.Sprintf("%d is negative", o.BytesPerSecond), WayOut: "leave it out for no bound"}
	}
	body, err := objects.Open(ctx, to, o.Insecure)
	if err != nil {
		return nil, err
	}
	return newBucket(body, o), nil
}

// newBucket returns the bucket that body holds, with all objects of the store.
func newBucket(body objects.Store, o Options) *Bucket {
	b := &Bucket{pace: o.Pace, log: o.Log, cluster: new(atomic.Pointer[Identity]), former: new(atomic.Pointer[[]Identity]), term: condemnedTerm, poll: time.Second}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	b.gets = make(chan struct{}, downloads)
	b.body = &objects.Patient{Store: body, Log: b.log, TooMany: tooMany}
	b.objects = b.body
	if b.pace != nil {
		b.objects = &objects.Patient{Store: objects.Paced(body, b.pace), Log: b.log, TooMany: tooMany}
	}
	if o.BytesPerSecond > 0 {
		// The bound holds over a quarter of a second, but no burst is less than the chunk
		// that one read may have, or more than sixteen of them.
		b.limit = rate.NewLimiter(rate.Limit(o.BytesPerSecond), int(max(objects.Chunk, min(o.BytesPerSecond/4, 16*objects.Chunk))))
	}
	return b
}

// Close releases the bucket.
func (b *Bucket) Close() error { return b.objects.Close() }

// Unlimited returns the same bucket without the bound on bytes a second and without
// pauses, for a restore that somebody waits for. Close only the original.
func (b *Bucket) Unlimited() *Bucket {
	c := *b
	c.objects, c.pace, c.limit = b.body, nil, nil
	return &c
}

// Counted returns the same bucket, which counts in p the bytes that it moves. Close only
// the original.
func (b *Bucket) Counted(p *Progress) *Bucket {
	c := *b
	c.progress = p
	return &c
}

// Identity is a cluster: its name, and the id that it was given once.
type Identity struct {
	Name string `json:"name"`
	ID   string `json:"id"`
}

// String returns the identity as "prod (4f1c...)".
func (i Identity) String() string { return i.Name + " (" + i.ID + ")" }

func (i Identity) validate() error {
	if !short(i.Name) || !short(i.ID) {
		return fmt.Errorf("the cluster's name and id need 1 to %d bytes each", maxNameBytes)
	}
	return nil
}

// maxNameBytes bounds the names within a bucket's objects, such as those of clusters and
// nodes.
const maxNameBytes = 255

// short reports whether s is a name that an object may have: 1 to maxNameBytes bytes
// without a NUL or a line break.
func short(s string) bool {
	return s != "" && len(s) <= maxNameBytes && !strings.ContainsAny(s, "\x00\n")
}

// whose is the object that says which cluster owns a bucket.
type whose struct {
	Format     int      `json:"format"`
	Cluster    Identity `json:"cluster"`
	Partitions int      `json:"partitions"`
	// Former are clusters that owned the bucket before. It may still have their backups.
	Former []Identity `json:"former,omitempty"`
}

// whoseName is the name of the object whose.
const whoseName = "millrace.json"

// ErrUnclaimed is the error of [Bucket.Identity] for a bucket that no cluster owns yet.
var ErrUnclaimed = errors.New("backup: the bucket is no cluster's yet")

// Identity reads which cluster owns the bucket. The error is [ErrUnclaimed] if none does, a
// [Damage] if the object that says so cannot be read, and a refusal if the cluster has
// another number of partitions.
func (b *Bucket) Identity(ctx context.Context) (Identity, error) {
	var w whose
	_, err := b.readObject(ctx, whoseName, &w)
	switch {
	case objects.IsMissing(err):
		return Identity{}, ErrUnclaimed
	case err != nil:
		return Identity{}, err
	}
	if err := w.Cluster.validate(); err != nil {
		return Identity{}, &Damage{Object: whoseName, Kind: Torn, Detail: err.Error()}
	}
	if w.Partitions != partitions {
		return Identity{}, objects.Refuse(fmt.Sprintf("the bucket is of a cluster of %d partitions, and this has %d", w.Partitions, partitions), "use another prefix")
	}
	b.former.Store(&w.Former)
	return w.Cluster, nil
}

// Adopt gives the bucket, with all backups in it, to the cluster c. The cluster that owned
// it must not exist any more.
func (b *Bucket) Adopt(ctx context.Context, c Identity) error {
	owner, err := b.Identity(ctx)
	if err = errors.Join(err, c.validate()); err != nil {
		return fmt.Errorf("backup: adopt the bucket: %w", err)
	}
	w := whose{Format: format, Cluster: c, Partitions: partitions, Former: append([]Identity{owner}, *b.former.Load()...)}
	w.Former = slices.DeleteFunc(w.Former, func(one Identity) bool { return one == c })
	if err := b.replaceObject(ctx, whoseName, &w); err != nil {
		return fmt.Errorf("backup: adopt the bucket: %w", err)
	}
	b.former.Store(&w.Former)
	b.cluster.Store(&c)
	return nil
}

// was reports whether the cluster c owned the bucket before.
func (b *Bucket) was(c Identity) bool {
	former := b.former.Load()
	return former != nil && slices.Contains(*former, c)
}

// owner is [Bucket.Identity], read from the bucket only once.
func (b *Bucket) owner(ctx context.Context) (Identity, error) {
	if c := b.cluster.Load(); c != nil {
		return *c, nil
	}
	c, err := b.Identity(ctx)
	if err == nil {
		b.cluster.Store(&c)
	}
	return c, err
}

// Claim makes the cluster c the owner of a bucket that has none. It refuses a bucket that
// another cluster owns.
func (b *Bucket) Claim(ctx context.Context, c Identity) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("backup: claim the bucket: %w", err)
	}
	err := b.createObject(ctx, whoseName, &whose{Format: format, Cluster: c, Partitions: partitions})
	if err != nil && !objects.IsThere(err) {
		return fmt.Errorf("backup: claim the bucket: %w", err)
	}
	owner, err := b.Identity(ctx)
	if err != nil {
		return fmt.Errorf("backup: claim the bucket: %w", err)
	}
	b.cluster.Store(&owner)
	if owner != c {
		return objects.Refuse(fmt.Sprintf("the bucket holds backups of the cluster %v, and this is %v", owner, c), "give each cluster a prefix of its own")
	}
	return nil
}
