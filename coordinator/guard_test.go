package coordinator_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/exposure"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/internal/outcome"
	"github.com/millrace/millrace/relevance/experiment"
	"github.com/millrace/millrace/relevance/experiment/compare"
)

const rampedDocument = `# a comment
layers: [{name: l, salt: s, unit: viewer}]
experiments:
  - name: e
    layer: l
    feeds: [f]
    state: running
    slots: [0-9999]
    share: 100
    variants: [{name: a, weight: 5000}, {name: b, weight: 5000, set: {limit: 3}}]
    ramp: {steps: [100, 1000, 10000], viewers: 50}
    guards: {refused: 1, empty: 1}
`

// A document of before guards that compare with nothing were refused runs on: neither is
// it paused, since viewers of one variant alone fit any weights, nor ramped, whatever
// they are shown, and it is not watched. It is steered, and not defined again.
func TestGuardsThatCompareWithNothing(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, strings.Replace(rampedDocument, "running", "draft", 1))
	old := strings.Replace(rampedDocument, "a, weight: 5000}, {name: b, weight: 5000", "a, weight: 0}, {name: b, weight: 10000", 1)
	docs := tr.store.Documents
	v, _, err := docs.Publish(t.Context(), "d", "2", []byte(old), "somebody")
	if err == nil {
		err = docs.Serve(t.Context(), v, nil, "somebody")
	}
	if err != nil {
		t.Fatal(err)
	}
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(200, func(r *exposure.Record, _ string) { // by the draw b is dealt to all
		r.Experiments[0].Variant, r.Items = "b", nil
	})
	const want = "its guards compare with nothing: b alone has viewers"
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if l := trail.Looked; err == nil && l != nil && l.Says == want && l.Blind == want && slices.ContainsFunc(l.Inputs, func(s string) bool {
			return strings.HasPrefix(s, "b: 200 viewers, 200 at this share; refused 0, empty 200")
		}) {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("%v: %+v", err, trail.Looked)
		}
	}
	if e := tr.now(); e.State != experiment.Running || e.Share != 100 || len(tr.decisions()) > 0 {
		t.Errorf("it is %s with %d: %q", e.State, e.Share, tr.decisions())
	}
	if _, err := tr.store.Define(t.Context(), "d", []byte(old+"# again\n")); err == nil || !strings.Contains(err.Error(), "experiments[0].guards: "+want+"; give the control a weight") {
		t.Errorf("defined again: %v", err)
	}
	if _, err := tr.store.Define(t.Context(), "d", []byte(old[:strings.Index(old, "    ramp:")])); err != nil {
		t.Errorf("without its guards: %v", err)
	}
}

// One that hurts is paused, with the reason, and stays so until a person resumes
// it: then the evidence begins anew.
func TestGuardsPause(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	c, _ := tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	refuse := func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	}
	began := time.Now()
	tr.show(80, refuse)
	tr.becomes(experiment.Paused, 100)
	t.Logf("paused after %s", time.Since(began))
	if did := tr.decisions(); len(did) != 1 || !strings.Contains(did[0], "coordinator one: paused e: refused of b: ") {
		t.Errorf("%q", did)
	}
	tr.show(80, refuse)
	time.Sleep(time.Second)
	if did := tr.decisions(); len(did) != 1 || alarms(c) != 1 {
		t.Errorf("%q, %d alarms", did, alarms(c))
	}
	if _, err := tr.store.Steer(t.Context(), "e", func(now experiment.Experiment) (experiment.State, int, error) {
		return experiment.Running, now.Share, nil
	}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(500 * time.Millisecond)
	tr.show(120, nil)
	tr.becomes(experiment.Running, 1000)
	if alarms(c) != 0 {
		t.Error("an alarm for what runs")
	}
	tr.show(80, refuse)
	tr.becomes(experiment.Paused, 1000)
}

