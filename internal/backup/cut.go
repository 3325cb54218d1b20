package backup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

// Cut is one moment of the whole cluster. [Bucket.WriteCut] sets Format,
// Cluster and Parts.
type Cut struct {
	Format   int               `json:"format"`
	Cluster  Identity          `json:"cluster"`
	Name     string            `json:"name"`
	Time     millrace.Time     `json:"time"`     // the moment
	Log      string            `json:"log"`      // an id of the log that the offsets are of
	Content  []millrace.Offset `json:"content"`  // by partition: where the moment is in its part of the topic timeline
	Features []millrace.Offset `json:"features"` // by partition: the same in the topic features
	// Groups are the offsets at that moment of the partitioners' consumer groups in
	// their content and feature topics: by group, topic, partition.
	Groups map[string]map[string]map[int32]millrace.Offset `json:"groups"`
	Parts  []Hash                                          `json:"parts"` // by partition: the hash of its CutPart
}

// CutPart is what brings one partition to a cut: a backup from before it, and
// the records of the log from there. [Bucket.WriteCutParts] sets Format, Cluster, Cut,
// SHA256 and From.
type CutPart struct {
	Format    int                `json:"format"`
	Cluster   Identity           `json:"cluster"`
	Cut       string             `json:"cut"` // the name of the cut
	Partition millrace.Partition `json:"partition"`
	Backup    string             `json:"backup"` // the backup's id
	SHA256    Hash               `json:"sha256"` // the hash of the backup's manifest
	From      Offsets            `json:"from"`   // the offsets that the backup has applied
	To        Offsets            `json:"to"`     // the offsets of the cut
	Tail      Ref                `json:"tail"`   // the records between From and To; zero if there are none
}

// The bounds of a cut. A cut beyond them is damaged, or would be too large to be read.
const (
	maxGroups = 1 << 10 // consumer groups
	maxTopics = 1 << 10 // topics of a group
)

// CheckCutName refuses a name that no cut may have.
func CheckCutName(name string) error {
	if goodCut.MatchString(name) {
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "name", Detail: fmt.Sprintf("%.80q is no name of a cut", name),
		WayOut: "use up to 63 letters, digits, - and _, the first a letter or a digit"}
}

func (c *Cut) validate() error {
	switch {
	case !goodCut.MatchString(c.Name):
		return CheckCutName(c.Name)
	case len(c.Content) != partitions || len(c.Features) != partitions:
		return fmt.Errorf("content, features: %d and %d offsets, and not %d each", len(c.Content), len(c.Features), partitions)
	case slices.Min(c.Content) < 0 || slices.Min(c.Features) < 0:
		return errors.New("content, features: an offset is negative")
	case len(c.Parts) != partitions:
		return fmt.Errorf("parts: %d, and not %d", len(c.Parts), partitions)
	case !short(c.Log):
		return fmt.Errorf("log: a name of 1 to %d bytes is needed", maxNameBytes)
	case len(c.Groups) > maxGroups:
		return fmt.Errorf("groups: %d; at most %d are kept", len(c.Groups), maxGroups)
	}
	for g, topics := range c.Groups {
		if !short(g) || len(topics) > maxTopics {
			return fmt.Errorf("groups.%.80q: a name of 1 to %d bytes and at most %d topics are kept", g, maxNameBytes, maxTopics)
		}
	}
	return nil
}

// end returns the cut's offsets of a partition.
func (c *Cut) end(p millrace.Partition) Offsets { return Offsets{c.Content[p], c.Features[p]} }

func (c *CutPart) validate() error {
	switch {
	case c.Partition >= partitions:
		return fmt.Errorf("partition %d is none of %d", c.Partition, partitions)
	case !goodID.MatchString(c.Backup):
		return fmt.Errorf("backup %.80q is no id of one", c.Backup)
	case max(c.From.Content, 0) > c.To.Content || max(c.From.Features, 0) > c.To.Features:
		return fmt.Errorf("from %+v to %+v goes back", c.From, c.To)
	case c.Tail.IsZero() && (max(c.From.Content, 0) < c.To.Content || max(c.From.Features, 0) < c.To.Features):
		return fmt.Errorf("from %+v to %+v needs a tail", c.From, c.To)
	}
	return validSizes(c.Tail)
}

// Cuts returns the names of the complete cuts, sorted. Parts of a cut that was not finished
// by [Bucket.WriteCut] do not count.
func (b *Bucket) Cuts(ctx context.Context) ([]string, error) {
	var all []string
	err := b.objects.List(ctx, cutsPrefix, func(o objects.Object) error {
		if at := parse(o.Name); at.kind == isCut && !o.Odd {
			all = append(all, at.id)
		}
		return nil
	})
	slices.Sort(all)
	return all, err
}

