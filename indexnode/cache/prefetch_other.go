//go:build !amd64

package cache

// prefetch asks the processor for the buckets of keys, where there is a way to.
func prefetch([]id, *bucket, uint64) {}
