package fanout

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

func TestHealthComparesWithTheCluster(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		node  nodeHealth
		calls int
		took  time.Duration
		want  bool
	}{
		"like all":       {nodeHealth{calls: 100, took: 1000 * ms}, 300, 3000 * ms, false},
		"slow":           {nodeHealth{calls: 100, took: 4000 * ms}, 300, 6000 * ms, true},
		"slow by little": {nodeHealth{calls: 100, took: 40 * ms}, 300, 60 * ms, false},
		"failing":        {nodeHealth{calls: 100, failed: 10, took: 100 * ms}, 300, 3000 * ms, true},
		"few calls":      {nodeHealth{calls: 9, failed: 9}, 300, 3000 * ms, false},
		"enough calls":   {nodeHealth{calls: 10, failed: 1}, 300, 3000 * ms, true},
		"failing seldom": {nodeHealth{calls: 100, failed: 9, took: 100 * ms}, 300, 3000 * ms, false},
		"just not slow":  {nodeHealth{calls: 100, took: 1500 * ms}, 100, 1000 * ms, false},
		"just slow":      {nodeHealth{calls: 100, took: 1501 * ms}, 100, 1000 * ms, true},
		"a little above": {nodeHealth{calls: 100, took: 200 * ms}, 100, 100 * ms, false},
		"and a bit":      {nodeHealth{calls: 100, took: 201 * ms}, 100, 100 * ms, true},
	} {
		if got := c.node.bad(c.calls, c.took); got != c.want {
			t.Errorf("%s: bad is %v", name, got)
		}
	}
}

// A node of which calls fail is not asked first, at once, and tried again after a pause.
func TestAnUnreachableNodeIsNotAskedFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := zoned(t, 2, "n0", "n1"), newHealth()
		poor := func() []millrace.NodeID { return h.doubtful(m).poor }
		if got := poor(); len(got) > 0 {
			t.Fatalf("at first: %v", got)
		}
		for range silentCalls {
			h.failed("n1")
		}
		if got := poor(); !slices.Equal(got, []millrace.NodeID{"n1"}) {
			t.Errorf("after %d failures %v are not asked first", silentCalls, got)
		}
		time.Sleep(firstPause)
		if got := poor(); len(got) > 0 {
			t.Errorf("after a pause %v are not tried", got)
		}
		if got := poor(); !slices.Equal(got, []millrace.NodeID{"n1"}) {
			t.Errorf("while it is tried %v are not asked first by others", got)
		}
	})
}

// A node that comes later is used by degrees.
func TestSlowStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := zoned(t, 2, "n0", "n1")
		h := newHealth()
		if got := h.doubtful(m); len(got.poor) > 0 {
			t.Fatalf("at first: %v", got)
		}
		a := m.Assignment()
		for p := range a.Replicas {
			a.Replicas[p] = append(a.Replicas[p], "late")
		}
		m = topology.NewMap(a, append(slices.Clone(m.Nodes()), topology.Node{ID: "late", Addr: "fake:1"}), nil)
		share := func() (n int) {
			for range 1000 {
				if !slices.Contains(h.doubtful(m).poor, millrace.NodeID("late")) {
					n++
				}
			}
			return n
		}
		if n := share(); n < 130 || n > 270 {
			t.Errorf("asked first by %d of 1000 at the start", n)
		}
		for range 10 {
			time.Sleep(healthEvery)
			h.doubtful(m)
		}
		if n := share(); n != 1000 {
			t.Errorf("asked first by %d of 1000 a minute later", n)
		}
	})
}

// scores are those of nodes n0 and n1.
func (h *health) scores() [2]float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return [2]float64{h.of("n0").score, h.of("n1").score}
}

