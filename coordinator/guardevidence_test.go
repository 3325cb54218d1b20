package coordinator_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// What becomes of another experiment of its document, by a person or by a
// coordinator, begins neither a step nor the evidence of an experiment anew; what
// becomes of itself does.
func TestSiblingsBeginNothingAnew(t *testing.T) {
	sibling := strings.NewReplacer("name: e", "name: f", "[0-9999]", "[5000-9999]").Replace(rampedDocument[strings.Index(rampedDocument, "  - name: e"):])
	tr := newTrial(t, strings.Replace(rampedDocument, "[0-9999]", "[0-4999]", 1)+sibling)
	tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(80, nil)
	steer := func(who, name string, share int) {
		t.Helper()
		store := experiments.Store{Documents: tr.store.Documents, Known: tr.store.Known, Who: who}
		if _, err := store.Steer(t.Context(), name, func(now experiment.Experiment) (experiment.State, int, error) {
			return now.State, share, nil
		}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond) // the coordinator looks at it
	}
	steer("somebody@somewhere", "f", 200)
	steer("coordinator two: ramped f to 1000 of 10,000: no guard", "f", 1000)
	tr.show(30, nil)
	tr.becomes(experiment.Running, 1000)
	if did := tr.decisions(); !strings.Contains(did[len(did)-1], "55 of a, 55 of b") {
		t.Errorf("%q", did)
	}
	steer("somebody@somewhere", "e", 1500)
	tr.show(40, nil)
	steer("coordinator two: ramped e to 2000 of 10,000: no guard", "e", 2000)
	tr.show(80, nil)
	time.Sleep(time.Second)
	if e := tr.now(); e.Share != 2000 {
		t.Errorf("the viewers of its own steps are those of the next: %d", e.Share)
	}
	tr.show(30, nil)
	tr.becomes(experiment.Running, 10_000)
}

// Coordinators change a document so often that its history tells of no person any more.
// Whoever leads next knows since when evidence counts all the same: what was shown
// before a person's change pauses nothing, and no step is taken by viewers of the one
// before; nor where the last look still told since when an earlier share was what it was.
func TestALongHistoryBeginsNoEvidenceEarlier(t *testing.T) {
	t.Parallel()
	t.Run("noted", func(t *testing.T) { t.Parallel(); testALongHistory(t, false) })
	t.Run("noted of an earlier share", func(t *testing.T) { t.Parallel(); testALongHistory(t, true) })
}

