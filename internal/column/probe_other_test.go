//go:build !amd64

package column

// without does nothing: sums are in plain Go.
func without() func() { return func() {} }
