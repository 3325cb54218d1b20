package admission

import (
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace"
)

// A full gate refuses at once; prefetches are refused when it is half full,
// and places come back.
func TestGate(t *testing.T) {
	g := newGate()
	g.mu.limit = 200
	enter := func(p Priority, n int) (visits []*Visit) {
		for range n {
			if v, err := g.enter(p); err == nil {
				visits = append(visits, v)
			} else if e := asRefusal(t, err); e.Reason != millrace.ReasonOverloaded || e.WayOut == "" {
				t.Errorf("got %+v", e)
			}
		}
		return visits
	}
	early := enter(Prefetch, 1000)
	if len(early) != 100 {
		t.Errorf("%d prefetches were let in, want half of 200", len(early))
	}
	if n := len(enter(Interactive, 1000)); n != 100 {
		t.Errorf("%d others were let in beside them, want the other half", n)
	}
	for _, v := range early {
		v.Leave()
	}
	if n := len(enter(Interactive, 1000)); n != len(early) {
		t.Errorf("%d were let in where %d left", n, len(early))
	}
}

// The pause that a refusal names is the one after which a request is let in.
func TestQuotaPause(t *testing.T) {
	q, now := newQuotas(map[string]Quota{"a": {PerSecond: 0.1}}), time.Now()
	if err := q.take("a", now); err != nil {
		t.Fatal(err)
	}
	e := asRefusal(t, q.take("a", now.Add(time.Second)))
	if e.RetryAfter != 9*time.Second {
		t.Errorf("the pause is %s, want 9 s", e.RetryAfter)
	}
	if err := q.take("a", now.Add(10*time.Second)); err != nil {
		t.Errorf("after the pause: %v", err)
	}
}

// asRefusal returns an error as the refusal that it has to be.
func asRefusal(t *testing.T, err error) *millrace.Error {
	t.Helper()
	var e *millrace.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is not a refusal", err)
	}
	return e
}
