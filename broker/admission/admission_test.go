package admission

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

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

// A quota that lets nobody in, or is nobody's, is refused by its field.
func TestQuotasThatAreNone(t *testing.T) {
	for _, c := range []struct {
		caller string
		Quota
		field string
	}{
		{"a", Quota{PerSecond: 1}, ""}, {"a", Quota{AtOnce: 1}, ""}, {"a", Quota{PerSecond: 0.1, Burst: 5, AtOnce: 1}, ""}, {"a", Quota{AtOnce: 1, Burst: 3}, ""},
		{"", Quota{PerSecond: 1}, "quotas."}, {"a", Quota{}, "quotas.a.per_second"}, {"a", Quota{PerSecond: -1}, "quotas.a.per_second"}, {"a", Quota{PerSecond: math.Inf(1)}, "quotas.a.per_second"},
		{"a", Quota{PerSecond: math.NaN()}, "quotas.a.per_second"}, {"a", Quota{PerSecond: 1, AtOnce: -1}, "quotas.a.at_once"}, {"a", Quota{PerSecond: 1, Burst: -1}, "quotas.a.burst"}, {"a", Quota{AtOnce: 1, Burst: -1}, "quotas.a.per_second"},
	} {
		err := c.Validate(c.caller)
		if (err == nil) != (c.field == "") || err != nil && asRefusal(t, err).Field != c.field {
			t.Errorf("%q %+v: %v", c.caller, c.Quota, err)
		}
	}
	now := time.Now()
	for quota, burst := range map[Quota]int{{PerSecond: 2.5}: 3, {PerSecond: 2.5, Burst: 1}: 1, {PerSecond: 1, Burst: 7}: 7} {
		q, n := newQuotas(map[string]Quota{"a": quota}), 0
		for q.take("a", now) == nil && n < 100 {
			n++
		}
		if n != burst || q.take(q.known("another"), now) != nil {
			t.Errorf("%+v: %d at once", quota, n)
		}
	}
}

// Priorities are those that there are; who asks is told from what a caller says.
func TestHeaders(t *testing.T) {
	for header, want := range map[string]Priority{"": Interactive, "interactive": Interactive, "prefetch": Prefetch, "urgent": Interactive} {
		ctx, err := WithHeaders(t.Context(), func(name string) string {
			return map[string]string{PriorityHeader: header, CallerHeader: "jobs"}[name]
		})
		if bad := header == "urgent"; (err != nil) != bad || bad && (asRefusal(t, err).Field != PriorityHeader || HeadersOf(ctx) != (Headers{})) || !bad && HeadersOf(ctx) != (Headers{want, "jobs"}) {
			t.Errorf("%q: %+v, %v", header, HeadersOf(ctx), err)
		}
	}
}

