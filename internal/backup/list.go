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

// IDs returns the ids of a partition's backups, the newest first. It reads none
// of them. Those that are dated ahead of now are not among them.
func (b *Bucket) IDs(ctx context.Context, p millrace.Partition) ([]string, error) {
	all, err := b.ids(ctx, prefixOf(p), func(*Damage) {})
	return all[p], err
}

func prefixOf(p millrace.Partition) string { return fmt.Sprintf("%s%03d/", manifestsPrefix, p) }

// AllIDs returns the ids of the backups of all partitions, as IDs does, by one
// list.
func (b *Bucket) AllIDs(ctx context.Context) (map[millrace.Partition][]string, error) {
	return b.ids(ctx, manifestsPrefix, func(*Damage) {})
}

// ids tells report of those that are dated ahead of now, and of what is no file.
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

// Manifests reads a partition's backups one after the other: those that were
// begun by a time first, unless that is zero, and of those the newest first. What
// is damaged is left out and told to report. It ends with an error that is none
// of a backup.
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

// nearestFirst puts those ids first that were begun by a time, if it is not
// zero, and then the others from the oldest on. They come with the newest first.
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

// read reads backups as they are asked for.
func (b *Bucket) read(ctx context.Context, p millrace.Partition, ids []string, report func(*Damage)) iter.Seq2[*Manifest, error] {
	return func(yield func(*Manifest, error) bool) {
		for _, id := range ids {
			m, err := b.Manifest(ctx, p, id)
			var damage *Damage
			switch {
			case errors.As(err, &damage):
				if damage.Kind != Missing { // expired since the list
					report(damage)
				}
			case !yield(m, err) || err != nil:
				return
			}
		}
	}
}

// Newest reads the newest backup of every partition that has one. Where that is
// damaged, it is told to report, and the one before it is read.
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

// Usage returns how many files a bucket has, and their bytes: what it costs. It
// reads the list alone.
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