// noCut is the error for a cut that is not there: a millrace.Error that is fs.ErrNotExist
// as well.
func noCut(name string) error {
	return fmt.Errorf("%w%w", &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: "cut", Detail: fmt.Sprintf("there is no cut %s", name),
		WayOut: "millrace backup cuts names them; a time is written as 2026-11-22T11:45:00Z",
	}, silent{fs.ErrNotExist})
}

// silent is an error that only errors.Is sees: its text is empty.
type silent struct{ error }

func (silent) Error() string   { return "" }
func (s silent) Unwrap() error { return s.error }

// Cut reads a cut. If there is none of that name, errors.Is finds fs.ErrNotExist in the
// error, which is a [*millrace.Error] and no [Damage].
func (b *Bucket) Cut(ctx context.Context, name string) (*Cut, error) {
	if err := CheckCutName(name); err != nil {
		return nil, err
	}
	var c Cut
	if _, err := b.readOurs(ctx, cutName(name), &c, &c.Cluster); objects.IsMissing(err) {
		return nil, noCut(name)
	} else if err != nil {
		return nil, err
	}
	if err := c.validate(); err != nil {
		return nil, &Damage{Object: cutName(name), Kind: Torn, Detail: err.Error()}
	}
	if c.Name != name {
		return nil, &Damage{Object: cutName(name), Kind: Foreign, Detail: fmt.Sprintf("it says that it is the cut %s", c.Name)}
	}
	return &c, nil
}

// CutPart reads a partition's part of a cut, and the manifest of the backup that the part
// begins with. The error is a [Damage] if they do not fit the cut.
func (b *Bucket) CutPart(ctx context.Context, c *Cut, p millrace.Partition) (*CutPart, *Manifest, error) {
	part, h, err := b.cutPart(ctx, c.Name, p)
	if err != nil {
		return nil, nil, err
	}
	if h != c.Parts[p] {
		return nil, nil, misfit(part, fmt.Sprintf("its SHA-256 is %v, and the cut names %v", h, c.Parts[p]))
	}
	m, err := b.fits(ctx, c, part)
	return part, m, err
}

// misfit returns the damage of a part that does not fit its cut.
func misfit(part *CutPart, detail string) error {
	return &Damage{Object: cutPartName(part.Cut, part.Partition), Kind: Misfit, Detail: detail}
}

// fits reads the backup that a part begins with, and compares both with the
// cut.
func (b *Bucket) fits(ctx context.Context, c *Cut, part *CutPart) (*Manifest, error) {
	if end := c.end(part.Partition); part.To != end {
		return nil, misfit(part, fmt.Sprintf("it ends at %+v, and the cut is at %+v", part.To, end))
	}
	m, err := b.base(ctx, part)
	if err == nil && m.Log != c.Log {
		err = misfit(part, "its backup is of another log than the cut")
	}
	return m, err
}

// base reads the backup that a part begins with.
func (b *Bucket) base(ctx context.Context, part *CutPart) (*Manifest, error) {
	m, h, err := b.manifest(ctx, part.Partition, part.Backup)
	if err != nil {
		return nil, err
	}
	if h != part.SHA256 || m.Applied != part.From {
		return nil, &Damage{Object: cutPartName(part.Cut, part.Partition), Kind: Misfit,
			Detail: fmt.Sprintf("backup %s is not the one that it was made with", part.Backup)}
	}
	return m, nil
}

// cutPart reads a part and returns the hash of its bytes. It does not compare the part with
// the cut.
func (b *Bucket) cutPart(ctx context.Context, cut string, p millrace.Partition) (*CutPart, Hash, error) {
	name := cutPartName(cut, p)
	var part CutPart
	h, err := b.readOurs(ctx, name, &part, &part.Cluster)
	if err != nil {
		return nil, h, err
	}
	if err := part.validate(); err != nil {
		return nil, h, &Damage{Object: name, Kind: Torn, Detail: err.Error()}
	}
	if part.Cut != cut || part.Partition != p {
		return nil, h, &Damage{Object: name, Kind: Foreign, Detail: fmt.Sprintf("it says that it is partition %d of the cut %s", part.Partition, part.Cut)}
	}
	return &part, h, nil
}