// What is refused is counted by caller and reason; a door's pass is entered once, and its
// loan is the door's.
func TestAdmissionsAreCounted(t *testing.T) {
	c := New(map[string]Quota{"jobs": {PerSecond: 1e-9, Burst: 1}}, 4000)
	count := func(caller, outcome string, want float64) {
		t.Helper()
		if got := testutil.ToFloat64(c.callers.WithLabelValues(caller, outcome)); got != want {
			t.Errorf("%v of %s %s, want %v", got, caller, outcome, want)
		}
	}
	jobs, err := WithHeaders(t.Context(), func(name string) string { return map[string]string{CallerHeader: "jobs"}[name] })
	if err != nil {
		t.Fatal(err)
	}
	pass := &Pass{}
	door := WithPass(jobs, pass)
	v, err := c.Enter(door)
	if again, _ := c.Enter(door); err != nil || again != v || pass.InFlight != v || c.limiter.mu.inFlight != 1 {
		t.Errorf("%v, %d in flight", err, c.limiter.mu.inFlight)
	}
	count("jobs", "admitted", 0) // the door asked the quota
	for _, want := range []bool{true, false} {
		if _, err := c.Enter(jobs); (err == nil) != want {
			t.Errorf("%v", err)
		}
	}
	count("jobs", "admitted", 1)
	count("jobs", "refused", 1)
	if err := c.Admit("nobody"); err != nil {
		t.Error(err)
	}
	count(DefaultCaller, "admitted", 1)
	if c.Full(Interactive) || c.Full(Prefetch) || testutil.ToFloat64(c.shed) != 0 {
		t.Error("it is full")
	}
	c.limiter.mu.limit = 3
	if c.Full(Interactive) || !c.Full(Prefetch) || testutil.ToFloat64(c.shed) != 1 {
		t.Errorf("%v are shed", testutil.ToFloat64(c.shed))
	}
	if _, err := c.EnterAside(); err == nil {
		t.Error("what nobody waits for is let in")
	}
	c.limiter.mu.limit = 2
	if _, err := c.Enter(WithPass(t.Context(), &Pass{})); err == nil || testutil.ToFloat64(c.shed) != 2 || asRefusal(t, err).Reason != millrace.ReasonOverloaded {
		t.Errorf("%v, %v are shed", err, testutil.ToFloat64(c.shed))
	}
	// The memory of an answer.
	for _, budget := range []struct{ got, want int64 }{{held(c.Arriving), 1000}, {held(c.Parsing), 1000}, {held(c.Answering), 2000}} {
		if budget.got != budget.want {
			t.Errorf("%d bytes of a budget, want %d", budget.got, budget.want)
		}
	}
	for _, ctx := range []context.Context{t.Context(), WithPass(t.Context(), &Pass{})} {
		loan, over := c.Loan(ctx)
		if err := loan.Hold(100); err != nil || c.Answering.Held() != 100 {
			t.Errorf("%d bytes are held, %v", c.Answering.Held(), err)
		}
		if over(); c.Answering.Held() != 0 {
			t.Errorf("%d bytes are held after an answer", c.Answering.Held())
		}
	}
	pass.Loan = c.Answering.Borrow()
	loan, over := c.Loan(door)
	if err := loan.Hold(100); err != nil || loan != pass.Loan {
		t.Error("it is not the door's loan")
	}
	if over(); c.Answering.Held() != 100 {
		t.Error("what the door lent is given back before the answer is read")
	}
}

// held is how many bytes a budget gives.
func held(b interface {
	Take(int64) bool
	Give(int64)
}) (n int64) {
	for b.Take(n + 1) {
		b.Give(n + 1)
		n++
	}
	return n
}

// The limit follows how answers end in each window, by the factors and bounds there are.
func TestTheLimitFollowsAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter()
		// window lets n requests in at the same time, which take so long and end in turn.
		window := func(took time.Duration, endings ...Ending) {
			t.Helper()
			var all []*InFlight
			for _, e := range endings {
				v, err := l.enter(Interactive)
				if err != nil {
					t.Fatal(err)
				}
				v.Asks("home", 10, time.Now().Add(10*time.Second))
				v.Ending = e
				all = append(all, v)
			}
			time.Sleep(took)
			for _, v := range all {
				v.Leave()
			}
		}
		of := func(n int, e Ending, more ...Ending) []Ending {
			for range n {
				more = append(more, e)
			}
			return more
		}
		look := func(want float64) {
			t.Helper()
			if got := l.mu.limit; math.Abs(got-want) > 1e-9*want {
				t.Errorf("the limit is %v, want %v", got, want)
			}
		}
		look(minInFlight)
		window(limitWindow-1, of(10, EndWhole)...)
		look(minInFlight) // no window has ended
		window(1, EndWhole)
		look(minInFlight * limitStart)
		window(limitWindow, of(limitSamples-1, EndWhole)...)
		look(minInFlight * limitStart) // too few
		window(1, of(9, EndSilent)...)
		look(minInFlight * limitStart) // these say nothing
		window(1, EndPartial)
		limit := minInFlight * limitStart * limitStart
		look(limit)
		window(limitWindow, of(10, EndWhole)...)
		limit *= limitStart
		look(limit)
		window(limitWindow, of(9, EndWhole, EndShed)...) // a tenth
		limit *= limitStart
		look(limit)
		window(limitWindow, of(8, EndWhole, EndShed)...) // of nine: more than a tenth, but too few
		look(limit)
		window(1, EndShed, EndWhole)
		limit *= limitFall
		look(limit)
		window(limitWindow, of(10, EndWhole)...)
		limit *= limitRise // it has fallen
		look(limit)
		for limit < readyInFlight {
			window(limitWindow, of(10, EndWhole)...)
			limit *= limitRise
			look(limit)
		}
		window(limitWindow, of(10, EndWhole)...)
		look(limit) // nobody needs more
		window(limitWindow, of(int(limit), EndWhole)...)
		limit *= limitRise
		look(limit)
		if l.limit() != int(limit) {
			t.Errorf("%d are let in", l.limit())
		}
		for range 40 {
			window(limitWindow, of(int(l.mu.limit), EndWhole)...)
		}
		look(maxInFlight)
		for range 40 {
			window(limitWindow, of(10, EndShed)...)
		}
		look(minInFlight)
		v, err := l.enter(Interactive)
		if err != nil {
			t.Fatal(err)
		}
		v.Leave()
		v.Leave()
		if l.mu.inFlight != 0 {
			t.Errorf("%d are in flight", l.mu.inFlight)
		}
	})
}

