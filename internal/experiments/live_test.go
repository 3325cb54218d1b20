package experiments

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// source is a cluster's documents, in memory.
type source struct {
	mu      sync.Mutex
	serving map[string]artefacts.Version
	bodies  map[artefacts.Version]string
	away    error // of bodies
	reads   int
	used    map[string]artefacts.Version
	changed chan struct{}
}

func newSource() *source {
	return &source{serving: map[string]artefacts.Version{}, bodies: map[artefacts.Version]string{}, changed: make(chan struct{})}
}

func (s *source) Serving() map[string]artefacts.Version {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.serving)
}

func (s *source) Body(_ context.Context, v artefacts.Version) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	return []byte(s.bodies[v]), s.away
}

func (s *source) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *source) Gone(string) time.Time { return time.Time{} }

func (s *source) Use(versions map[string]artefacts.Version) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used = versions
}

func (s *source) LastUsed() map[artefacts.Version][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[artefacts.Version][]byte{}
	for _, v := range s.used {
		all[v] = []byte(s.bodies[v])
	}
	return all
}

// serve lets a text serve, "" nothing, and rings.
func (s *source) serve(name, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v := artefacts.Version{Name: name, Version: text, Sum: text}
	s.serving[name], s.bodies[v] = v, text
	if text == "" {
		delete(s.serving, name)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// world is what documents may refer to.
type world struct {
	mu      sync.Mutex
	models  []string
	changed chan struct{}
}

func newWorld(models ...string) *world { return &world{models: models, changed: make(chan struct{})} }

func (w *world) HasFeed(string) bool            { return true }
func (w *world) IsPrivate(string) (bool, error) { return false, nil }
func (w *world) CheckFilter(string) error       { return nil }

func (w *world) CheckWeights(string, string, map[string]float64) error { return nil }

func (w *world) HasModel(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.models, name)
}

func (w *world) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

func (w *world) set(models ...string) {
	w.setUnheard(models...)
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// setUnheard is set, but rings nobody.
func (w *world) setUnheard(models ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.models = models
}

// document is one of an experiment that gives everybody a variant of a feed.
func document(name, set string) string {
	return fmt.Sprintf(`
layers: [{name: l-%s, salt: s-%s, unit: viewer}]
experiments: [{name: %s, layer: l-%s, feeds: [f], state: running, slots: [0-9999], share: 10000, variants: [{name: v, weight: 10000, set: {%s}}]}]
`, name, name, name, name, set)
}

// dealt is what everybody gets.
func dealt(l *Live) string {
	var all []string
	for _, x := range l.Current().Assign("f", &millrace.Viewer{ID: "member:1"}).Experiments {
		all = append(all, x.Experiment+x.Sets.String())
	}
	return strings.Join(all, " ")
}

func TestLiveFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, known := newSource(), newWorld("m")
		src.serve("a", document("a", "limit: 1"))
		l := Follow(src, known, slog.New(slog.DiscardHandler))
		defer l.Close()
		const tick = takeEvery
		steps := []struct {
			what   string
			do     func()
			want   string
			faults string // the documents that have one
		}{
			{"what there was", func() {}, `a{"limit":1}`, ""},
			{"a change", func() { src.serve("a", document("a", "limit: 2")) }, `a{"limit":2}`, ""},
			{"another document", func() { src.serve("b", document("b", "model: m")) }, `a{"limit":2} b{"model":"m"}`, ""},
			{"no YAML", func() { src.serve("a", "{") }, `a{"limit":2} b{"model":"m"}`, "a"},
			{"what contradicts the other", func() { src.serve("b", document("a", "model: m")) }, `a{"limit":2} b{"model":"m"}`, "a b"},
			{"good again", func() { src.serve("a", document("a", "limit: 3")); src.serve("b", document("b", "model: m")) }, `a{"limit":3} b{"model":"m"}`, ""},
			{"the model is gone", func() { known.set() }, `a{"limit":3}`, "b"},
			{"it is back", func() { known.set("m") }, `a{"limit":3} b{"model":"m"}`, ""},
			{"a document is gone", func() { src.serve("a", "") }, `b{"model":"m"}`, ""},
			{"bodies are away", func() {
				src.mu.Lock()
				src.away = errors.New("no etcd")
				src.mu.Unlock()
				src.serve("c", document("c", "limit: 9"))
			}, `b{"model":"m"}`, "c"},
		}
		for _, s := range steps {
			s.do()
			time.Sleep(3 * tick)
			if got := dealt(l); got != s.want {
				t.Errorf("%s: %s, want %s", s.what, got, s.want)
			}
			if got := strings.Join(slices.Sorted(maps.Keys(l.Faults())), " "); got != s.faults {
				t.Errorf("%s: faults of %q, want %q: %v", s.what, got, s.faults, l.Faults())
			}
		}
		src.mu.Lock()
		src.away = nil
		src.mu.Unlock()
		time.Sleep(retryAfter + 3*tick) // nothing rings
		if got := dealt(l); got != `b{"model":"m"} c{"limit":9}` || len(l.Faults()) > 0 {
			t.Errorf("%s, %v", got, l.Faults())
		}
	})
}