// An alarm holds for as long as nobody has acted, however often a person changes what else
// stands in the document: so often that its history does not tell of the pause any more, or
// the versions that it is told by are gone. A person who started it again and paused it
// has acted, also where the history does not tell that either.
func TestAnAlarmHoldsUntilAPersonActs(t *testing.T) {
	t.Parallel()
	sibling := strings.NewReplacer("name: e", "name: f", "[0-9999]", "[5000-9999]").Replace(rampedDocument[strings.Index(rampedDocument, "  - name: e"):])
	tr := newTrial(t, strings.Replace(rampedDocument, "[0-9999]", "[0-4999]", 1)+sibling)
	c, _ := tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(80, func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	tr.becomes(experiment.Paused, 100)
	await := func(n int, when string) {
		t.Helper()
		for began := time.Now(); alarms(c) != n; time.Sleep(20 * time.Millisecond) {
			if time.Since(began) > 20*time.Second {
				t.Fatalf("%s: %d alarms, and not %d", when, alarms(c), n)
			}
		}
	}
	await(1, "it is paused")
	share := 100
	siblings := func(until func(events []ledger.Event) bool) {
		t.Helper()
		for {
			share++
			if _, err := tr.store.Steer(t.Context(), "f", func(now experiment.Experiment) (experiment.State, int, error) { return now.State, share, nil }); err != nil {
				t.Fatal(err)
			}
			events, err := tr.store.Documents.History(t.Context(), "d")
			if err != nil {
				t.Fatal(err)
			}
			if until(events) {
				time.Sleep(time.Second) // the coordinator looks at it
				return
			}
		}
	}
	tells := func(events []ledger.Event) bool {
		return slices.ContainsFunc(events, func(e ledger.Event) bool { return strings.Contains(e.Who, "paused e") })
	}
	changes := 0
	siblings(func(events []ledger.Event) bool { changes++; return changes == 34 })
	await(1, "the versions of then are gone")
	siblings(func(events []ledger.Event) bool { return !tells(events) })
	await(1, "its history does not tell of it")
	// By a person, until the history tells of that no more.
	for _, state := range []experiment.State{experiment.Running, experiment.Paused} {
		acted := time.Now()
		if _, err := tr.store.Steer(t.Context(), "e", func(now experiment.Experiment) (experiment.State, int, error) { return state, now.Share, nil }); err != nil {
			t.Fatal(err)
		}
		if state == experiment.Running {
			for tr.saying("no guard says stop", func() {}).When.Before(acted) {
				time.Sleep(20 * time.Millisecond)
			}
		}
		await(0, "a person has acted")
	}
	siblings(func(events []ledger.Event) bool {
		return !slices.ContainsFunc(events, func(e ledger.Event) bool { return strings.Contains(e.Who, "experiment e: ") })
	})
	await(0, "its history does not tell that a person has acted")
}

// What is decided and cannot be done is told where one looks for it; not so where
// nobody is to do it any more, or etcd is away.
func TestADecisionThatCannotBeDoneIsTold(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	lead, err := tr.cluster.Lead(t.Context(), cluster.Leader{Name: "one"})
	if err != nil {
		t.Fatal(err)
	}
	fails := func(v compare.Verdict, why error, within time.Duration) string {
		t.Helper()
		if err := coordinator.Fails(t.Context(), lead, "one", trails, tr.now(), v, why); err != nil {
			t.Fatal(err)
		}
		for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // until it is heard of
			if trail, err := trails.Of("e"); err == nil && trail.Looked != nil {
				return trail.Unwatched(nil, trail.Looked.When, trail.Looked.When)
			}
		}
		return ""
	}
	pause := compare.Verdict{Pause: true, Why: "refused of b"}
	for _, why := range []error{cluster.ErrNotLeader, cluster.ErrLost, fmt.Errorf("a call: %w", cluster.ErrAway)} {
		if says := fails(pause, why, 500*time.Millisecond); says != "" {
			t.Errorf("%v: %s", why, says)
		}
	}
	if says := fails(pause, errors.New("no room"), time.Minute); !strings.HasPrefix(says, "it is to be paused (refused of b), and cannot: no room") {
		t.Error(says)
	}
}

// A pause needs no text of etcd: a coordinator knows what it watches.
func TestAPauseOfWhatEtcdHasLost(t *testing.T) {
	t.Parallel()
	etcd, err := minicluster.StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	tr := newTrialAt(t, etcd.Addr(), rampedDocument)
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Addr()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = raw.Close() })
	tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	lost, err := raw.Delete(t.Context(), "/millrace/test/bodies/experiments/d/", clientv3.WithPrefix())
	if err != nil || lost.Deleted == 0 {
		t.Fatalf("no text was there: %v", err)
	}
	tr.show(80, func(r *exposure.Record, variant string) {
		if variant == "b" {
			r.Refusal, r.Items = "UNAVAILABLE", nil
		}
	})
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		st, err := tr.store.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d, err := st.Find("e"); err == nil && d.Experiment.State == experiment.Paused {
			return
		}
		if time.Since(began) > time.Minute {
			t.Fatal("it is not paused")
		}
	}
}

