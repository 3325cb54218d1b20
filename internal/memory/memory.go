// Package memory counts memory that many requests share, so that what they
// take together stays below what a process has.
package memory

import (
	"fmt"
	"hash/maphash"
	"sync/atomic"

	"github.com/millrace/millrace"
)

// Budget is memory that many share. Its methods may be called at once.
type Budget struct {
	limit int64
	what  string
	held  atomic.Int64
	seed  maphash.Seed
	owned [64]atomic.Int64 // of held, by owner; a few of many owners share a place
}

// New returns a budget of so many bytes. what says who takes it, such as
// "requests that are being read".
func New(bytes int64, what string) *Budget {
	return &Budget{limit: bytes, what: what, seed: maphash.MakeSeed()}
}

// Held returns how many bytes are taken.
func (b *Budget) Held() int64 { return b.held.Load() }

// Take takes bytes, if there are so many.
func (b *Budget) Take(n int64) bool {
	if b.held.Add(n) <= b.limit {
		return true
	}
	b.held.Add(-n)
	return false
}

// Give gives bytes back.
func (b *Budget) Give(n int64) { b.held.Add(-n) }

// Loan is what one request has taken of a budget. Its methods may be called at
// once, but for Hold.
type Loan struct {
	of    *Budget
	owned *atomic.Int64 // what the loans of its owner are; nil: it has none
	held  atomic.Int64
}

// Borrow returns a loan of nothing yet.
func (b *Budget) Borrow() *Loan { return &Loan{of: b} }

// ownerTimesFree is how many times what is free one owner may take: alone four fifths
// of a budget, and each of two four ninths, so that there is always something left for
// the next. (Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory
// packet switches", 1998.)
const ownerTimesFree = 4

// BorrowFor is [Budget.Borrow] for an owner, whose loans together leave something to
// others.
func (b *Budget) BorrowFor(owner string) *Loan {
	return &Loan{of: b, owned: &b.owned[maphash.String(b.seed, owner)%uint64(len(b.owned))]}
}

// take takes bytes for the loan, if there are so many for its owner.
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

// Held returns how many bytes the loan is.
func (l *Loan) Held() int64 { return l.held.Load() }

// More makes a loan larger by so many bytes, or refuses to. Fewer than none
// makes it smaller.
func (l *Loan) More(bytes int64) error {
	if bytes > 0 && !l.take(bytes) {
		return &millrace.Error{
			Reason: millrace.ReasonOverloaded, Detail: fmt.Sprintf("%s take all of the %d bytes that there are for them, or those of one caller too much of it", l.of.what, l.of.limit),
			WayOut: "try again after a second, with fewer large requests at a time",
		}
	}
	if bytes < 0 {
		l.give(-bytes)
	}
	l.held.Add(bytes)
	return nil
}

// Hold makes a loan so many bytes, or refuses to make it more.
func (l *Loan) Hold(bytes int64) error { return l.More(bytes - l.held.Load()) }

// Return gives all of it back. It may be called again.
func (l *Loan) Return() { l.give(l.held.Swap(0)) }
