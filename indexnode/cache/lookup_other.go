//go:build !amd64 || race

// The race detector does not see what assembly loads, and would take what a
// reader finds by it for unsynchronised.

package cache

// prefetch asks the processor for buckets, where there is a way to.
func prefetch([]*bucket) {}

func (t *table) locate(b *batch, names *[batchKeys]id, typ id) { t.locatePortably(b, names, typ) }

func (b *batch) match(values, odd *[batchKeys]uint64) { b.matchPortably(values, odd) }