// The usual time of an answer falls at once to what is usual, rises by a little with each
// window, and is of one kind of requests. Slow answers lower the limit; those that were
// allowed less than the usual time say nothing.
func TestUsualTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter()
		l.mu.limit = 200
		run := func(n int, feed string, entities int, took, allowed time.Duration, e Ending) {
			t.Helper()
			for range n {
				v, err := l.enter(Interactive)
				if err != nil {
					t.Fatal(err)
				}
				v.Asks(feed, entities, time.Now().Add(allowed))
				v.Ending = e
				time.Sleep(took)
				v.Leave()
			}
		}
		usual := func(feed string, size int, want time.Duration) {
			t.Helper()
			if got := l.mu.usual[kind{feed, size}]; got != want {
				t.Errorf("usual of %s, %d: %v, want %v", feed, size, got, want)
			}
		}
		const ms = time.Millisecond
		run(10, "a", 10, 20*ms, time.Minute, EndWhole)
		usual("a", 2, 20*ms)
		run(usualSamples-1, "b", 10, 20*ms, time.Minute, EndWhole)
		run(limitSamples-(usualSamples-1), "a", 3, 20*ms, time.Minute, EndWhole) // in the same window
		usual("b", 2, 0)
		usual("a", 1, 20*ms)
		run(10, "a", 10, 10*ms, time.Minute, EndWhole)
		usual("a", 2, 10*ms)
		limit := l.mu.limit
		run(10, "a", 10, 40*ms, time.Minute, EndWhole) // not slow: four times the usual
		rise := float64(30*ms) * float64(400*ms) / float64(usualWithin)
		usual("a", 2, 10*ms+time.Duration(rise))
		if l.mu.limit != limit {
			t.Errorf("the limit is %v after slow answers, and was %v", l.mu.limit, limit)
		}
		run(10, "a", 10, 50*ms, time.Minute, EndWhole) // slow
		if l.mu.limit != limit*limitFall {
			t.Errorf("the limit is %v after slow answers, and was %v", l.mu.limit, limit)
		}
		limit = l.mu.limit
		run(20, "a", 10, 5*ms, time.Minute, EndLate) // before its usual time
		if l.mu.limit != limit {
			t.Errorf("the limit is %v after answers of whom nobody could wait, and was %v", l.mu.limit, limit)
		}
		run(10, "a", 10, 15*ms, time.Minute, EndLate)
		if l.mu.limit != limit*limitFall {
			t.Errorf("the limit is %v after late answers, and was %v", l.mu.limit, limit)
		}
	})
	for _, c := range []struct {
		took, usual, allowed time.Duration
		want                 bool
	}{
		{40, 10, 1e9, false}, {41, 10, 1e9, false}, {10_000_000, 1, 1e9, false}, {10_000_001, 1, 1e9, true}, {5_000_001, 1, 1e8, true}, {5_000_000, 1, 1e8, false},
		{100, 1e6, 50, false}, {51, 25, 100, true}, {50, 24, 100, false}, {51, 26, 100, false}, {1e7 + 1, 1e7, 1e9, false},
	} {
		if got := (&InFlight{allowed: c.allowed}).slow(c.took, c.usual); got != c.want {
			t.Errorf("%+v: slow: %t", c, got)
		}
	}
	if e := asRefusal(t, Overloaded); !strings.Contains(e.WayOut, "after a second") {
		t.Errorf("%+v", e)
	}
}
