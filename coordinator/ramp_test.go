package coordinator_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

// An experiment that does well is ramped to its end, a step at a time, each for
// viewers of its own; whoever leads goes on where the one before was.
func TestRampsByItself(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	_, stop := tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(98, nil)
	time.Sleep(time.Second)
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("ramped to %d by 49 viewers of each variant", e.Share)
	}
	tr.show(10, nil)
	tr.becomes(experiment.Running, 1000)
	time.Sleep(time.Second)
	if e := tr.now(); e.Share != 1000 {
		t.Fatal("the viewers of one step are those of the next")
	}
	stop()
	tr.show(120, nil) // while nobody leads
	tr.coordinate("two")
	tr.becomes(experiment.Running, 10_000)
	did := tr.decisions()
	if len(did) != 2 || !strings.Contains(did[0], "coordinator one: ramped e to 1000 of 10,000: no guard after") || !strings.Contains(did[1], "coordinator two: ramped e to 10000") {
		t.Errorf("%q", did)
	}
	st, err := tr.store.Read(t.Context())
	if err != nil || !strings.HasPrefix(string(st.Texts["d"]), "# a comment\n") {
		t.Errorf("%v\n%s", err, st.Texts["d"])
	}
}

// A step that was decided by a definition that a person has replaced since is not taken,
// though the share is the same; a pause is.
func TestNoStepByAFormerDefinition(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, rampedDocument)
	judged := tr.now()
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	decide := func(v compare.Verdict) {
		t.Helper()
		if err := coordinator.Decide(t.Context(), "one", tr.store, trails, judged, v); err != nil {
			t.Fatal(err)
		}
	}
	for _, other := range []string{
		strings.Replace(rampedDocument, "viewers: 50", "viewers: 5000", 1),
		strings.Replace(rampedDocument, "empty: 1", "empty: 2", 1),
	} {
		if _, err := tr.store.Define(t.Context(), "d", []byte(other)); err != nil {
			t.Fatal(err)
		}
		if decide(compare.Verdict{Share: 1000, Why: "no guard"}); tr.now().Share != 100 {
			t.Fatalf("a step by what was judged before\n%s", other)
		}
	}
	if decide(compare.Verdict{Pause: true, Why: "a guard"}); tr.now().State != experiment.Paused {
		t.Error("it hurts, and runs on")
	}
}

// Why a ramp is where it is can be read at any time: what it waits for, and of
// each step by what it was decided. Who holds it keeps it from its next step, and
// guards pause it all the same.
func TestRampsSayWhyAndAreHeld(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	until := func(what string, is func(experiments.Trail) bool) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			trail, err := trails.Of("e")
			if err == nil && is(trail) {
				return
			}
			if time.Since(began) > 30*time.Second {
				t.Fatalf("not %s: %+v, %v", what, trail, err)
			}
		}
	}
	if err := trails.Hold(t.Context(), "e", experiments.Hold{When: time.Now(), By: "ann@desk", Why: "a sale"}); err != nil {
		t.Fatal(err)
	}
	tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(120, nil)
	until("held", func(x experiments.Trail) bool {
		return x.Looked != nil && strings.Contains(x.Looked.Says, "ann@desk holds its next step") && len(x.Looked.Inputs) > 2
	})
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("it is held, and ramped to %d", e.Share)
	}
	if err := trails.Hold(t.Context(), "e", experiments.Hold{By: "bob"}); err == nil {
		t.Error("held twice")
	}
	if err := trails.Resume(t.Context(), "e", "ann@desk", time.Now()); err != nil {
		t.Fatal(err)
	}
	tr.becomes(experiment.Running, 1000)
	until("ramped", func(x experiments.Trail) bool {
		return len(x.Decisions) == 3 && x.Hold == nil && x.Decisions[1].What == "resumed e" && strings.Contains(x.Decisions[2].What, "ramped e to 1000") && strings.Contains(x.Decisions[2].Why, "60 of a") && strings.Contains(strings.Join(x.Decisions[2].Inputs, "\n"), "a: 60 viewers, 60 at this share")
	})
	if err := trails.Hold(t.Context(), "e", experiments.Hold{By: "ann@desk"}); err != nil {
		t.Fatal(err)
	}
	tr.show(80, func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	tr.becomes(experiment.Paused, 1000)
	until("paused", func(x experiments.Trail) bool {
		return len(x.Decisions) == 5 && strings.Contains(x.Decisions[4].Why, "refused of b") && strings.Contains(strings.Join(x.Decisions[4].Inputs, "\n"), "refused of b: ")
	})
}

