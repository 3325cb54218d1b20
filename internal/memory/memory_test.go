package memory

import (
	"errors"
	"hash/maphash"
	"sync"
	"testing"

	"github.com/millrace/millrace"
)

// Loans are of one budget, never more than it, and come back whole.
func TestBudget(t *testing.T) {
	b := New(1000, "they")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range int64(1000) {
				l := b.Borrow()
				err := l.Hold(i % 400)
				var e *millrace.Error
				if err != nil && (!errors.As(err, &e) || e.Reason != millrace.ReasonOverloaded || e.WayOut == "") {
					t.Error(err)
				}
				if held := b.Held(); held > 1000+8*400 { // those that are being refused
					t.Errorf("%d are held", held)
				}
				_ = l.Hold(i % 7)
				l.Return()
				l.Return()
			}
		})
	}
	all.Wait()
	if b.Held() != 0 {
		t.Errorf("%d are held in the end", b.Held())
	}
}

// One owner takes most of a budget, and never all of it, with however many loans;
// another gets something, and has more when the first has given back.
func TestOwnersLeaveSomething(t *testing.T) {
	b := New(1000, "they")
	var greedy []*Loan
	for range 1000 {
		l := b.BorrowFor("greedy")
		if l.Hold(10) != nil {
			break
		}
		greedy = append(greedy, l)
	}
	if held := b.Held(); held != 800 {
		t.Errorf("one owner has %d of 1000", held)
	}
	other := b.BorrowFor("another")
	for b.seed = maphash.MakeSeed(); other.owned == greedy[0].owned; b.seed = maphash.MakeSeed() {
		other = b.BorrowFor("another") // they shared a place
	}
	if err := other.Hold(100); err != nil {
		t.Errorf("another: %v", err)
	}
	if other.Hold(600) == nil {
		t.Error("another takes what is not there")
	}
	for _, l := range greedy {
		l.Return()
		l.Return()
	}
	if err := other.Hold(600); err != nil {
		t.Errorf("another, alone: %v", err)
	}
	if other.Hold(900) == nil {
		t.Error("another takes nearly all")
	}
	other.Return()
	if b.Held() != 0 || other.owned.Load() != 0 {
		t.Errorf("%d are held in the end, %d of them owned", b.Held(), other.owned.Load())
	}
}
