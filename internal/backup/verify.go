package backup

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

// Depth is how much of a bucket is verified. Each depth finds what the ones before it find,
// and more.
type Depth uint8

// The depths of this package. Its callers may verify more by restoring backups.
const (
	DepthFiles Depth = iota // manifests, and that their files are listed with the right sizes
	DepthMeta               // cuts and their parts, and the bytes of the registries of schemas
	DepthOpen               // the bytes of all files
)

// String returns the depth as the command takes it.
func (d Depth) String() string { return [...]string{"files", "meta", "open"}[d] }

// Restorable is what can be restored from a bucket, as far as the depth tells.
type Restorable struct {
	// Backups are the ids of good backups of each partition, the newest first.
	Backups map[millrace.Partition][]string `json:"backups"`
	// Cuts are the names of the cuts whose parts are all good. It is empty at
	// DepthFiles.
	Cuts []string `json:"cuts"`
}

// Verify reports all damage that a depth finds, not only the first, and returns what can be
// restored all the same. It calls report from one goroutine at a time. Objects that are not
// needed are reported with the kind [Extra], and do not keep anything from being restored.
// Backups and expiries may run at the same time.
func (b *Bucket) Verify(ctx context.Context, depth Depth, report func(*Damage)) (*Restorable, error) {
	owner, err := b.Identity(ctx)
	if errors.Is(err, ErrUnclaimed) {
		err = b.unclaimed(ctx)
	}
	var damage *Damage
	if errors.As(err, &damage) {
		report(damage)
		return &Restorable{Backups: map[millrace.Partition][]string{}}, nil
	}
	if err != nil {
		return nil, err
	}
	b.cluster.Store(&owner)
	s, err := b.survey(ctx)
	if err != nil {
		return nil, err
	}
	v := &verifier{b: b, s: s, report: report, bad: map[string]bool{}, lacking: Known{}}
	if err := v.manifests(ctx); err != nil {
		return nil, err
	}
	if depth >= DepthMeta {
		if err := v.cuts(ctx); err != nil {
			return nil, err
		}
	}
	if err := v.bytes(ctx, depth); err != nil {
		return nil, err
	}
	v.extras()
	return v.restorable(depth), nil
}

// unclaimed returns the error for a bucket that does not say which cluster owns it: a
// Damage if it has backups, else [ErrUnclaimed].
func (b *Bucket) unclaimed(ctx context.Context) error {
	all, err := b.AllIDs(ctx)
	if err == nil && len(all) > 0 {
		return &Damage{Object: whoseName, Kind: Missing, Detail: "nothing says whose backups these are"}
	}
	return errors.Join(ErrUnclaimed, err)
}

// verifier is one run of Verify.
type verifier struct {
	b       *Bucket
	s       *survey // what the bucket had when the verification began
	report  func(*Damage)
	bad     map[string]bool // JSON objects that a restore refuses, by name
	lacking Known           // files that a restore refuses, by the Refs that name them
}

// damaged reports the damage of a JSON object, once for each.
func (v *verifier) damaged(d *Damage) {
	if !v.bad[d.Object] {
		v.bad[d.Object] = true
		v.report(d)
	}
}

// lacks reports the damage of a file, once for each Ref. Two Refs may name one file with
// two sizes, of which only one is right.
func (v *verifier) lacks(r Ref, d *Damage) {
	if !v.lacking[r] {
		v.lacking[r] = true
		v.report(d)
	}
}

// manifests reports manifests that cannot be read, and files that manifests name and that
// are not there or have another size.
func (v *verifier) manifests(ctx context.Context) error {
	for _, m := range v.s.manifests {
		if m.damage != nil {
			v.damaged(m.damage)
			continue
		}
		for _, r := range m.value.Refs() {
			if o, ok := v.s.files[r.SHA256]; ok && o.Size == r.Size && !o.Odd {
				continue
			}
			if v.lacking[r] {
				continue
			}
			d, err := v.lost(ctx, m.Name, r)
			if err != nil {
				return err
			}
			if d != nil {
				v.lacks(r, d)
			}
		}
	}
	return nil
}

// lost looks once more for a file that was not listed as it should be. namedBy is the
// object that names it. It returns nil if there is no damage: the file came meanwhile, or
// what names it was expired.
func (v *verifier) lost(ctx context.Context, namedBy string, r Ref) (d *Damage, err error) {
	err = v.b.look(ctx, r)
	if !errors.As(err, &d) {
		return nil, err
	}
	if _, err := v.b.objects.Stat(ctx, namedBy); objects.IsMissing(err) {
		return nil, nil
	}
	d.Detail += "; " + namedBy + " names it"
	return d, nil
}

// cuts reports cuts and parts that cannot be read or do not fit.
func (v *verifier) cuts(ctx context.Context) error {
	for _, c := range v.s.cuts {
		if c.damage != nil {
			v.damaged(c.damage)
			continue
		}
		if err := v.cut(ctx, c.value); err != nil {
			return err
		}
	}
	return nil
}

// cut reports what is wrong with a cut's parts and tails.
func (v *verifier) cut(ctx context.Context, c *Cut) error {
	all := make([]millrace.Partition, partitions)
	for p := range all {
		all[p] = millrace.Partition(p)
	}
	damages, err := parallel(ctx, all, func(ctx context.Context, p millrace.Partition) (d *Damage, err error) {
		_, _, err = v.b.CutPart(ctx, c, p)
		if errors.As(err, &d) {
			return d, nil
		}
		return nil, err
	})
	if err != nil {
		return err
	}
	if err := v.tails(ctx, c.Name); err != nil {
		return err
	}
	for p, d := range damages {
		if d != nil {
			v.damaged(d)
			v.bad[cutPartName(c.Name, millrace.Partition(p))] = true
			v.bad[cutName(c.Name)] = true
		}
	}
	return nil
}

