package answers

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/relevance"
)

// says is what a cluster says of versions.
type says struct {
	mu       sync.Mutex
	all      map[artefacts.Version]artefacts.Condemnation
	fails    error
	released bool // it does not take that a version is condemned
	told     int
	changed  chan struct{}
}

func (s *says) Current() map[artefacts.Version]artefacts.Condemnation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.all)
}

func (s *says) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *says) Condemn(_ context.Context, _ *artefacts.Kind, v artefacts.Version, why, who string, seen time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told++
	switch {
	case s.released:
		return artefacts.ErrReleased
	case s.fails != nil:
		return s.fails
	}
	s.set(map[artefacts.Version]artefacts.Condemnation{v: {Version: v.Version, Sum: v.Sum, Why: who + ": " + why, When: seen}})
	return nil
}

// set has the cluster say something else. The caller holds mu.
func (s *says) set(all map[artefacts.Version]artefacts.Condemnation) {
	s.all = all
	close(s.changed)
	s.changed = make(chan struct{})
}

// What fails here is told to the cluster at once, again and again until it has heard it, and
// not what it has said itself; what it says holds here, and what it says no more holds no more.
func TestTheClusterIsToldOfWhatFailedHere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		s := New(Config{Node: "here", Models: relevance.Builtin(), Log: slog.New(slog.NewTextHandler(&log, nil))})
		c := s.condemned
		cluster := &says{changed: make(chan struct{})}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.run(ctx, nil, cluster) }()
		want := func(when string, id relevance.ID, why string, told int) {
			t.Helper()
			synctest.Wait()
			cluster.mu.Lock()
			defer cluster.mu.Unlock()
			if got := c.why(id); got != why || cluster.told != told {
				t.Errorf("%s: %s is condemned as %q, want %q; the cluster was told %d times, want %d", when, id.Version, got, why, cluster.told, told)
			}
		}
		change := func(by func()) {
			cluster.mu.Lock()
			defer cluster.mu.Unlock()
			by()
		}
		first, second := relevance.ID{Name: "m", Version: "1", Sum: "a"}, relevance.ID{Name: "m", Version: "2", Sum: "b"}
		want("at first", first, "", 0)
		c.condemn(relevance.ID{Name: "home"}, causePanic, "it panicked")
		want("a built-in model", relevance.ID{Name: "home"}, "", 0)

		change(func() { cluster.fails = errors.New("etcd is away") })
		seen := time.Now()
		for range 3 { // it fails once
			c.condemn(first, causeNaN, "it has %s", "no number")
		}
		want("while etcd is away", first, "it has no number", 1)
		time.Sleep(tellAgain - 1)
		want("soon after", first, "it has no number", 1)
		time.Sleep(time.Nanosecond)
		want("a while after", first, "it has no number", 2)
		change(func() { cluster.fails = nil })
		time.Sleep(tellAgain)
		want("etcd is back", first, "here: it has no number", 3)
		if got := cluster.Current()[artefacts.Version(first)]; !got.When.Equal(seen) {
			t.Errorf("it was seen at %s, and not at %s", got.When, seen)
		}
		time.Sleep(time.Hour)
		want("long after", first, "here: it has no number", 3)

		change(func() {
			cluster.set(map[artefacts.Version]artefacts.Condemnation{artefacts.Version(second): {Why: "elsewhere"}})
		})
		want("the first is released", first, "", 3)
		want("another failed elsewhere", second, "elsewhere", 3)
		c.condemn(second, causeCost, "it is slow")
		want("what the cluster knows", second, "elsewhere", 3)

		change(func() { cluster.released = true })
		c.condemn(first, causePanic, "it panicked")
		want("released before it was told", first, "", 4)
		time.Sleep(time.Hour)
		want("and that is no failure", first, "", 4)

		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ends with %v", err)
		}
		for cause, n := range map[string]float64{causeNaN: 1, causePanic: 1, causeCost: 0} {
			var m dto.Metric
			if err := c.counters.WithLabelValues("m", "1", cause).Write(&m); err != nil || m.Counter.GetValue() != n {
				t.Errorf("%v are counted for %s, %v", m.Counter.GetValue(), cause, err)
			}
		}
		if n, failed := strings.Count(log.String(), "model condemned"), strings.Count(log.String(), "trying again"); n != 2 || failed != 2 {
			t.Errorf("%d condemned and %d failures are logged: %s", n, failed, &log)
		}
		// Before the first question, a node takes over what the cluster says.
		s = New(Config{Node: "later", Models: relevance.Builtin(), Log: slog.New(slog.DiscardHandler)})
		s.TakeOver(cluster.all, func(string) []artefacts.Version { return nil })
		if s.condemned.why(second) != "elsewhere" || s.condemned.earlier.Load() == nil {
			t.Error("a node that starts does not know what the cluster says")
		}
	})
}
