package admission

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/permit"
)

// A full limiter refuses at once; prefetches are refused when it is half full,
// and places come back.
func TestLimiter(t *testing.T) {
	l := newLimiter()
	l.mu.limit = 200
	enter := func(p Priority, n int) (inFlight []*InFlight) {
		for range n {
			if v, err := l.enter(p); err == nil {
				inFlight = append(inFlight, v)
			} else if e := asRefusal(t, err); e.Reason != millrace.ReasonOverloaded || e.WayOut == "" {
				t.Errorf("got %+v", e)
			}
		}
		return inFlight
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

// A caller has so many requests under way at the same time, by its identity,
// whatever name it says; others do not suffer, and what leaves makes room.
func TestRequestsAtOnce(t *testing.T) {
	c := New(map[string]Quota{"jobs": {AtOnce: 2}, DefaultCaller: {PerSecond: 1e6, AtOnce: 1}}, 1<<20)
	of := func(who, says string) context.Context {
		ctx := t.Context()
		if who != "" {
			ctx = permit.With(ctx, permit.Identity{Name: who})
		}
		ctx, err := WithHeaders(ctx, func(string) string { return "" })
		if says != "" {
			ctx, err = WithHeaders(ctx, func(name string) string { return map[string]string{CallerHeader: says}[name] })
		}
		if err != nil {
			t.Fatal(err)
		}
		return ctx
	}
	var in []*InFlight
	enter := func(who, says string, may bool) {
		t.Helper()
		v, err := c.Enter(of(who, says))
		if may != (err == nil) {
			t.Errorf("%s, who says %q: %v", who, says, err)
		} else if e := (*millrace.Error)(nil); errors.As(err, &e) && (e.Reason != millrace.ReasonQuota || e.RetryAfter <= 0 || e.WayOut == "") {
			t.Errorf("got %+v", e)
		}
		if err == nil {
			in = append(in, v)
		}
	}
	enter("jobs", "", true)
	enter("jobs", "another", true)
	enter("jobs", "another", false)
	if err := c.Admit("jobs"); err == nil {
		t.Error("before its body is read it is let in")
	}
	enter("others", "jobs", true) // shares the default
	enter("", "", false)
	in[0].Leave()
	in[0].Leave() // changes nothing
	enter("jobs", "", true)
	enter("jobs", "", false)
	for _, v := range in {
		v.Leave()
	}
	for name, s := range c.quotas {
		if n := s.taken.Load(); n != 0 {
			t.Errorf("%s has %d under way that have left", name, n)
		}
	}
	// Two that were both admitted: the second is refused when it enters.
	if _, err := c.Enter(WithPass(of("others", ""), &Pass{})); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Enter(WithPass(of("others", ""), &Pass{})); err == nil {
		t.Error("who was admitted before is let in beyond its share")
	}
	// What the limiter refuses is under way no longer.
	c.limiter.mu.limit = 0
	if _, err := c.Enter(WithPass(of("jobs", ""), &Pass{})); err == nil || c.quotas["jobs"].taken.Load() != 0 {
		t.Errorf("%v: %d under way", err, c.quotas["jobs"].taken.Load())
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
