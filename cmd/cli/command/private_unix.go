//go:build unix

package command

import "syscall"

// Private sets the umask so that only the owner can read the files that the process
// creates from now on: records, documents and keys, and those that libraries create.
func Private() { syscall.Umask(0o077) }
