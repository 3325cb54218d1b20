package ledger

import "testing"

// A name is gone once what served is dropped, and not when a version that served nobody,
// or does so no more, is.
func TestGone(t *testing.T) {
	l := &Ledger{}
	one, two := Edition{"1", "a", 1}, Edition{"2", "b", 1}
	for _, e := range []Edition{one, two} {
		l.Publish(e, func(Edition) Care { return 0 }, "ann")
	}
	gone := func(when string, want bool) {
		t.Helper()
		if at := l.Gone(); at.IsZero() == want {
			t.Errorf("%s: gone at %v", when, at)
		}
	}
	l.Drop(two, "ann")
	gone("what never served is dropped", false)
	l.Publish(two, func(Edition) Care { return 0 }, "ann")
	l.Serve(one, "ann")
	l.Serve(two, "ann")
	l.Rollback("ann")
	l.Drop(two, "ann")
	gone("what serves no more is dropped", false)
	l.Drop(one, "ann")
	gone("all is dropped", true)
	at := l.Gone()
	l.Publish(one, func(Edition) Care { return 0 }, "ann")
	l.Serve(one, "ann")
	if l.Gone() != at {
		t.Errorf("defined again: gone at %v, and it was at %v", l.Gone(), at)
	}
	l = &Ledger{}
	l.Note(Dropped, Edition{}, "ann: it could not be read")
	gone("what could not be read is dropped", true)
}