// WriteCutParts writes parts of a cut that [Bucket.WriteCut] has not finished yet. They
// replace those that an earlier run left.
func (b *Bucket) WriteCutParts(ctx context.Context, cut string, parts []*CutPart) error {
	if err := CheckCutName(cut); err != nil {
		return err
	}
	owner, err := b.owner(ctx)
	if err != nil {
		return err
	}
	if err := b.free(ctx, cut); err != nil {
		return err
	}
	var named []string
	for _, part := range parts {
		part.Format, part.Cluster, part.Cut = format, owner, cut
		named = append(named, manifestName(part.Partition, part.Backup))
		if !part.Tail.IsZero() {
			named = append(named, part.Tail.name())
		}
	}
	return b.holding(ctx, named, func(ctx context.Context) error {
		_, err := parallel(ctx, parts, func(ctx context.Context, part *CutPart) (struct{}, error) {
			return struct{}{}, b.writeCutPart(ctx, part)
		})
		return err
	})
}

// writeCutPart writes a part, with the hash and the offsets of the backup that it begins
// with. The caller holds what the part names: see holding.
func (b *Bucket) writeCutPart(ctx context.Context, part *CutPart) error {
	m, h, err := b.manifest(ctx, part.Partition, part.Backup)
	if err != nil {
		return err
	}
	part.SHA256, part.From = h, m.Applied
	if err := part.validate(); err != nil {
		return fmt.Errorf("backup: write a part of the cut %s: %w", part.Cut, err)
	}
	if !part.Tail.IsZero() {
		if err := b.look(ctx, part.Tail); err != nil {
			return err
		}
	}
	return b.replaceObject(ctx, cutPartName(part.Cut, part.Partition), part)
}

// free refuses a name that a cut in the bucket has already.
func (b *Bucket) free(ctx context.Context, name string) error {
	_, err := b.objects.Stat(ctx, cutName(name))
	if objects.IsMissing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "name", Detail: fmt.Sprintf("there is a cut %s", name),
		WayOut: "choose another name, or remove that cut"}
}

// WriteCut finishes a cut, so that it counts: it reads all its parts, checks that the files
// that they name are there, and writes the cut.
func (b *Bucket) WriteCut(ctx context.Context, c *Cut) error {
	if err := errors.Join(CheckCutName(c.Name), b.free(ctx, c.Name)); err != nil {
		return err
	}
	owner, err := b.owner(ctx)
	if err != nil {
		return err
	}
	c.Format, c.Cluster, c.Parts = format, owner, make([]Hash, partitions)
	if err := c.validate(); err != nil {
		return fmt.Errorf("backup: write the cut %s: %w", c.Name, err)
	}
	named := make([]string, partitions)
	for p := range named {
		named[p] = cutPartName(c.Name, millrace.Partition(p))
	}
	return b.holding(ctx, named, func(ctx context.Context) error {
		_, err := parallel(ctx, named, func(ctx context.Context, name string) (struct{}, error) {
			p := parse(name).partition
			part, h, err := b.cutPart(ctx, c.Name, p)
			if err != nil {
				return struct{}{}, err
			}
			c.Parts[p] = h
			m, err := b.fits(ctx, c, part)
			if err != nil {
				return struct{}{}, err
			}
			refs := m.Refs()
			if !part.Tail.IsZero() {
				refs = append(refs, part.Tail)
			}
			return struct{}{}, b.lookAll(ctx, refs)
		})
		if err != nil {
			return err
		}
		err = b.createObject(ctx, cutName(c.Name), c)
		if objects.IsThere(err) {
			return b.free(ctx, c.Name)
		}
		return err
	})
}

// RemoveCut removes a cut, so that it does not count any more. The next expiry removes its
// parts and what only they name. It is no error if there is no such cut.
func (b *Bucket) RemoveCut(ctx context.Context, name string) error {
	if err := CheckCutName(name); err != nil {
		return err
	}
	return b.objects.Remove(ctx, cutName(name))
}

// OnlyOf returns how much the bucket has for one cut alone, if all backups stay: the cut,
// its parts, and the tails that no other cut names.
func (b *Bucket) OnlyOf(ctx context.Context, cut string) (a Amount, err error) {
	s, err := b.survey(ctx)
	if err != nil {
		return a, err
	}
	others := s.reach()
	for _, m := range s.manifests {
		others.mark(m.Name)
	}
	for _, c := range s.cuts {
		if c.place.id != cut {
			others.markCut(c.place.id)
		}
	}
	its := s.reach()
	its.markCut(cut)
	count := func(o objects.Object) {
		if its.names[o.Name] && !others.names[o.Name] {
			a.Files++
			a.Bytes += o.Size
		}
	}
	for _, c := range s.cuts {
		count(c.Object)
	}
	for _, p := range s.parts {
		count(p.Object)
	}
	for _, f := range s.files {
		count(f)
	}
	return a, nil
}