// tails reports the tails of a cut that are not there.
func (v *verifier) tails(ctx context.Context, cut string) error {
	for _, p := range v.s.parts {
		if p.value == nil || p.place.id != cut || p.value.Tail.IsZero() || v.lacking[p.value.Tail] {
			continue
		}
		d, err := v.lost(ctx, p.Name, p.value.Tail)
		if err != nil {
			return err
		}
		if d != nil {
			v.lacks(p.value.Tail, d)
		}
	}
	return nil
}

// bytes downloads and hashes the files that a depth reads, and reports those that are
// damaged.
func (v *verifier) bytes(ctx context.Context, depth Depth) error {
	var all []Ref
	seen := Known{}
	add := func(r Ref) {
		if !r.IsZero() && !seen[r] && !v.lacking[r] {
			seen[r] = true
			all = append(all, r)
			v.b.progress.Expect(r.Size)
		}
	}
	for _, m := range v.s.manifests {
		switch {
		case m.value == nil || depth < DepthMeta:
		case depth == DepthMeta:
			add(m.value.Schemas)
		default:
			for _, r := range m.value.Refs() {
				add(r)
			}
		}
	}
	for _, p := range v.s.parts {
		if p.value != nil && depth >= DepthOpen && v.counts(p.place.id) {
			add(p.value.Tail)
		}
	}
	damages, err := parallel(ctx, all, func(ctx context.Context, r Ref) (d *Damage, err error) {
		if err = v.b.fetch(ctx, r, 0, sha256.New(), io.Discard); errors.As(err, &d) {
			return d, nil
		}
		return nil, err
	})
	if err != nil {
		return err
	}
	for i, d := range damages {
		if d == nil {
			continue
		}
		if d.Kind != Missing || !v.expired(ctx, all[i]) {
			v.lacks(all[i], d)
		}
	}
	return nil
}

// expired reports whether every manifest and part that named a file was removed since the
// survey, so that the file is missing for a good reason.
func (v *verifier) expired(ctx context.Context, r Ref) bool {
	for _, m := range v.s.manifests {
		if m.value != nil && slices.Contains(m.value.Refs(), r) {
			if _, err := v.b.objects.Stat(ctx, m.Name); !objects.IsMissing(err) {
				return false
			}
		}
	}
	for _, p := range v.s.parts {
		if p.value != nil && p.value.Tail == r {
			if _, err := v.b.objects.Stat(ctx, p.Name); !objects.IsMissing(err) {
				return false
			}
		}
	}
	return true
}

// counts reports whether there is a cut with that name, so that its parts count.
func (v *verifier) counts(cut string) bool {
	return slices.ContainsFunc(v.s.cuts, func(c *found[Cut]) bool { return c.place.id == cut })
}

// extras reports objects that no restore reads.
func (v *verifier) extras() {
	var all []*Damage
	extra := func(o objects.Object, detail string) {
		d := &Damage{Object: o.Name, Kind: Extra, Detail: detail}
		if o.Odd {
			d.Kind, d.Detail = Link, objects.ErrOdd.Error()
		}
		all = append(all, d)
	}
	named := v.s.reach()
	for _, m := range v.s.manifests {
		named.mark(m.Name)
	}
	for _, p := range v.s.parts {
		named.mark(p.Name)
		if !v.counts(p.place.id) {
			extra(p.Object, "its cut doesn't count; one is being made, or expiry removes it")
		}
	}
	for _, h := range v.s.holds {
		if h.Odd {
			extra(h.Object, "")
		}
		if h.value != nil {
			for _, name := range h.value.Names {
				named.mark(name)
			}
		}
	}
	for _, o := range v.s.unknown {
		extra(o, "it is nothing that Millrace wrote; remove it")
	}
	for _, o := range v.s.others {
		if o.Odd {
			extra(o, "")
		}
	}
	for _, f := range v.s.files {
		if !named.names[f.Name] {
			extra(f, "nothing names it; a backup is at work, or expiry removes it")
		}
	}
	slices.SortFunc(all, func(x, y *Damage) int { return strings.Compare(x.Object, y.Object) })
	for _, d := range all {
		if !v.bad[d.Object] {
			v.report(d)
		}
	}
}

// restorable returns what can be restored by what was found so far.
func (v *verifier) restorable(depth Depth) *Restorable {
	r := &Restorable{Backups: map[millrace.Partition][]string{}}
	good := map[string]bool{}
	for _, m := range v.s.manifests {
		if m.value == nil || slices.ContainsFunc(m.value.Refs(), func(r Ref) bool { return v.lacking[r] }) {
			continue
		}
		good[m.Name] = true
		r.Backups[m.partition] = append(r.Backups[m.partition], m.place.id)
	}
	if depth < DepthMeta {
		return r
	}
	whole := map[string]int{}
	for _, p := range v.s.parts {
		if p.value != nil && !v.bad[p.Name] && good[manifestName(p.partition, p.value.Backup)] && !v.lacking[p.value.Tail] {
			whole[p.place.id]++
		}
	}
	for _, c := range v.s.cuts {
		if c.value != nil && !v.bad[c.Name] && whole[c.place.id] == partitions {
			r.Cuts = append(r.Cuts, c.place.id)
		}
	}
	return r
}
