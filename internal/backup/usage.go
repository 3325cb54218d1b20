package backup

import (
	"context"

	"github.com/millrace/millrace"
)

// Usage returns how many files a bucket has, and their bytes: what it costs. It
// reads the list alone.
func (b *Bucket) Usage(ctx context.Context) (all Amount, err error) {
	err = b.objects.list(ctx, filesPrefix, func(o object) error {
		if parse(o.name).kind == isFile && !o.odd {
			all.Files++
			all.Bytes += o.size
		}
		return nil
	})
	return all, err
}

// ObjectOf names the object of a bucket that is a backup of a partition, or,
// where cut is not empty, its part of a cut: for a [Damage].
func ObjectOf(p millrace.Partition, id, cut string) string {
	if cut != "" {
		return cutPartName(cut, p)
	}
	return manifestName(p, id)
}
