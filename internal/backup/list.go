package backup

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/backup/objects"
)

// IDs returns the ids of a partition's backups, the newest first. It lists them and reads
// none. It leaves out those that are dated ahead of now.
func (b *Bucket) IDs(ctx context.Context, p millrace.Partition) ([]string, error) {
	all, err := b.ids(ctx, prefixOf(p), func(*Damage) {})
	return all[p], err
}

func prefixOf(p millrace.Partition) string { return fmt.Sprintf("%s%03d/", manifestsPrefix, p) }

// AllIDs returns for all partitions what IDs returns for one, by listing the bucket once.
func (b *Bucket) AllIDs(ctx context.Context) (map[millrace.Partition][]string, error) {
	return b.ids(ctx, manifestsPrefix, func(*Damage) {})
}

// ids returns the ids of the backups under a prefix, by partition, the newest first. It
// leaves out those that are dated ahead of now, and links and devices, and calls report
// for each of them.
func (b *Bucket) ids(ctx context.Context, prefix string, report func(*Damage)) (map[millrace.Partition][]string, error) {
	all := map[millrace.Partition][]string{}
	err := b.objects.List(ctx, prefix, func(o objects.Object) error {
		switch at := parse(o.Name); {
		case at.kind != isManifest:
		case o.Odd:
			report(&Damage{Object: o.Name, Kind: Link, Detail: objects.ErrOdd.Error()})
		case ahead(at.id):
			report(tooNew(at.partition, at.id))
		default:
			all[at.partition] = append(all[at.partition], at.id)
		}
		return nil
	})
	for _, ids := range all {
		newestFirst(ids)
	}
	return all, err
}

func newestFirst(ids []string) {
	slices.SortFunc(ids, func(a, b string) int { return strings.Compare(b, a) })
}

// Manifests yields a partition's backups, and reads each when it is asked for. If by is
// zero, the newest come first. Else those made at the time by or before it come first, the
// newest of them first, and then the others, the oldest first. It leaves out damaged
// backups, and calls report for each. After any other error it yields that error and ends.
func (b *Bucket) Manifests(ctx context.Context, p millrace.Partition, by time.Time, report func(*Damage)) iter.Seq2[*Manifest, error] {
	return func(yield func(*Manifest, error) bool) {
		listed, err := b.ids(ctx, prefixOf(p), report)
		if err != nil {
			yield(nil, err)
			return
		}
		b.read(ctx, p, nearestFirst(listed[p], by), report)(yield)
	}
}

// nearestFirst returns ids in the order of [Bucket.Manifests]. ids has the newest first.
func nearestFirst(ids []string, by time.Time) []string {
	if by.IsZero() {
		return ids
	}
	later := slices.IndexFunc(ids, func(id string) bool {
		at, err := IDTime(id)
		return err == nil && !at.After(by)
	})
	if later < 0 {
		later = len(ids)
	}
	slices.Reverse(ids[:later])
	return slices.Concat(ids[later:], ids[:later])
}

// read yields the backups with these ids, as [Bucket.Manifests] does.
func (b *Bucket) read(ctx context.Context, p millrace.Partition, ids []string, report func(*Damage)) iter.Seq2[*Manifest, error] {
	return func(yield func(*Manifest, error) bool) {
		for _, id := range ids {
			m, err := b.Manifest(ctx, p, id)
			var damage *Damage
			switch {
			case errors.As(err, &damage):
				if damage.Kind != Missing { // a missing one expired since it was listed
					report(damage)
				}
			case !yield(m, err) || err != nil:
				return
			}
		}
	}
}

// Newest reads the newest good backup of every partition that has one. It calls report for
// each damaged backup that is newer.
func (b *Bucket) Newest(ctx context.Context, report func(*Damage)) (map[millrace.Partition]*Manifest, error) {
	all, err := b.ids(ctx, manifestsPrefix, report)
	if err != nil {
		return nil, err
	}
	type outcome struct {
		m       *Manifest
		damages []*Damage
	}
	order := make([]millrace.Partition, 0, len(all))
	for p := range all {
		order = append(order, p)
	}
	slices.Sort(order)
	read, err := parallel(ctx, order, func(ctx context.Context, p millrace.Partition) (o outcome, err error) {
		for m, err := range b.read(ctx, p, all[p], func(d *Damage) { o.damages = append(o.damages, d) }) {
			o.m = m
			return o, err
		}
		return o, nil
	})
	if err != nil {
		return nil, err
	}
	newest := map[millrace.Partition]*Manifest{}
	for i, o := range read {
		for _, d := range o.damages {
			report(d)
		}
		if o.m != nil {
			newest[order[i]] = o.m
		}
	}
	return newest, nil
}

// Usage returns how many files a bucket has, and their bytes, which decide what it costs.
// It lists the bucket and reads nothing.
func (b *Bucket) Usage(ctx context.Context) (all Amount, err error) {
	err = b.objects.List(ctx, filesPrefix, func(o objects.Object) error {
		if parse(o.Name).kind == isFile && !o.Odd {
			all.Files++
			all.Bytes += o.Size
		}
		return nil
	})
	return all, err
}