// A broker that has heard of a version and cannot read it goes on by the one before,
// and so does the next process of it.
func TestLiveStartsByWhatWasLastGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.serve("a", document("a", "limit: 1"))
		src.serve("b", document("b", "limit: 2"))
		l := Follow(src, newWorld(), slog.New(slog.DiscardHandler))
		src.mu.Lock()
		src.away = errors.New("no etcd")
		src.mu.Unlock()
		src.serve("a", document("a", "limit: 3"))
		src.serve("b", "")
		time.Sleep(3 * takeEvery)
		l.Close()
		for range 2 { // restarts
			l = Follow(src, newWorld(), slog.New(slog.DiscardHandler))
			if got := dealt(l); got != `a{"limit":1}` || l.Faults()["a"] == "" {
				t.Errorf("%s, %v", got, l.Faults())
			}
			l.Close()
		}
	})
}

// A thousand changes a second are taken over ten times, the last one for good.
func TestLiveIsNotDriven(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		l := Follow(src, newWorld(), slog.New(slog.DiscardHandler))
		defer l.Close()
		for i := range 1000 {
			src.serve("a", document("a", fmt.Sprint("limit: ", i+1)))
			time.Sleep(time.Millisecond)
		}
		time.Sleep(2 * takeEvery)
		if got := dealt(l); got != `a{"limit":1000}` {
			t.Error(got)
		}
		if src.reads > 15 {
			t.Errorf("%d reads", src.reads)
		}
	})
}

// slow answers for a body when ctx ends.
type slow struct{ *source }

func (s slow) Body(ctx context.Context, _ artefacts.Version) ([]byte, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// A broker that starts does not wait for each document of an etcd that is away.
func TestLiveWaitsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		for i := range 50 {
			name := fmt.Sprint("d", i)
			src.serve(name, document(name, "limit: 1"))
		}
		began := time.Now()
		l := Follow(slow{src}, newWorld(), slog.New(slog.DiscardHandler))
		defer l.Close()
		if took := time.Since(began); took > 2*readTime {
			t.Errorf("it took %s", took)
		}
		if len(l.Faults()) != 50 {
			t.Errorf("%d faults", len(l.Faults()))
		}
	})
}

// Documents of which each needs the one before, and the first is at fault, do
// not keep a broker busy: it goes on with what it has.
func TestLiveGivesUpOnAChain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := newSource()
		src.serve("z", document("z", "limit: 1"))
		l := Follow(src, newWorld(), slog.New(slog.DiscardHandler))
		defer l.Close()
		for i := range 50 {
			src.serve(fmt.Sprintf("d%02d", i), fmt.Sprintf(`
layers: [{name: c%d, salt: c%d, unit: viewer}]
experiments: [{name: e%d, layer: c%d, feeds: [f], state: draft, slots: [0-9], share: 10000, variants: [{name: v, weight: 10000}]}]
`, i, i, i, i-1))
		}
		time.Sleep(time.Second)
		if got := dealt(l); got != `z{"limit":1}` || len(l.Faults()) < maxPasses {
			t.Errorf("%s, %d faults", got, len(l.Faults()))
		}
	})
}

// Of a document of which one experiment does not fit any more the others go on, and
// its slots stay its own. What changes unheard is looked at again.
func TestLiveTellsOfUnfitExperiments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src, known := newSource(), newWorld("m")
		var logged strings.Builder
		src.serve("a", `
layers: [{name: l, salt: s, unit: viewer}]
experiments:
  - {name: a, layer: l, feeds: [f], state: running, slots: [1-9999], share: 10000, variants: [{name: v, weight: 10000, set: {model: m}}]}
  - {name: other, layer: l, feeds: [f], state: draft, slots: [0], share: 0, variants: [{name: w, weight: 10000, set: {limit: 7}}], forced: {"member:1": w}}
`)
		l := Follow(src, known, slog.New(slog.NewTextHandler(&logged, nil)))
		defer l.Close()
		others := func() int {
			return len(l.Current().Assign("f", &millrace.Viewer{ID: "member:2"}).Experiments)
		}
		if got := l.Faults(); len(got) > 0 || others() != 1 {
			t.Fatal(got, others())
		}
		known.setUnheard()
		time.Sleep(lookAgain + time.Second)
		if got := dealt(l); got != `other{"limit":7}` || others() != 0 || !strings.Contains(l.Faults()["a"], "no model m serves") {
			t.Errorf("%s, %v", got, l.Faults())
		}
		if !strings.Contains(logged.String(), "has a fault") || !strings.Contains(logged.String(), "document=a") {
			t.Errorf("the log says %q", logged.String())
		}
		known.setUnheard("m")
		time.Sleep(retryAfter + time.Second)
		if len(l.Faults()) > 0 {
			t.Error(l.Faults())
		}
	})
}
