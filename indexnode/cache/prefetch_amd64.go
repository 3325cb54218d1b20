package cache

// prefetch asks the processor for the buckets of keys. Unlike a load it waits
// for nothing.
//
//go:noescape
func prefetch(keys []id, buckets *bucket, mask uint64)