// Viewers whom the hash does not deal a variant are no evidence for or against it,
// however many of them somebody writes to the topic.
func TestGuardsJudgeByTheHash(t *testing.T) {
	tr := newTrial(t, rampedDocument)
	forged := func(r *exposure.Record, variant string) {
		r.Items, r.Experiments[0].Variant = nil, map[string]string{"a": "b", "b": "a"}[variant]
	}
	tr.show(2000, func(r *exposure.Record, variant string) {
		if forged(r, variant); variant == "b" { // as if of a, that is: it looks better, and b worse
			r.Items = []exposure.Item{{Place: 1, Entity: "x", Team: -1}}
		}
	})
	tr.coordinate("one")
	tr.show(30, nil)
	trails, err := experiments.OpenTrails(t.Context(), tr.cluster)
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		trail, err := trails.Of("e")
		if err != nil {
			t.Fatal(err)
		}
		if trail.Looked != nil && strings.Contains(strings.Join(trail.Looked.Inputs, "\n"), "2000 answers are of viewers whom the hash deals another variant") {
			if !strings.Contains(strings.Join(trail.Looked.Inputs, "\n"), "a: 15 viewers") {
				t.Errorf("%q", trail.Looked.Inputs)
			}
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("the forged answers are not left out: %+v, %q", trail.Looked, tr.decisions())
		}
	}
	if did := tr.decisions(); len(did) > 0 {
		t.Errorf("%q", did)
	}
}

// Who is not guarded is left alone, and what people do stays.
func TestGuardsLeaveOthersAlone(t *testing.T) {
	tr := newTrial(t, rampedDocument[:strings.Index(rampedDocument, "    ramp:")])
	tr.coordinate("one")
	time.Sleep(500 * time.Millisecond)
	tr.show(200, func(r *exposure.Record, _ string) { r.Items = nil })
	time.Sleep(time.Second)
	if e := tr.now(); e.State != experiment.Running || e.Share != 100 || len(tr.decisions()) > 0 {
		t.Errorf("%s with %d: %q", e.State, e.Share, tr.decisions())
	}
}

// A variant whose viewers do less of what they should is paused for that, and
// what is done is read anew by whoever leads next.
func TestGuardsPauseForOutcomes(t *testing.T) {
	tr := newTrial(t, strings.NewReplacer("guards: {refused: 1, empty: 1}", "guards: {fewer: {click: 0.9}}\n    outcomes: {topic: clicks, actions: [click], window: 90m}", "viewers: 50", "viewers: 1000").Replace(rampedDocument))
	var all []outcome.Act // of every viewer of a, and of half of those of b
	tr.show(600, func(r *exposure.Record, variant string) {
		if variant == "a" || tr.viewers%4 == 1 {
			all = append(all, outcome.Act{Action: "click", Experiments: r.Experiments})
		}
	})
	tr.acts.all = all[:20]
	_, stop := tr.coordinate("one")
	time.Sleep(2 * time.Second)
	if e := tr.now(); e.State != experiment.Running {
		t.Fatalf("paused by 20 clicks: %q", tr.decisions())
	}
	stop()
	tr.acts.all = all
	tr.coordinate("two")
	tr.becomes(experiment.Paused, 100)
	if did := tr.decisions(); len(did) != 1 || !strings.Contains(did[0], "coordinator two: paused e: did click of b: 0.5") {
		t.Errorf("%q", did)
	}
	if len(tr.acts.asked) != 2 || tr.acts.asked[1].Topic != "clicks" || tr.acts.asked[1].For() != 90*time.Minute || tr.acts.asked[1].Field() != "answer_id" {
		t.Errorf("%+v", tr.acts.asked)
	}
}

const clickedDocument = "guards: {fewer: {click: 0.5}}\n    outcomes: {topic: clicks, actions: [click]}\n"
