package compare

import (
	"crypto/rand"
	"crypto/sha256"
)

// unitKey stands for the name of a unit. Millions are kept, and callers choose the names
// and so their length. Callers cannot make up two names with the same key: it is the
// beginning of a SHA-256 of the name after a secret of the process.
type unitKey [16]byte

// secret is random, and another one in each process.
var secret = func() (s [sha256.Size]byte) {
	_, _ = rand.Read(s[:]) // it never fails
	return s
}()

func keyOf(unit string) unitKey {
	var buf [512]byte
	sum := sha256.Sum256(append(append(buf[:0], secret[:]...), unit...))
	return unitKey(sum[:16])
}