// The score of a node falls fast while it is slow or failing, to a floor, rises slowly, and
// counts each interval by itself.
func TestScores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := zoned(t, 2, "n0", "n1"), newHealth()
		h.doubtful(m)
		interval := func(slow bool, want float64) {
			t.Helper()
			for range healthCalls {
				h.answered("n0", 10*time.Millisecond, true)
				switch {
				case slow:
					h.gaveUp("n1", time.Second)
				default:
					h.answered("n1", 10*time.Millisecond, true)
				}
			}
			time.Sleep(healthEvery - 1)
			if before := h.scores(); func() bool { h.doubtful(m); return h.scores() != before }() {
				t.Error("scores change within an interval")
			}
			time.Sleep(time.Nanosecond)
			h.doubtful(m)
			if got := h.scores(); got[0] != 1 || got[1] < want-1e-9 || got[1] > want+1e-9 {
				t.Errorf("scores %v, want 1 and %v", got, want)
			}
		}
		for _, want := range []float64{0.6, 0.2, healthFloor, healthFloor} {
			interval(true, want)
		}
		for _, want := range []float64{0.15, 0.25} {
			interval(false, want)
		}
		for range healthCalls { // an interval that fails at the end counts too
			h.answered("n1", 10*time.Millisecond, true)
		}
		for range 3 { // of 23
			h.failed("n1")
		}
		interval(false, healthFloor)
	})
}

// A silent node is tried by one request after each pause, which doubles up to a bound; only
// an answer in time ends that, with half the score. An overdue call counts as a failed one.
func TestASilentNodeIsTriedNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := zoned(t, 2, "n0", "n1"), newHealth()
		tried := func() bool { return !slices.Contains(h.doubtful(m).poor, "n1") }
		tried()
		h.failed("n1")
		for range silentCalls - 2 {
			h.overdue("n1")
		}
		if !tried() {
			t.Error("it is silent too early")
		}
		h.overdue("n1")
		for _, pause := range []time.Duration{1, 2, 4, 8, 16, 16, 16} {
			time.Sleep(pause*time.Second - 1)
			if tried() {
				t.Errorf("it is tried before %d s", pause)
			}
			time.Sleep(time.Nanosecond)
			if !tried() || tried() {
				t.Errorf("after %d s it is not tried once", pause)
			}
			h.failed("n1")
		}
		if h.answered("n1", time.Second, false); tried() {
			t.Error("a late answer makes it usable")
		}
		before := h.scores()[1]
		h.answered("n1", time.Millisecond, true)
		if got := h.scores()[1]; got != before/2 {
			t.Errorf("its score was %v and is %v", before, got)
		}
		h.answered("n1", time.Millisecond, true)
		if got := h.scores()[1]; got != before/2 {
			t.Errorf("its score is %v after another answer", got)
		}
		for range silentCalls {
			h.failed("n1")
		}
		if tried() {
			t.Error("it is not silent again")
		}
		if time.Sleep(firstPause); !tried() {
			t.Error("the first pause is not short again")
		}
	})
}

