//go:build race

package query

// The race detector makes sync.Pool forget at random.
func init() { pooled = false }
