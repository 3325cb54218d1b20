package coordinator_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// Two coordinators that run take each step once. One that believes to lead, and
// decides by what was so before the other's step, changes nothing.
func TestTwoCoordinatorsDecideOnce(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	before := tr.now()
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	tr.coordinate("one")
	tr.coordinate("two")
	tr.becoming(experiment.Running, 1000, func() { tr.show(10, nil) })
	tr.becoming(experiment.Running, 10_000, func() { tr.show(10, nil) })
	want := tr.decisions()
	for _, v := range []compare.Verdict{{Share: 1000, Why: "no guard"}, {Share: 10_000, Why: "no guard"}, {Pause: true, Why: "a guard"}} {
		if err := coordinator.Decide(t.Context(), "late", tr.store, trails, before, v); err != nil {
			t.Errorf("%+v: %v", v, err)
		}
	}
	if e := tr.now(); e.State != experiment.Running || e.Share != 10_000 {
		t.Errorf("it is %s with %d", e.State, e.Share)
	}
	trail, err := trails.Of("e")
	for end := time.Now().Add(time.Minute); len(trail.Decisions) < 2 && time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		trail, err = trails.Of("e") // it is noted after the step, and heard of later
	}
	if did := tr.decisions(); err != nil || len(did) != 2 || len(want) != 2 || len(trail.Decisions) != 2 {
		t.Errorf("%q, %+v, %v", did, trail.Decisions, err)
	}
}

// A coordinator that leads anew tells that a topic was made again while nobody looked,
// once, as the one before had done; and takes no step before what is left has settled.
func TestANewLeaderTellsThatEvidenceIsCut(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, strings.Replace(rampedDocument, "guards: {refused: 1, empty: 1}\n", clickedDocument, 1))
	tr.acts.id = "first"
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	reads := func(shown, did string) experiments.Trail {
		t.Helper()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			trail, err := trails.Of("e")
			if err == nil && trail.Sources.Exposures.ID == shown && trail.Sources.Outcomes.ID == did {
				return trail
			}
			if time.Since(began) > time.Minute {
				t.Fatalf("evidence is from %+v, %v", trail.Sources, err)
			}
		}
	}
	_, stop := tr.coordinate("one")
	if trail := reads("first", "first"); len(trail.Decisions) > 0 {
		t.Errorf("%+v", trail.Decisions)
	}
	stop()
	_, stop = tr.coordinate("two") // of the same topics
	tr.says("")
	stop()
	tr.log.becomes("second")
	tr.acts.id = "second"
	tr.show(120, nil)
	tr.acts.click("a", 2, time.Now())
	tr.coordinate("three")
	tr.becoming(experiment.Running, 1000, func() { tr.acts.click("a", 2, time.Now()) })
	var did []string
	var cut, step time.Time
	told := reads("second", "second")
	for began := time.Now(); len(told.Decisions) < 3 && time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		told = reads("second", "second") // the step's document may be known before its reason
	}
	for _, d := range told.Decisions {
		did = append(did, d.By+" "+d.What+" "+d.Why)
		if step = d.When; d.Cut {
			cut = d.When
		}
	}
	const found = "three found evidence of e cut kafka: topic "
	if len(did) != 3 || !strings.HasPrefix(did[0], found+"exposures was deleted") || !strings.HasPrefix(did[1], found+"clicks was deleted") || !strings.HasPrefix(did[2], "three ramped e to 1000") {
		t.Errorf("%q", did)
	}
	if cut.IsZero() || step.Sub(cut) < time.Second/2 {
		t.Errorf("evidence was cut at %s, and a step taken at %s", cut, step)
	}
}

// A leader that alone cannot read what was shown lets another lead, which ramps. Where
// nobody can, the lead goes round once and stays.
func TestABlindLeaderLetsAnotherLead(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, rampedDocument)
	tr.yields = 2 * time.Second
	other := *tr
	other.log = newShownLog()
	leads := func(name string) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			if who, ok, err := tr.cluster.Leader(t.Context()); err == nil && ok && who.Name == name {
				return
			}
			if time.Since(began) > 60*time.Second {
				t.Fatalf("%s does not lead", name)
			}
		}
	}
	tr.log.goAway(errors.New("cut off"))
	tr.coordinate("one")
	leads("one")
	_, stop := other.coordinate("two")
	leads("two")
	other.show(120, nil)
	tr.becomes(experiment.Running, 1000)
	other.log.goAway(errors.New("cut off too"))
	leads("one")
	stop()
	other.coordinate("three")
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if err == nil && trail.Looked != nil && strings.Contains(trail.Looked.Blind, "by one, which leads again after it let others lead: cut off") {
			break
		}
		if time.Since(began) > 60*time.Second {
			t.Fatalf("%+v, %v", trail.Looked, err)
		}
	}
}

// A coordinator that led, was frozen and wakes notes nothing over what the one says
// that leads now.
func TestAFormerLeaderNotesNoLook(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	former, err := tr.cluster.Lead(t.Context(), cluster.Leader{Name: "former"})
	if err != nil {
		t.Fatal(err)
	}
	if err := coordinator.NoteLook(t.Context(), former, "former", trails, tr.now()); err != nil {
		t.Fatal(err)
	}
	depose(t, tr.cluster)
	now, err := tr.cluster.Lead(t.Context(), cluster.Leader{Name: "now"})
	if err != nil {
		t.Fatal(err)
	}
	if err := coordinator.NoteLook(t.Context(), now, "now", trails, tr.now()); err != nil {
		t.Fatal(err)
	}
	if err := coordinator.NoteLook(t.Context(), former, "former", trails, tr.now()); !errors.Is(err, cluster.ErrNotLeader) {
		t.Errorf("a former leader looks: %v", err)
	}
	end := time.Now().Add(5 * time.Minute)
	for trail, err := trails.Of("e"); trail.Looked == nil || trail.Looked.By != "now"; trail, err = trails.Of("e") {
		if err != nil || time.Now().After(end) {
			t.Fatal(trail, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Notes that somebody wrote by hand, and are none, are written anew: nothing hangs
// on them, guards neither.
func TestNotesThatAreNone(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	garbage := func() error {
		return steering.Change(t.Context(), tr.cluster, nil, func(s *steering.State) error {
			s.Documents["notes"] = "garbage"
			return nil
		})
	}
	if err := garbage(); err != nil {
		t.Fatal(err)
	}
	c, _ := tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(80, func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	tr.becomes(experiment.Paused, 100)
	if _, fault := c.Leads(); fault != nil {
		t.Error(fault)
	}
	if _, _, err := coordinator.Look(t.Context(), tr.cluster); err != nil {
		t.Error(err)
	}
}