func testALongHistory(t *testing.T, earlier bool) {
	t.Helper()
	began := millrace.TimeOf(time.Now()).Std().UTC()
	sibling := strings.NewReplacer("name: e", "name: f", "[0-9999]", "[5000-9999]").Replace(rampedDocument[strings.Index(rampedDocument, "  - name: e"):])
	tr := newTrial(t, strings.Replace(rampedDocument, "[0-9999]", "[0-4999]", 1)+sibling)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	tr.show(200, func(r *exposure.Record, variant string) {
		if r.Time -= 3_600_000; variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	tr.show(120, nil)
	_, stop := tr.coordinate("one")
	tr.becomes(experiment.Running, 1000)
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if l := trail.Looked; err == nil && l != nil && l.Share == 1000 && !trail.SteppedSince(l.Stay.Since) {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%+v, %v", trail.Looked, err)
		}
	}
	stop()
	if earlier {
		docs, err := documents.Watch(t.Context(), tr.cluster, experiments.TrailsKind)
		if err != nil {
			t.Fatal(err)
		}
		if err := docs.Change(t.Context(), "e", func(body string) (string, error) {
			var trail experiments.Trail
			err := json.Unmarshal([]byte(body), &trail)
			trail.Looked.Stay.Since = began
			next, fault := json.Marshal(trail)
			return string(next), errors.Join(err, fault)
		}); err != nil {
			t.Fatal(err)
		}
	}
	tr.show(98, nil)
	store := experiments.Store{Documents: tr.store.Documents, Known: tr.store.Known}
	for i := range 60 {
		share := 200 + i
		store.Who = fmt.Sprintf("coordinator one: ramped f to %d of 10,000: no guard", share)
		if _, err := store.Steer(t.Context(), "f", func(now experiment.Experiment) (experiment.State, int, error) {
			return now.State, share, nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	events, err := store.Documents.History(t.Context(), "d")
	if err != nil || slices.ContainsFunc(events, func(e ledger.Event) bool {
		return e.What != ledger.Dropped && !strings.HasPrefix(e.Who, "coordinator one: ramped f")
	}) {
		t.Fatalf("%v, the history begins with %+v", err, events[0])
	}
	tr.coordinate("two")
	time.Sleep(3 * time.Second)
	if e := tr.now(); e.State != experiment.Running || e.Share != 1000 {
		t.Fatalf("%s with %d, by what was shown before", e.State, e.Share)
	}
	if tr.show(20, nil); earlier { // those of before the oldest change that is kept are not known to be fresh
		tr.show(100, nil)
	}
	tr.becomes(experiment.Running, 10_000)
}

// When a feed or a model is another, evidence begins anew: what was shown before, or is
// still shown by who has not heard of it, pauses nothing and ramps nothing, whoever
// leads; and the time of the step begins anew.
func TestEvidenceIsOfWhatRanksNow(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	former := func(r *exposure.Record, variant string) {
		r.FeedVersion = 1
		r.Models = []exposure.Model{{Name: "m", Version: "1"}}
	}
	hurt := func(r *exposure.Record, variant string) {
		if former(r, variant); variant == "b" {
			r.Items = nil
		}
	}
	now := func(r *exposure.Record, _ string) {
		r.FeedVersion = 3
		r.Models = []exposure.Model{{Name: "m", Version: "2"}}
	}
	_, stop := tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(10, hurt)
	time.Sleep(500 * time.Millisecond)
	tr.leans.become(func() {
		tr.leans.basis = compare.Basis{Since: time.Now().UTC().Truncate(time.Millisecond), Why: "feed f came to its version 3", Feeds: map[string][]int64{"f": {3, 2}}, Models: map[string]string{"m": "2"}}
	})
	time.Sleep(500 * time.Millisecond)
	tr.show(300, hurt) // by a broker that has not heard of it
	tr.show(98, now)
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if err == nil && trail.Looked != nil && strings.Contains(strings.Join(trail.Looked.Inputs, " "), "a: 49 viewers, 49 at this share") {
			if trail.Looked.Anew != "feed f came to its version 3" || !trail.Looked.Since.Equal(tr.leans.basis.Since) {
				t.Errorf("%+v", trail.Looked)
			}
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%+v, %v", trail.Looked, err)
		}
	}
	if e := tr.now(); e.State != experiment.Running || e.Share != 100 {
		t.Fatalf("%s with %d, by what was shown before", e.State, e.Share)
	}
	stop()
	tr.coordinate("two")
	time.Sleep(time.Second)
	if e := tr.now(); e.State != experiment.Running || e.Share != 100 {
		t.Fatalf("%s with %d, by what was shown before", e.State, e.Share)
	}
	tr.show(10, now)
	tr.becomes(experiment.Running, 1000)
}

// Etcd goes back to an older version of a model while brokers still rank by the newer
// one: what they show of the variant that ranks by it is no evidence, and what they show
// of the other is. That is no reason to pause: viewers are dealt as before. It is told
// until the versions are the same again.
func TestAModelThatWentBackPausesNothing(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	by := func(version string) func(*exposure.Record, string) {
		return func(r *exposure.Record, variant string) {
			if variant == "b" {
				r.Models = []exposure.Model{{Name: "rate", Version: version}}
			}
		}
	}
	tr.leans.become(func() {
		tr.leans.basis = compare.Basis{Since: time.Now().UTC().Truncate(time.Millisecond), Why: "model rate came to version 4", Models: map[string]string{"rate": "4"}}
	})
	tr.coordinate("one")
	tr.show(40, by("4"))
	tr.says("viewers of each variant are to see something")
	tr.leans.become(func() { // its history is that of the backup
		tr.leans.basis = compare.Basis{Models: map[string]string{"rate": "1"}}
	})
	time.Sleep(500 * time.Millisecond)
	tr.show(300, by("4"))
	l := tr.says("guards of rates are blind: answers of b are no evidence")
	if l.Blind != l.Says {
		t.Errorf("%+v", l)
	}
	tr.show(4000, by("1"))
	tr.becomes(experiment.Running, 1000)
}

// A coordinator keeps no more units than it has room for, and does not say that it
// watches what it has none for: no step is taken by a part of the evidence.
func TestUnitsBeyondTheRoomAreNotWatched(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	tr.keeping = 50
	c, stop := tr.coordinate("one")
	tr.show(120, nil)
	const want = "guards are blind to new viewers: there is no room for more, by 70 answers and 0 acts, of 5000000 of an experiment and 50 of all experiments with guards; "
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if err == nil && trail.Looked != nil && strings.HasPrefix(trail.Looked.Blind, want) && strings.HasPrefix(trail.Looked.Says, want) {
			break
		}
		if time.Since(began) > 60*time.Second {
			t.Fatalf("it is not blind: %+v, %v", trail.Looked, err)
		}
	}
	if n, most := gaugeOf(c, "coordinator_units\""), gaugeOf(c, "coordinator_units_most"); n != 50 || most != 50 {
		t.Errorf("%v units of %v are kept", n, most)
	}
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("ramped to %d by a part of the evidence", e.Share)
	}
	stop()
	tr.keeping = 120
	tr.coordinate("two")
	tr.becomes(experiment.Running, 1000)
}

// Where there is little memory there is room for fewer units.
func TestUnitsFitTheMemory(t *testing.T) {
	for bytes, want := range map[int64]int{0: 10_000_000, 512 << 20: 1_193_046, 1 << 30: 2_386_092, 64 << 30: 10_000_000} {
		if got := coordinator.UnitsIn(bytes); got != want {
			t.Errorf("of %d bytes %d units, want %d", bytes, got, want)
		}
	}
}

// What was noted of an experiment and cannot be read is begun anew, and its guards
// go on; its ramp waits for a person.
func TestGuardsBeginTrailsAnew(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	docs, err := documents.Watch(t.Context(), tr.cluster, "decisions")
	if err != nil {
		t.Fatal(err)
	}
	if err := docs.Change(t.Context(), "e", func(string) (string, error) { return "garbage", nil }); err != nil {
		t.Fatal(err)
	}
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	tr.coordinate("one")
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if err == nil && trail.Looked != nil && trail.Hold != nil {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("it stays as it is: %+v, %v", trail, err)
		}
	}
	if err := trails.Resume(t.Context(), "e", "ann", time.Now()); err != nil {
		t.Fatal(err)
	}
	tr.show(120, nil)
	tr.becomes(experiment.Running, 1000)
}
