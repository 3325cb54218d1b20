// Package memory counts the memory that requests take from a shared budget, so that together
// they stay below what the process has. It allocates nothing.
package memory

import (
	"fmt"
	"hash/maphash"
	"sync/atomic"

	"github.com/millrace/millrace"
)

// Budget is a number of bytes that requests share. Its methods may be called concurrently.
type Budget struct {
	limit int64            // bytes
	what  string           // see New
	held  atomic.Int64     // bytes that are taken
	seed  maphash.Seed     // of the hash of owners
	owned [64]atomic.Int64 // the part of held by hash of the owner; owners may share a place
}

// New returns a budget of so many bytes. what says in errors who takes them, such as
// "requests that are being read".
func New(bytes int64, what string) *Budget {
	return &Budget{limit: bytes, what: what, seed: maphash.MakeSeed()}
}

// Held returns how many bytes are taken.
func (b *Budget) Held() int64 { return b.held.Load() }

// Take takes n bytes and returns true, if so many are left; else it takes none.
func (b *Budget) Take(n int64) bool {
	if b.held.Add(n) <= b.limit {
		return true
	}
	b.held.Add(-n)
	return false
}

// Give gives bytes back.
func (b *Budget) Give(n int64) { b.held.Add(-n) }

// Loan is the bytes that one request has taken from a budget. Its methods except Hold may be
// called concurrently.
type Loan struct {
	of    *Budget
	owned *atomic.Int64 // the bytes of all loans of its owner; nil: it has no owner
	held  atomic.Int64
}

// Borrow returns an empty loan without an owner.
func (b *Budget) Borrow() *Loan { return &Loan{of: b} }

// ownerTimesFree bounds an owner: its loans together may be this many times the bytes that
// are free. So a single owner may take four fifths of a budget, and each of two owners four
// ninths, and something is always left for the next owner. (Choudhury and Hahne, "Dynamic
// queue length thresholds for shared-memory packet switches", 1998.)
const ownerTimesFree = 4

// BorrowFor returns an empty loan of an owner, such as a caller. The loans of one owner
// together leave something for others.
func (b *Budget) BorrowFor(owner string) *Loan {
	return &Loan{of: b, owned: &b.owned[maphash.String(b.seed, owner)%uint64(len(b.owned))]}
}

// take takes bytes from the budget and returns true, if so many are left for its owner.
func (l *Loan) take(n int64) bool {
	switch {
	case !l.of.Take(n):
		return false
	case l.owned == nil || l.owned.Add(n) <= ownerTimesFree*(l.of.limit-l.of.Held()):
		return true
	}
	l.give(n)
	return false
}

func (l *Loan) give(n int64) {
	l.of.Give(n)
	if l.owned != nil {
		l.owned.Add(-n)
	}
}

// Held returns how many bytes the loan has.
func (l *Loan) Held() int64 { return l.held.Load() }

// More makes a loan larger by so many bytes; a negative number makes it smaller. The error
// (OVERLOADED) says that the budget, or its owner's part, has too few left; then the loan is
// unchanged.
func (l *Loan) More(bytes int64) error {
	if bytes > 0 && !l.take(bytes) {
		return &millrace.Error{
			Reason: millrace.ReasonOverloaded, Detail: fmt.Sprintf("%s take all of the %d bytes that there are for them, or those of this caller take more than one caller may", l.of.what, l.of.limit),
			WayOut: "try again after a second, with fewer large requests at a time",
		}
	}
	if bytes < 0 {
		l.give(-bytes)
	}
	l.held.Add(bytes)
	return nil
}

// Hold makes a loan exactly so many bytes. It fails as More does.
func (l *Loan) Hold(bytes int64) error { return l.More(bytes - l.held.Load()) }

// Return gives all bytes of the loan back. It may be called more than once.
func (l *Loan) Return() { l.give(l.held.Swap(0)) }
