package backup

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

// ExpireOptions say what an expiry removes.
type ExpireOptions struct {
	// Keep is how many of the newest backups of a partition stay, at least 1.
	Keep int
	// Grace is how long a file stays that nothing names yet, and a part of a cut
	// that is not finished; 0 is an hour. It should be longer than the backup of
	// one partition takes: a file that is removed too early is uploaded again.
	Grace time.Duration
	// Report is called for every object that was removed, or with Dry would be, by
	// one goroutine at a time; nil: nobody is told.
	Report func(name string, bytes int64)
	// Dry removes and writes nothing: the result is what would be removed now. Ages
	// are by this machine's clock then, and not by the bucket's.
	Dry bool
}

// Expired is what an expiry removed.
type Expired struct {
	Backups, Files int
	Bytes          int64 // the bytes of the files
	// Blocked are damaged objects that may name any file, since they cannot be read. If
	// there are any, no files were removed. Verify reports them as well. They must be
	// removed by hand, or become old enough to expire.
	Blocked []*Damage
}

// batchNames bounds how many objects one condemnation names. All of them must be removed
// within condemnedTerm.
const batchNames = 20_000

// Expire removes the backups of each partition beyond the newest o.Keep, unless a cut names
// them, parts of cuts that are not finished, and the files that nothing names. Backups,
// restores of what it keeps, and other expiries may run at the same time; see hold.go. If an
// expiry breaks off, the next one removes the rest. Links and devices stay, whatever their
// names, since Millrace did not write them; Verify reports them.
func (b *Bucket) Expire(ctx context.Context, o ExpireOptions) (e Expired, err error) {
	if o.Keep < 1 {
		return e, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "backup.keep", Detail: fmt.Sprintf("%d backups of a partition would leave none", o.Keep), WayOut: "keep at least 1"}
	}
	if o.Grace == 0 {
		o.Grace = time.Hour
	}
	s, err := b.survey(ctx)
	if err != nil {
		return e, err
	}
	if o.Dry {
		x := &expiry{b: b, o: o, s: s, e: &e, now: time.Now()}
		x.keep()
		for _, o := range x.doom() {
			x.count(o)
		}
		return e, nil
	}
	// A condemnation that names nothing is written to learn the bucket's time.
	clock, at, err := b.announce(ctx, condemnedPrefix, nil)
	if err != nil {
		return e, err
	}
	defer func() { err = errors.Join(err, b.objects.Remove(context.WithoutCancel(ctx), clock)) }()
	x := &expiry{b: b, o: o, s: s, e: &e, now: at.now()}
	x.keep()
	doomed := x.doom()
	for _, o := range doomed {
		b.progress.Expect(o.Size)
	}
	for batch := range slices.Chunk(doomed, batchNames) {
		if err := x.remove(ctx, batch); err != nil {
			return e, err
		}
	}
	return e, x.tidy(ctx, clock)
}

// expiry is one run of Expire.
type expiry struct {
	b    *Bucket
	o    ExpireOptions
	s    *survey   // what the bucket had when the expiry began
	e    *Expired  // the result
	now  time.Time // the time by the bucket's clock; by this machine's with Dry
	kept *reach    // the names of all that stays
}

// old reports whether an object is older than the grace.
func (x *expiry) old(o objects.Object) bool { return x.now.Sub(o.Modified) > x.o.Grace }

// keep marks all that stays.
func (x *expiry) keep() {
	x.kept = x.s.reach()
	x.keepNewest()
	x.keepHeld(x.s)
	for _, c := range x.s.cuts {
		x.block(c.damage)
		x.kept.markCut(c.place.id)
	}
	for _, p := range x.s.parts {
		if !x.old(p.Object) {
			x.kept.mark(p.Name)
		}
		if x.kept.names[p.Name] {
			x.block(p.damage)
		}
	}
	// Cuts and holds have marked manifests, too, by now.
	for _, m := range x.s.manifests {
		if x.kept.names[m.Name] {
			x.block(m.damage)
		}
	}
}

// keepHeld marks what the holds of s name, except holds older than holdTerm.
func (x *expiry) keepHeld(s *survey) {
	for _, h := range s.holds {
		if x.now.Sub(h.Modified) > holdTerm {
			continue
		}
		x.block(h.damage)
		if h.value != nil {
			for _, name := range h.value.Names {
				x.kept.mark(name)
			}
		}
	}
}

// keepNewest marks the newest backups of every partition. A damaged backup does not count
// as one of them. It stays until enough good ones are newer, since somebody may mend it.
// A backup of a newer Millrace always stays.
func (x *expiry) keepNewest() {
	good := map[millrace.Partition]int{}
	for _, m := range x.s.manifests {
		if good[m.partition] < x.o.Keep || m.damage != nil && m.damage.Kind == Newer {
			x.kept.mark(m.Name)
		}
		if m.value != nil {
			good[m.partition]++
		}
	}
}

// block adds a damage, unless it is nil, to Expired.Blocked, so that no files are removed.
func (x *expiry) block(d *Damage) {
	if d != nil {
		x.e.Blocked = append(x.e.Blocked, d)
	}
}

