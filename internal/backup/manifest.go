package backup

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

// Offsets are the next offsets to read in a partition of the topics timeline (Content) and
// features; -1 if nothing was ever applied.
type Offsets struct {
	Content  millrace.Offset `json:"content"`
	Features millrace.Offset `json:"features"`
}

// Digest is the digests of what a partition has applied of its two topics, timeline
// (Content) and features. Replicas at the same offsets have equal digests.
type Digest struct {
	Content  uint64 `json:"content,string"`
	Features uint64 `json:"features,string"`
}

// Retention is how much of a content type's timelines is kept; zeros keep all.
type Retention struct {
	MaxAge   time.Duration `json:"max_age"` // nanoseconds
	MaxCount int           `json:"max_count"`
}

// File is a file of a partition's store.
type File struct {
	Name string `json:"name"` // its name within the store's checkpoint
	Ref
	Bottom bool `json:"bottom"` // no other file has older versions of its rows: a restore ingests it unchanged
}

// Manifest is a backup of one partition. [Bucket.WriteManifest] sets Format,
// Cluster and ID.
type Manifest struct {
	Format    int                                `json:"format"`
	Cluster   Identity                           `json:"cluster"`
	Partition millrace.Partition                 `json:"partition"`
	ID        string                             `json:"id"`        // sorts by time
	Time      millrace.Time                      `json:"time"`      // when the backup was made
	Node      millrace.NodeID                    `json:"node"`      // which node made it
	Applied   Offsets                            `json:"applied"`   // what the backup has of the log
	Log       string                             `json:"log"`       // an id of the log that the offsets are of
	Origin    []byte                             `json:"origin"`    // the same, as the store encodes it
	Digest    Digest                             `json:"digest"`    // the digests of what was applied
	Clock     millrace.Time                      `json:"clock"`     // the log's own, from the timestamps of its records: retention counts ages by it
	Retention map[millrace.ContentType]Retention `json:"retention"` // by content type, what the node keeps; a type that is not there is kept whole
	Types     []millrace.ContentType             `json:"types"`     // the node's content types: every type that the records may be of
	Schemas   Ref                                `json:"schemas"`   // the registry of schemas
	Files     []File                             `json:"files"`     // sstables, the files of the store
}

// The bounds of a manifest.
const (
	maxFiles       = 1 << 16
	maxTypes       = 1 << 12
	maxOriginBytes = 1 << 10
	maxFileBytes   = 1 << 40
)

