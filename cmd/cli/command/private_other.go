//go:build !unix

package command

// Private does nothing here: files have no modes as on Unix.
func Private() {}