// A ramp waits for what else it is told to, says so, and goes on when that is over.
// Guards pause meanwhile.
func TestRampsWait(t *testing.T) {
	for _, over := range []bool{true, false} {
		tr := newTrial(t, rampedDocument)
		trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
		if err != nil {
			t.Fatal(err)
		}
		tr.leans.waits = "variant b of e is not applied"
		tr.show(120, nil)
		tr.coordinate("one")
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			if trail, err := trails.Of("e"); err == nil && trail.Looked != nil && trail.Looked.Says == "variant b of e is not applied" {
				break
			}
			if time.Since(began) > 30*time.Second {
				t.Fatal("it does not say what it waits for")
			}
		}
		if e := tr.now(); e.Share != 100 {
			t.Fatalf("it waits, and is ramped to %d", e.Share)
		}
		if over {
			tr.leans.become(func() { tr.leans.waits = "" })
			tr.show(120, nil)
			tr.becomes(experiment.Running, 1000)
			continue
		}
		tr.show(200, func(r *exposure.Record, variant string) {
			if variant == "b" {
				r.Refusal, r.Items = "UNAVAILABLE", nil
			}
		})
		tr.becomes(experiment.Paused, 100)
	}
}

// A ramp takes no step while it is not known that all that was shown has been read,
// nor soon after, when what brokers could not write is still coming; it says so, and
// how old its evidence is. Guards pause by what has come.
func TestRampsWaitForTheEvidence(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	says := func(what string) (l experiments.Look) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
			trail, err := trails.Of("e")
			if err == nil && trail.Looked != nil && strings.Contains(trail.Looked.Says+trail.Looked.Blind, what) {
				return *trail.Looked
			}
			if time.Since(began) > 60*time.Second {
				t.Fatalf("it does not say %q: %+v, %v", what, trail.Looked, err)
			}
		}
	}
	tr.log.goAway(errors.New("the log is frozen"))
	tr.show(120, nil)
	c, _ := tr.coordinate("one")
	says("no step is taken without: the log is frozen")
	if l := says("s by one, which leads and lets another lead after 30s: the log is frozen"); time.Since(l.Whole) < 10*time.Second || l.Newest.IsZero() || l.Share != 100 {
		t.Errorf("%+v", l)
	}
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("ramped to %d by a log that is frozen", e.Share)
	}
	if age := gaugeOf(c, "evidence_seconds"); age < 10 {
		t.Errorf("evidence is %v s old", age)
	}
	tr.log.goAway(nil)
	back := time.Now()
	tr.becomes(experiment.Running, 1000)
	if time.Since(back) < time.Second {
		t.Error("ramped before what waited could come")
	}
	if age := gaugeOf(c, "evidence_seconds"); age > 10 {
		t.Errorf("evidence is still %v s old", age)
	}
	cut := exposure.Topic{Name: "exposures"}.Anew()
	tr.log.becomes("second")
	tr.becoming(experiment.Running, 10_000, func() { tr.show(20, nil) })
	var noted, ramped time.Time
	for began := time.Now(); ramped.IsZero() && time.Since(began) < time.Minute; time.Sleep(20 * time.Millisecond) {
		trail, _ := trails.Of("e")
		for _, d := range trail.Decisions {
			switch {
			case d.Cut && d.What == "found evidence of e cut" && d.Why == cut.Error():
				noted = d.When
			case d.What == "ramped e to 10000 of 10,000":
				ramped = d.When
			}
		}
	}
	if noted.IsZero() || ramped.Sub(noted) < time.Second/2 {
		t.Errorf("evidence was cut at %s, and a step taken at %s", noted, ramped)
	}
	tr.log.goAway(errors.New("the log is frozen"))
	tr.show(200, func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	tr.becomes(experiment.Paused, 10_000)
}