// doom returns what is to be removed: parts of cuts, then backups, then files. So an object
// is removed before the objects that it names.
func (x *expiry) doom() (doomed []objects.Object) {
	add := func(o objects.Object) {
		if !x.kept.names[o.Name] && !o.Odd {
			doomed = append(doomed, o)
		}
	}
	for _, p := range x.s.parts {
		add(p.Object)
	}
	for _, m := range x.s.manifests {
		add(m.Object)
	}
	if len(x.e.Blocked) > 0 {
		return doomed
	}
	for _, f := range x.s.files {
		if x.old(f) {
			add(f)
		}
	}
	return doomed
}

// remove writes a condemnation of a batch, spares what was named meanwhile, and removes the
// rest. It stops after Bucket.term, while the condemnation still makes backups wait.
func (x *expiry) remove(ctx context.Context, batch []objects.Object) error {
	all := make([]string, len(batch))
	for i, o := range batch {
		all[i] = o.Name
	}
	ctx, cancel := context.WithTimeoutCause(ctx, x.b.term, errors.New("backup: the expiry took too long; it goes on next time"))
	defer cancel()
	mine, _, err := x.b.announce(ctx, condemnedPrefix, all)
	if err != nil {
		return err
	}
	defer func() { _ = x.b.objects.Remove(context.WithoutCancel(ctx), mine) }() // if that fails, it stays, and is soon too old to make anybody wait
	if err := x.spare(ctx); err != nil {
		return err
	}
	for _, kinds := range [][]kind{{isCutPart}, {isManifest}, {isFile}} {
		now := slices.DeleteFunc(slices.Clone(batch), func(o objects.Object) bool {
			at := parse(o.Name).kind
			return !slices.Contains(kinds, at) || x.kept.names[o.Name] || at == isFile && len(x.e.Blocked) > 0
		})
		removed, err := parallel(ctx, now, func(ctx context.Context, o objects.Object) (bool, error) {
			err := x.b.objects.Remove(ctx, o.Name)
			x.b.progress.add(o.Size)
			return err == nil, err
		})
		for i, o := range now {
			if removed[i] {
				x.count(o)
			}
		}
		if err != nil {
			return errors.Join(err, context.Cause(ctx))
		}
	}
	return nil
}

// spare marks what was named since the survey, so that it stays. It reads only what is new:
// manifests, finished cuts and their parts never change. Parts of cuts that are not
// finished may have been replaced, so it reads those again.
func (x *expiry) spare(ctx context.Context) error {
	seen := map[string]bool{}
	for _, m := range x.s.manifests {
		seen[m.Name] = true
	}
	for _, c := range x.s.cuts {
		seen[c.Name] = true
	}
	for _, p := range x.s.parts {
		seen[p.Name] = seen[cutName(p.place.id)]
	}
	late := &survey{}
	if err := late.rewrite(ctx, x.b, func(name string) bool { return seen[name] }); err != nil {
		return err
	}
	x.kept.learn(late)
	for _, m := range late.manifests {
		x.block(m.damage)
		x.kept.mark(m.Name)
	}
	for _, p := range late.parts {
		if !x.old(p.Object) {
			x.block(p.damage)
			x.kept.mark(p.Name)
		}
	}
	for _, c := range late.cuts {
		x.block(c.damage)
		x.kept.markCut(c.place.id)
	}
	x.keepHeld(late)
	return nil
}

// count counts an object as removed, and reports it.
func (x *expiry) count(o objects.Object) {
	switch parse(o.Name).kind {
	case isManifest:
		x.e.Backups++
	case isFile:
		x.e.Files++
		x.e.Bytes += o.Size
	}
	if x.o.Report != nil {
		x.o.Report(o.Name, o.Size)
	}
}

// tidy removes what processes left that ended too early: holds, condemnations, and
// incomplete files. It also removes the oldest drills, healings and acts, so that
// maxRecords of each stay. mine is the expiry's own condemnation, which it leaves.
func (x *expiry) tidy(ctx context.Context, mine string) error {
	var dead []objects.Object
	for _, h := range x.s.holds {
		if x.now.Sub(h.Modified) > holdTerm {
			dead = append(dead, h.Object)
		}
	}
	var drills, healings, acts []objects.Object
	for _, o := range x.s.others {
		age := x.now.Sub(o.Modified)
		switch parse(o.Name).kind {
		case isCondemned:
			if age > 2*x.b.term && o.Name != mine {
				dead = append(dead, o)
			}
		case isScratch:
			if age > x.o.Grace {
				dead = append(dead, o)
			}
		case isDrill:
			drills = append(drills, o)
		case isHealing:
			healings = append(healings, o)
		case isAct:
			acts = append(acts, o)
		}
	}
	for _, all := range [][]objects.Object{drills, healings, acts} {
		slices.SortFunc(all, func(a, b objects.Object) int { return strings.Compare(b.Name, a.Name) })
		dead = append(dead, all[min(len(all), maxRecords):]...)
	}
	dead = slices.DeleteFunc(dead, func(o objects.Object) bool { return o.Odd })
	_, err := parallel(ctx, dead, func(ctx context.Context, o objects.Object) (struct{}, error) {
		return struct{}{}, x.b.objects.Remove(ctx, o.Name)
	})
	return err
}
