package query

import (
	"runtime"
	"testing"
	"time"
)

// Queries that are not in use outlast collections, and the last released is
// the first used.
func TestSparesOutlastCollections(t *testing.T) {
	var s spares
	a, b := s.get(), s.get()
	s.put(a, time.Now())
	s.put(b, time.Now())
	runtime.GC()
	runtime.GC()
	if got := s.get(); got != b {
		t.Error("it is not the one released last")
	}
	if got := s.get(); got != a {
		t.Error("the first released is gone")
	}
}

// Who is not needed for a while is let go, who is needed stays.
func TestSparesLetGo(t *testing.T) {
	var s spares
	now := time.Unix(1, 0)
	use := func(n int) {
		some := make([]*Query, n)
		for i := range some {
			some[i] = s.get()
		}
		for _, q := range some {
			s.put(q, now)
		}
	}
	use(5)
	now = now.Add(spareFor - 1)
	use(2)
	if len(s.free) != 5 {
		t.Fatalf("%d are kept, want all 5 so soon", len(s.free))
	}
	for range 4 {
		now = now.Add(spareFor)
		use(2)
	}
	if len(s.free) != 2 {
		t.Errorf("%d are kept, want the 2 that are used", len(s.free))
	}
	if used := s.free[:5]; used[2] != nil || used[3] != nil || used[4] != nil {
		t.Error("who was let go is held still")
	}
}