// While a guard on what viewers do can count nothing, a ramp waits and says why; and
// it takes no step before somebody has done it with what was shown at the one before,
// however alive the log of outcomes is.
func TestRampsWaitForOutcomes(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, strings.Replace(rampedDocument, "guards: {refused: 1, empty: 1}\n", clickedDocument, 1))
	change := func(by func()) {
		tr.acts.mu.Lock()
		defer tr.acts.mu.Unlock()
		by()
	}
	change(func() { tr.acts.lacks = errors.New("topic clicks has no action click") })
	tr.show(120, nil)
	c, _ := tr.coordinate("one")
	tr.says("its guards on what viewers do can count nothing: topic clicks has no action click")
	change(func() { tr.acts.lacks = nil })
	tr.says("its guards on what viewers do wait for outcomes: none that belongs to what was shown has come to clicks since ")
	change(func() {
		tr.acts.other, tr.acts.told = millrace.TimeOf(time.Now()), outcome.Report{Nothing: 389, Twice: 389}
	})
	l := tr.says("its guard")
	for ; l.Outcomes == nil || l.Outcomes.Told.Nothing != 389 || strings.Contains(l.Says, "the log is away"); l = tr.says("its guard") {
		time.Sleep(20 * time.Millisecond)
	}
	if !strings.Contains(l.Says, "none that belongs to what was shown has come to clicks since ") {
		t.Errorf("by outcomes that belong to nothing it says %q", l.Says)
	}
	tr.acts.click("a", 0, time.Now().Add(-time.Hour))
	if l := tr.says("its guard on fewer click waits for one: no viewer has done that with what was shown since "); l.Blind != "" || l.Outcomes == nil || l.Outcomes.Topic != "clicks" || l.Outcomes.Newest.IsZero() || l.Outcomes.Whole.IsZero() {
		t.Errorf("%q, %+v", l.Blind, l.Outcomes)
	}
	// However many belonged, of the newest most name wrong answers.
	change(func() {
		tr.acts.told = outcome.Report{Attributed: 1000, Elsewhere: 389}
		tr.acts.came = []coordinator.Came{{At: millrace.TimeOf(time.Now().Add(-time.Hour)), Right: 1000}, {At: millrace.TimeOf(time.Now().Add(-2 * time.Second)), Wrong: 389}}
	})
	broken := "of clicks 389 name the answer of another viewer, or one without their record, and "
	if l := tr.says("its guards on what viewers do see almost nothing: " + broken); !strings.HasPrefix(l.Blind, "guards on what viewers do are blind: "+broken) || l.Outcomes.Told.Elsewhere != 389 || tr.now().State != experiment.Running {
		t.Errorf("%+v", l)
	}
	tr.acts.click("a", 2, time.Now())
	time.Sleep(time.Second)
	if e := tr.now(); e.Share != 100 {
		t.Errorf("ramped to %d while outcomes are broken", e.Share)
	}
	// Nobody has to do anything once they are whole.
	change(func() {
		tr.acts.came = append(tr.acts.came, coordinator.Came{At: millrace.TimeOf(time.Now()), Right: 10})
	})
	tr.becomes(experiment.Running, 1000)
	tr.saying("its guards on what viewers do wait for outcomes: none that belongs to what was shown has come to clicks since ", func() { tr.show(4, nil) })
	if gaugeOf(c, "outcomes_seconds") < 0 || gaugeOf(c, "outcomes_newest_seconds") <= 0 {
		t.Error("no metric of outcomes")
	}
	tr.acts.click("b", 3, time.Now())
	tr.becomes(experiment.Running, 10_000)
}