// A node is unresponsive if nothing came from it for a while and a ping went without an
// answer; its calls end after some beats, and later ones soon. Whatever comes ends that.
func TestUnresponsiveNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, h := zoned(t, 2, "n0", "n1"), newHealth()
		h.doubtful(m)
		h.hears("n1")
		if h.suspect("n1") {
			t.Error("a node that was just heard is pinged")
		}
		time.Sleep(pingSpacing)
		if !h.suspect("n1") || h.suspect("n1") {
			t.Error("a node is not pinged once")
		}
		call, over := h.wait(t.Context(), "n1")
		answers, pings := make(chan error), 0
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			h.ping(t.Context(), "n1", func(ctx context.Context) error {
				pings++
				select {
				case err := <-answers:
					return err
				case <-ctx.Done():
					return ctx.Err()
				}
			})
		}()
		at := time.Now()
		look := func(since time.Duration, unresponsive, callEnds bool) {
			t.Helper()
			time.Sleep(time.Until(at.Add(since)))
			synctest.Wait()
			s := h.doubtful(m)
			if h.unresponsive("n1") != unresponsive || slices.Contains(s.unresponsive, "n1") != unresponsive || len(s.poor) > 0 || (call.Err() != nil) != callEnds {
				t.Errorf("after %s: unresponsive %t, %+v, its call ends: %v", since, !unresponsive, s, context.Cause(call))
			}
		}
		look(beat-1, false, false)
		look(unresponsiveAfter-pingSpacing-1, false, false)
		look(unresponsiveAfter-pingSpacing, true, false)
		look(unresponsivePatience*beat-1, true, false)
		look(unresponsivePatience*beat, true, true)
		if !errors.Is(context.Cause(call), errUnresponsive) {
			t.Errorf("the call ends by %v", context.Cause(call))
		}
		over()
		began := time.Now()
		next, over := h.wait(t.Context(), "n1")
		<-next.Done()
		if took := time.Since(began); took != beat && took != unresponsiveProbe || !errors.Is(context.Cause(next), errUnresponsive) {
			t.Errorf("a later call ends after %s by %v", took, context.Cause(next))
		}
		over()
		answers <- errors.New("refused")
		time.Sleep(2 * beat) // the next ping
		synctest.Wait()
		if pings < 2 || !h.unresponsive("n1") {
			t.Errorf("after an error it is unresponsive: %t, after %d pings", h.unresponsive("n1"), pings)
		}
		time.Sleep(pingLimit + beat)
		synctest.Wait()
		if pings < 3 {
			t.Errorf("%d pings", pings)
		}
		answers <- nil
		<-ended
		if h.unresponsive("n1") || h.suspect("n1") {
			t.Error("a node that answers a ping is suspected")
		}
		call, over = h.wait(t.Context(), "n1")
		if time.Sleep(time.Minute); call.Err() != nil {
			t.Error("its calls end again")
		}
		if over(); call.Err() == nil {
			t.Error("what a call held stays after it")
		}
		if n := len(h.mu.nodes["n1"].waits); n != 0 {
			t.Errorf("%d calls are kept", n)
		}
		if !h.suspect("n1") {
			t.Error("it is never pinged again")
		}
	})
}

// Pings end with their context, and the node counts as heard.
func TestPingsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, answers := range []bool{false, true} { // with an error, or not at all
			h := newHealth()
			ctx, end := context.WithTimeout(t.Context(), 5*beat+1)
			began := time.Now()
			h.ping(ctx, "n1", func(ctx context.Context) error {
				if !answers {
					<-ctx.Done()
				}
				return errors.New("no")
			})
			if end(); time.Since(began) != 5*beat+1 || h.unresponsive("n1") {
				t.Errorf("pings end after %s, and it is unresponsive: %t", time.Since(began), h.unresponsive("n1"))
			}
		}
	})
}

// A late first answer of a probe counts: calls of a node that was unresponsive end only by
// themselves once it was heard.
func TestAProbeThatIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHealth()
		for range unresponsivePatience - 1 {
			h.missBeat("n1")
		}
		patient, over := h.wait(t.Context(), "n1")
		defer over()
		time.Sleep(10 * unresponsiveProbe)
		if patient.Err() != nil {
			t.Errorf("before its patience is at an end a call ends by %v", context.Cause(patient))
		}
		h.missBeat("n1")
		if patient.Err() == nil {
			t.Error("a call goes on")
		}
		began := time.Now()
		probe, done := h.wait(t.Context(), "n1")
		<-probe.Done()
		if took := time.Since(began); took != unresponsiveProbe || context.Cause(probe) != errUnresponsive {
			t.Errorf("a probe ends after %s by %v", took, context.Cause(probe))
		}
		done()
		probe, done = h.wait(t.Context(), "n1")
		done()
		if cause := context.Cause(probe); !errors.Is(cause, context.Canceled) {
			t.Errorf("an answered probe ends by %v", cause)
		}
	})
}
