// Package memory counts memory that many requests share, so that what they
// take together stays below what a process has.
package memory

import (
	"fmt"
	"sync/atomic"

	"github.com/millrace/millrace"
)

// Budget is memory that many share. Its methods may be called at once.
type Budget struct {
	limit int64
	what  string
	held  atomic.Int64
}

// New returns a budget of so many bytes. what says who takes it, such as
// "requests that are being read".
func New(bytes int64, what string) *Budget { return &Budget{limit: bytes, what: what} }

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
	of   *Budget
	held atomic.Int64
}

// Borrow returns a loan of nothing yet.
func (b *Budget) Borrow() *Loan { return &Loan{of: b} }

// Held returns how many bytes the loan is.
func (l *Loan) Held() int64 { return l.held.Load() }

// More makes a loan larger by so many bytes, or refuses to. Fewer than none
// makes it smaller.
func (l *Loan) More(bytes int64) error {
	if bytes > 0 && !l.of.Take(bytes) {
		return &millrace.Error{
			Reason: millrace.ReasonOverloaded, Detail: fmt.Sprintf("%s take all of the %d bytes that there are for them", l.of.what, l.of.limit),
			WayOut: "try again after a second, with fewer large requests at a time",
		}
	}
	if bytes < 0 {
		l.of.Give(-bytes)
	}
	l.held.Add(bytes)
	return nil
}

// Hold makes a loan so many bytes, or refuses to make it more.
func (l *Loan) Hold(bytes int64) error { return l.More(bytes - l.held.Load()) }

// Return gives all of it back. It may be called again.
func (l *Loan) Return() { l.of.Give(l.held.Swap(0)) }
