package cache

// prefetch asks the processor for buckets. Unlike a load it waits for nothing.
//
//go:noescape
func prefetch(buckets []*bucket)
