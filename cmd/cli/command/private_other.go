//go:build !unix

package command

// Private does nothing where files have no modes.
func Private() {}