// Only time counts for a step in which a coordinator knew all that was shown; one
// that leads next goes on from what the one before has counted.
func TestOnlyWatchedTimeCounts(t *testing.T) {
	t.Parallel()
	const least = 7 * time.Second
	tr := newTrial(t, strings.Replace(rampedDocument, "viewers: 50", "viewers: 5, least: 7s", 1))
	tr.log.goAway(errors.New("the log is frozen"))
	_, stop := tr.coordinate("one")
	tr.show(100, nil)
	time.Sleep(least) // it knows nothing
	tr.log.goAway(nil)
	back, before := time.Now(), experiments.Look{}
	for began := time.Now(); before.Stay.Seconds == 0; tr.show(2, nil) {
		before = tr.says("is to stay at 1% for 7s, and has for ")
		if time.Sleep(100 * time.Millisecond); time.Since(began) > time.Minute {
			t.Fatalf("it counts no time: %+v", before)
		}
	}
	stop()
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("ramped to %d in time that nobody watched", e.Share)
	}
	time.Sleep(least - time.Duration(before.Stay.Seconds*float64(time.Second))) // nobody looks
	gone := time.Since(back)
	tr.coordinate("two")
	now := experiments.Look{}
	for began := time.Now(); now.By != "two"; tr.show(2, nil) {
		now = tr.says("")
		if time.Sleep(100 * time.Millisecond); time.Since(began) > time.Minute {
			t.Fatalf("nobody looks: %+v", now)
		}
	}
	if now.Stay.Seconds < before.Stay.Seconds || !now.Stay.Since.Equal(before.Stay.Since) {
		t.Errorf("%+v, after %+v", now.Stay, before.Stay)
	}
	tr.becoming(experiment.Running, 1000, func() { tr.show(2, nil) })
	if all := time.Since(back); all < gone+least-before.Stay.For()-time.Second {
		t.Errorf("ramped %s after the log was back; it was watched for %s of it, and not for %s", all, all-gone+before.Stay.For(), least)
	}
}

// Time in which a variant is not shown as it is now does not count for a step.
func TestOnlyTimeOfAllVariantsCounts(t *testing.T) {
	t.Parallel()
	const least = 5 * time.Second
	tr := newTrial(t, strings.Replace(rampedDocument, "viewers: 50", "viewers: 5, least: 5s", 1))
	tr.coordinate("one")
	by := func(version, of string) func(*exposure.Record, string) {
		return func(r *exposure.Record, variant string) {
			if r.Models = []exposure.Model{{Name: "home", Version: version}}; !strings.Contains(of, variant) {
				r.Experiments = nil
			}
		}
	}
	tr.show(8, by("1", "b"))
	time.Sleep(least)
	if l := tr.says("is to stay at 1% for 5s, and has for 0s"); !strings.Contains(strings.Join(l.Inputs, "\n"), "time at this share stands still: a has not been shown at it") {
		t.Errorf("%q", l.Inputs)
	}
	tr.leans.become(func() {
		tr.leans.basis = compare.Basis{Since: time.Now().UTC().Truncate(time.Millisecond), Why: "model home came to version 2", Models: map[string]string{"home": "2"}}
	})
	time.Sleep(500 * time.Millisecond)
	tr.show(40, by("1", "ab")) // by a broker that has not heard of it
	time.Sleep(least)
	if e := tr.now(); e.Share != 100 {
		t.Fatalf("ramped to %d by a version that is gone", e.Share)
	}
	began := time.Now()
	tr.becoming(experiment.Running, 1000, func() { tr.show(4, by("2", "ab")) })
	if took := time.Since(began); took < least-time.Second {
		t.Errorf("ramped %s after what ranks now was shown", took)
	}
}

// A ramp waits while a broker that is cut off from etcd goes on by the definition of
// before, and says which it is.
func TestARampWaitsForABrokerThatIsCutOff(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, rampedDocument)
	old := func(r *exposure.Record, _ string) {
		r.Time = millrace.TimeOf(time.Now().Add(compare.TakenOverWithin + time.Second)) // not to wait for it
		r.Broker, r.Experiments[0].Checksum = "cut-off", "of-before"
	}
	tr.show(1, old)
	tr.show(120, nil)
	tr.coordinate("one")
	tr.says(`1 by broker "cut-off"`)
	if e := tr.now(); e.Share != 100 {
		t.Errorf("ramped to %d", e.Share)
	}
}
