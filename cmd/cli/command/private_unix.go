//go:build unix

package command

import "syscall"

// Private has nobody else read what the process writes from now on: records,
// documents and keys, also by the code of others.
func Private() { syscall.Umask(0o077) }
