package backup

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/backup/objects"
)

// A backup names files that may be in the bucket already, and an expiry removes files that
// nothing names. The expiry must not remove one that a backup is about to name. There is no
// lock. Each writes into the bucket what it is about to do, and then reads what others do:
//
//	backup                            expiry
//	1. write a hold naming its files  1. write a condemnation naming what goes
//	2. read the condemnations         2. read the holds, manifests and cuts
//	3. wait for those that name any   3. remove what none of them names
//	   of its files
//	4. look for the files             4. remove the condemnation
//	5. write the manifest
//	6. remove the hold
//
// Both write before they read. So either the backup reads the condemnation, and
// waits before it looks for the files, or the expiry reads the hold, or the manifest that
// came after it, and spares its files. Stores answer a read by what was written
// before it (S3 since 2020; GCS, Azure and file systems always).
//
// A process may end before it has removed what it wrote. So a hold older than holdTerm
// counts for nothing: its backup gives up after four times condemnedTerm. A condemnation
// older than twice condemnedTerm counts for nothing either: its expiry stops removing
// after condemnedTerm. How old an object is follows from the bucket's clock alone; the
// limits of a process are by its own clock.
const (
	condemnedTerm = 10 * time.Minute
	holdTerm      = time.Hour // more than the four times condemnedTerm after which a backup gives up
)

// names is the object of a hold or of a condemnation.
type names struct {
	Format  int      `json:"format"`
	Cluster Identity `json:"cluster"`
	Names   []string `json:"names"`
}

// holding waits until no expiry is about to remove what named lists, and then calls do. Its
// hold keeps expiries from removing these until do has returned. do must end within four
// times Bucket.term, after which its context ends.
func (b *Bucket) holding(ctx context.Context, named []string, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 4*b.term)
	defer cancel()
	mine, began, err := b.announce(ctx, holdsPrefix, named)
	if err != nil {
		return err
	}
	err = b.outlast(ctx, named, began)
	if err == nil {
		err = do(ctx)
	}
	if removed := b.objects.Remove(context.WithoutCancel(ctx), mine); removed != nil {
		b.log.Warn("a hold stays in the bucket until expiry finds it old", "object", mine, "error", removed)
	}
	return err
}

// announce writes a hold or a condemnation, and returns its name and when it
// was written by the bucket's clock.
func (b *Bucket) announce(ctx context.Context, prefix string, named []string) (string, moment, error) {
	owner, err := b.owner(ctx)
	if err != nil {
		return "", moment{}, err
	}
	name := prefix + rand.Text() + objectSuffix
	data, err := encode(&names{Format: format, Cluster: owner, Names: named})
	if err == nil {
		err = b.objects.Write(ctx, name, bytes.NewReader(data), false)
	}
	if err != nil {
		return "", moment{}, fmt.Errorf("backup: write %s: %w", name, err)
	}
	o, err := b.objects.Stat(ctx, name)
	return name, moment{o.Modified, time.Now()}, err
}

// moment is one moment by two clocks, the bucket's and this machine's. The second one may
// be a little later.
type moment struct{ bucket, ours time.Time }

// now returns the present time by the bucket's clock, or a little less.
func (m moment) now() time.Time { return m.bucket.Add(time.Since(m.ours)) }

// outlast waits until no condemnation in force names any object of named. began is when the
// caller wrote its hold. An expiry that begins from now on reads that hold, and spares these
// objects.
func (b *Bucket) outlast(ctx context.Context, named []string, began moment) error {
	var condemnations []objects.Object
	err := b.objects.List(ctx, condemnedPrefix, func(o objects.Object) error {
		condemnations = append(condemnations, o)
		return nil
	})
	if err != nil {
		return err
	}
	for _, o := range condemnations {
		for b.condemns(ctx, o, named, began) {
			timer := time.NewTimer(b.poll)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
				return fmt.Errorf("backup: wait for an expiry that is at work: %w", ctx.Err())
			}
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return nil
}

// condemns reports whether the condemnation o is in force and names any of named. One that
// cannot be read is taken to name them.
func (b *Bucket) condemns(ctx context.Context, o objects.Object, named []string, began moment) bool {
	if o.Odd || began.now().Sub(o.Modified) > 2*b.term {
		return false
	}
	var c names
	_, err := b.readObject(ctx, o.Name, &c)
	if objects.IsMissing(err) {
		return false
	}
	return err != nil || slices.ContainsFunc(named, set(c.Names))
}

// set returns a function that reports whether a name is in all.
func set(all []string) func(string) bool {
	in := make(map[string]bool, len(all))
	for _, s := range all {
		in[s] = true
	}
	return func(s string) bool { return in[s] }
}

// atOnce is how many calls [parallel] runs at a time: most of them wait for the object
// store.
const atOnce = 8

// parallel calls do for each element of all, atOnce of them at a time, and returns the
// results in the order of all. The error is the first that a call returned. Then some
// results may be missing: they are zero.
func parallel[T, R any](ctx context.Context, all []T, do func(context.Context, T) (R, error)) ([]R, error) {
	results := make([]R, len(all))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, t := range all {
		g.Go(func() (err error) {
			if err := ctx.Err(); err != nil {
				return err
			}
			results[i], err = do(ctx, t)
			return err
		})
	}
	return results, g.Wait()
}