// goodFile is a name of an sstable. It has no slash, so a restore writes it nowhere else.
var goodFile = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]{0,123}\.sst$`)

// Refs returns every file that the manifest names, each once. The registry of schemas is
// among them.
func (m *Manifest) Refs() []Ref {
	seen := make(Known, len(m.Files)+1)
	var all []Ref
	add := func(r Ref) {
		if !r.IsZero() && !seen[r] {
			seen[r] = true
			all = append(all, r)
		}
	}
	add(m.Schemas)
	for _, f := range m.Files {
		add(f.Ref)
	}
	return all
}

// Known returns the manifest's files, for [Bucket.PutFile]. A nil manifest has none.
func (m *Manifest) Known() Known {
	known := Known{}
	if m != nil {
		for _, r := range m.Refs() {
			known[r] = true
		}
	}
	return known
}

// Bytes returns the size of all files together, in bytes.
func (m *Manifest) Bytes() (n int64) {
	for _, r := range m.Refs() {
		n += r.Size
	}
	return n
}

func (m *Manifest) validate() error {
	switch {
	case m.Partition >= partitions:
		return fmt.Errorf("partition %d is none of %d", m.Partition, partitions)
	case !goodID.MatchString(m.ID):
		return fmt.Errorf("id %.80q is none of a backup", m.ID)
	case !short(string(m.Node)):
		return fmt.Errorf("node: a name of 1 to %d bytes is needed", maxNameBytes)
	case m.Applied.Content < -1 || m.Applied.Features < -1:
		return fmt.Errorf("applied: %+v is less than nothing", m.Applied)
	case !short(m.Log):
		return fmt.Errorf("log: a name of 1 to %d bytes is needed", maxNameBytes)
	case len(m.Origin) > maxOriginBytes:
		return fmt.Errorf("origin: %d bytes; at most %d are kept", len(m.Origin), maxOriginBytes)
	case len(m.Files) > maxFiles:
		return fmt.Errorf("files: %d; at most %d are taken", len(m.Files), maxFiles)
	case len(m.Types) > maxTypes || len(m.Retention) > maxTypes:
		return fmt.Errorf("types: at most %d are taken", maxTypes)
	case len(m.Files) == 0 && (m.Applied != Offsets{-1, -1} || m.Digest != Digest{}):
		return fmt.Errorf("files: there are none, and applied says %+v, digest %x", m.Applied, m.Digest)
	}
	if err := validSizes(m.Schemas); err != nil {
		return fmt.Errorf("schemas: %w", err)
	}
	names := make(map[string]bool, len(m.Files))
	hashes := make(map[Hash]bool, len(m.Files))
	for i, f := range m.Files {
		if !goodFile.MatchString(f.Name) || names[f.Name] {
			return fmt.Errorf("files[%d].name: %.80q is no name of an sstable, or stands twice", i, f.Name)
		}
		if err := validSizes(f.Ref); err != nil || f.IsZero() {
			return fmt.Errorf("files[%d]: %w", i, errors.Join(err, errNoHash(f.Ref)))
		}
		// No two sstables of a store have the same bytes. With this check, a
		// manifest cannot make a restore download more than the bucket has.
		if hashes[f.SHA256] {
			return fmt.Errorf("files[%d].sha256: %v stands twice", i, f.SHA256)
		}
		names[f.Name] = true
		hashes[f.SHA256] = true
	}
	return nil
}

func errNoHash(r Ref) error {
	if r.IsZero() {
		return errors.New("no hash is given")
	}
	return nil
}

// validSizes refuses a Ref with a size that no file has.
func validSizes(r Ref) error {
	if r.Size < 0 || r.Size > maxFileBytes {
		return fmt.Errorf("size: %d is not between 0 and %d", r.Size, int64(maxFileBytes))
	}
	return nil
}

// Manifest reads the manifest of a partition's backup. The error is a [Damage] if it is not
// there, cannot be read, or is of another cluster, partition or id.
func (b *Bucket) Manifest(ctx context.Context, p millrace.Partition, id string) (*Manifest, error) {
	m, _, err := b.manifest(ctx, p, id)
	return m, err
}

// manifest is Manifest, and returns the hash of the manifest's bytes as well.
func (b *Bucket) manifest(ctx context.Context, p millrace.Partition, id string) (*Manifest, Hash, error) {
	if !goodID.MatchString(id) || p >= partitions {
		return nil, Hash{}, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "backup",
			Detail: fmt.Sprintf("%.80q of partition %d is no backup", id, p), WayOut: "list what there is"}
	}
	name := manifestName(p, id)
	var m Manifest
	h, err := b.readOurs(ctx, name, &m, &m.Cluster)
	if err != nil {
		return nil, h, err
	}
	if err := m.validate(); err != nil {
		return nil, h, &Damage{Object: name, Kind: Torn, Detail: err.Error()}
	}
	if m.Partition != p || m.ID != id {
		return nil, h, &Damage{Object: name, Kind: Foreign, Detail: fmt.Sprintf("it says that it is backup %s of partition %d", m.ID, m.Partition)}
	}
	if ahead(id) {
		return nil, h, tooNew(p, id)
	}
	if now := time.Now(); m.Time.Std().Sub(now) > maxAhead {
		return nil, h, &Damage{Object: name, Kind: Future, Detail: fmt.Sprintf("it says that it is of %s, and it is %s now; remove it, or correct this clock", m.Time, millrace.TimeOf(now))}
	}
	return &m, h, nil
}

// readOurs reads a JSON object into into, and returns the hash of its bytes. cluster is the
// field of into for the object's cluster. It refuses an object of a cluster that does not
// own the bucket, and did not own it before.
func (b *Bucket) readOurs(ctx context.Context, name string, into any, cluster *Identity) (Hash, error) {
	owner, err := b.owner(ctx)
	if err != nil {
		return Hash{}, err
	}
	h, err := b.readObject(ctx, name, into)
	switch {
	case objects.IsMissing(err):
		return h, &Damage{Object: name, Kind: Missing, Detail: "it isn't there"}
	case err != nil:
		return h, err
	case *cluster != owner && !b.was(*cluster):
		return h, &Damage{Object: name, Kind: Foreign, Detail: fmt.Sprintf("it is of the cluster %v, and the bucket of %v", *cluster, owner)}
	}
	return h, nil
}

// WriteManifest finishes a backup, so that it counts: it looks for the manifest's files,
// writes the manifest and reads it back. If files are not there, the error is a
// [MissingFiles]: upload those, without a [Known], and call WriteManifest again. It sets
// the manifest's ID to one that sorts after all others of its partition, except those dated
// ahead of now.
func (b *Bucket) WriteManifest(ctx context.Context, m *Manifest) error {
	owner, err := b.owner(ctx)
	if err != nil {
		return err
	}
	ids, err := b.IDs(ctx, m.Partition)
	if err != nil {
		return err
	}
	newest := ""
	if len(ids) > 0 {
		newest = ids[0]
	}
	m.Format, m.Cluster, m.ID = format, owner, newID(time.Now(), m.Node, newest)
	if err := m.validate(); err != nil {
		return fmt.Errorf("backup: write a manifest: %w", err)
	}
	refs := m.Refs()
	// The manifest is named too: if others of its partition are newer, an expiry might
	// remove it at once.
	named := []string{manifestName(m.Partition, m.ID)}
	for _, r := range refs {
		named = append(named, r.name())
	}
	return b.holding(ctx, named, func(ctx context.Context) error {
		if err := b.lookAll(ctx, refs); err != nil {
			return err
		}
		return b.createObject(ctx, manifestName(m.Partition, m.ID), m)
	})
}

// MissingFiles are files that a manifest names and the bucket lacks.
type MissingFiles []Ref

func (m MissingFiles) Error() string {
	return fmt.Sprintf("backup: %d files of the manifest aren't in the bucket, the first %s", len(m), m[0].name())
}

// Look looks for the files of a backup, with one request for each, and reads none of their
// bytes. The error is a [MissingFiles] of those that are not there or have another size.
func (b *Bucket) Look(ctx context.Context, m *Manifest) error { return b.lookAll(ctx, m.Refs()) }

// lookAll is [Bucket.Look] for the files of refs.
func (b *Bucket) lookAll(ctx context.Context, refs []Ref) error {
	missing, err := parallel(ctx, refs, func(ctx context.Context, r Ref) (*Ref, error) {
		err := b.look(ctx, r)
		var damage *Damage
		if errors.As(err, &damage) {
			return &r, nil
		}
		return nil, err
	})
	if err != nil {
		return err
	}
	var all MissingFiles
	for _, r := range missing {
		if r != nil {
			all = append(all, *r)
		}
	}
	if len(all) > 0 {
		return all
	}
	return nil
}

// Amount is a number of files and their bytes.
type Amount struct {
	Files int   `json:"files"`
	Bytes int64 `json:"bytes"`
}

// Difference is how a backup of a partition differs from an older one.
type Difference struct {
	Shared   Amount `json:"shared"`   // files of both
	New      Amount `json:"new"`      // files that the older one does not have
	Gone     Amount `json:"gone"`     // files that only the older one has
	Content  int64  `json:"timeline"` // how far the offset in topic timeline moved
	Features int64  `json:"features"` // how far the offset in topic features moved
}

// Diff compares two backups of a partition. A nil old is an empty backup: all of now is
// new.
func Diff(old, now *Manifest) (d Difference) {
	had, applied := old.Known(), Offsets{}
	if old != nil {
		applied = old.Applied
	}
	for _, r := range now.Refs() {
		if had[r] {
			d.Shared.add(r)
		} else {
			d.New.add(r)
		}
		delete(had, r)
	}
	for r := range had {
		d.Gone.add(r)
	}
	d.Content = int64(max(now.Applied.Content, 0) - max(applied.Content, 0))
	d.Features = int64(max(now.Applied.Features, 0) - max(applied.Features, 0))
	return d
}

func (a *Amount) add(r Ref) {
	a.Files++
	a.Bytes += r.Size
}
