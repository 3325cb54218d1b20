//go:build race

package filter

// The race detector makes sync.Pool, and with it package regexp, forget at
// random.
func init() { pooled = false }
