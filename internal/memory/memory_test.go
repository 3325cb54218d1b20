package memory

import (
	"errors"
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
