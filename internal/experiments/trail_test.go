package experiments_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/relevance/experiment"
)

// A trail that cannot be read may have had a veto in it: whatever changes it begins it
// anew, held, until a person takes that back or holds it themselves.
func TestTrailsThatCannotBeRead(t *testing.T) {
	cl := client(t)
	docs, err := documents.Watch(t.Context(), cl, "decisions")
	if err != nil {
		t.Fatal(err)
	}
	trails, err := experiments.OpenTrails(t.Context(), cl)
	if err != nil {
		t.Fatal(err)
	}
	becomes := func(what string, is func(experiments.Trail, error) bool) (trail experiments.Trail) {
		t.Helper()
		for trail, err = trails.Of("e"); !is(trail, err); trail, err = trails.Of("e") {
			if t.Context().Err() != nil {
				t.Fatalf("it does not become %s: %+v, %v", what, trail, err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		return trail
	}
	garbage := func() {
		t.Helper()
		if err := docs.Change(t.Context(), "e", func(string) (string, error) { return `{"hold":`, nil }); err != nil {
			t.Fatal(err)
		}
		trail := becomes("unreadable", func(_ experiments.Trail, err error) bool { return err != nil })
		if says := trail.Unwatched(err, time.Time{}, time.Now()); trail.Hold == nil || time.Since(trail.Hold.When) > time.Hour || !strings.Contains(says, "decisions/e") || !strings.Contains(says, "millrace experiment hold") {
			t.Errorf("%+v, %v: %s", trail, err, says)
		}
	}
	begun := func(trail experiments.Trail, err error) bool {
		return err == nil && trail.Hold != nil && len(trail.Decisions) > 0 && trail.Decisions[0].What == "was begun anew for e"
	}
	garbage()
	if err := docs.Change(t.Context(), "e", trails.Ramps("e", experiments.Decision{}).By); !errors.Is(err, experiments.ErrHeld) {
		t.Errorf("it is ramped: %v", err)
	}
	if err := docs.Change(t.Context(), "e", trails.Pauses("e", experiments.Decision{What: "paused e"}).By); err != nil {
		t.Errorf("it keeps a pause off: %v", err)
	}
	if trail := becomes("held, and paused", begun); len(trail.Decisions) != 2 || trail.Decisions[1].What != "paused e" {
		t.Errorf("%+v", trail)
	}
	garbage()
	if err := trails.Look(t.Context(), nil, "e", experiments.Look{When: time.Now(), By: "c"}); err != nil {
		t.Error(err)
	}
	becomes("looked at, and held", func(trail experiments.Trail, err error) bool { return begun(trail, err) && trail.Looked != nil })
	if err := trails.Hold(t.Context(), "e", experiments.Hold{When: time.Now(), By: "ann"}); err != nil {
		t.Error(err)
	}
	if err := trails.Hold(t.Context(), "e", experiments.Hold{When: time.Now(), By: "bob"}); err == nil {
		t.Error("it is held twice")
	}
	garbage()
	if err := trails.Resume(t.Context(), "e", "ann", time.Now()); err != nil {
		t.Fatal(err)
	}
	becomes("free", func(trail experiments.Trail, err error) bool { return err == nil && trail.Hold == nil })
}

// A look is due LooksEvery after the last one, or after the experiment became running:
// it was not to be looked at before.
func TestALookIsDueFromWhenItRuns(t *testing.T) {
	now := time.Now()
	ago := func(seconds int) time.Time { return now.Add(-time.Duration(seconds) * time.Second) }
	for _, c := range []struct {
		looked, runs int // seconds ago
		blind, want  string
	}{
		{55, 1, "", ""}, {55, 1, "blind", ""}, {0, 1, "blind", "blind"}, {0, 1, "", ""}, {25, 3600, "", ""},
		{55, 31, "", "no coordinator has looked at it for 31s: does one lead"}, {55, 3600, "blind", "no coordinator has looked at it for 55s: does one lead"},
		{-1, 1, "", ""}, {-1, 31, "", "no coordinator has looked at it: is one running"},
	} {
		trail := experiments.Trail{Looked: &experiments.Look{When: ago(c.looked), Blind: c.blind}}
		if c.looked < 0 {
			trail.Looked = nil
		}
		if says := trail.Unwatched(nil, ago(c.runs), now); (says == "") != (c.want == "") || !strings.HasPrefix(says, c.want) {
			t.Errorf("%+v: %q", c, says)
		}
	}
}

// What others write stands in its line, steers no terminal, and is refused where a
// person writes it by a command.
func TestTrailsStandInLines(t *testing.T) {
	cl := client(t)
	docs, err := documents.Watch(t.Context(), cl, "decisions")
	if err != nil {
		t.Fatal(err)
	}
	trails, err := experiments.OpenTrails(t.Context(), cl)
	if err != nil {
		t.Fatal(err)
	}
	const evil = "x\x1b[2J\nWHEN forged"
	if err := trails.Hold(t.Context(), "e", experiments.Hold{When: time.Now(), By: "ann", Why: evil}); err == nil || !strings.Contains(err.Error(), "why: ") {
		t.Errorf("such a reason is taken: %v", err)
	}
	all := experiments.Trail{
		Looked:    &experiments.Look{By: evil, Says: evil, Blind: evil, Inputs: []string{evil}},
		Hold:      &experiments.Hold{By: evil, Why: evil},
		Decisions: []experiments.Decision{{By: evil, What: evil, Why: evil, Inputs: []string{evil}}},
	}
	if err := docs.Change(t.Context(), "e", func(string) (string, error) {
		text, err := json.Marshal(all)
		return string(text), err
	}); err != nil {
		t.Fatal(err)
	}
	var trail experiments.Trail
	for trail.Hold == nil {
		if trail, err = trails.Of("e"); err != nil || t.Context().Err() != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Millisecond)
	}
	l, h, d := trail.Looked, trail.Hold, trail.Decisions[0]
	for i, s := range []string{l.By, l.Says, l.Blind, l.Inputs[0], h.By, h.Why, d.By, d.What, d.Why, d.Inputs[0]} {
		if s != `x\u001b[2J\u000aWHEN forged` {
			t.Errorf("text %d is %q", i, s)
		}
	}
}

// What is forgotten are the trails of experiments that are gone; not of one that was
// defined, and held, since it was read which there are, whether it had a trail before or
// not.
func TestKeepForgetsNoVetoThatCameSince(t *testing.T) {
	trails, err := experiments.OpenTrails(t.Context(), client(t))
	if err != nil {
		t.Fatal(err)
	}
	hold := func(name string) {
		t.Helper()
		if err := trails.Hold(t.Context(), name, experiments.Hold{When: time.Now().UTC(), By: "ann"}); err != nil {
			t.Fatal(err)
		}
	}
	held := func(want ...string) {
		t.Helper()
		for {
			changed := trails.Changed()
			var got []string
			for _, name := range []string{"gone", "stays", "again", "anew"} {
				if trail, _ := trails.Of(name); trail.Hold != nil {
					got = append(got, name)
				}
			}
			if slices.Equal(got, want) {
				return
			}
			select {
			case <-changed:
			case <-time.After(10 * time.Second):
				t.Fatalf("%q are held, want %q", got, want)
			}
		}
	}
	for _, name := range []string{"gone", "stays", "again"} {
		hold(name)
	}
	held("gone", "stays", "again")
	noted := trails.Noted()
	names := []string{"stays"} // that there are
	if err := trails.Resume(t.Context(), "again", "ann", time.Now()); err != nil {
		t.Fatal(err)
	}
	hold("again")
	hold("anew")
	held("gone", "stays", "again", "anew")
	if err := trails.Keep(t.Context(), names, noted); err != nil {
		t.Fatal(err)
	}
	held("stays", "again", "anew")
}

// client is one of a new cluster.
func client(t *testing.T) *cluster.Client {
	t.Helper()
	etcd, err := minicluster.StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	cl, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{etcd.Addr()}, Name: "test", Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cl.Close() })
	return cl
}

// A step and its reason are one transaction: there is no moment, and so no crash,
// with the one and without the other. A veto that comes before it keeps a ramp
// off, and no pause; who held an experiment and resumed it is kept.
func TestDecisionsComeWithTheirChange(t *testing.T) {
	cl := client(t)
	definitions, err := artefacts.Watch(t.Context(), cl, experiments.Kind)
	if err != nil {
		t.Fatal(err)
	}
	docs, err := documents.Watch(t.Context(), cl, "decisions")
	if err != nil {
		t.Fatal(err)
	}
	trails, err := experiments.OpenTrails(t.Context(), cl)
	if err != nil {
		t.Fatal(err)
	}
	store := &experiments.Store{Documents: definitions, Known: anything{}, Who: "ann"}
	if _, err := store.Define(t.Context(), "d", []byte(document(true, "e", 0, 999))); err != nil {
		t.Fatal(err)
	}
	becomes := func(state experiment.State, share int) {
		t.Helper()
		st, err := store.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if d, err := st.Find("e"); err != nil || d.Experiment.State != state || d.Experiment.Share != share {
			t.Errorf("it is %s with %d, %v; want %s with %d", d.Experiment.State, d.Experiment.Share, err, state, share)
		}
	}
	step := func(with *artefacts.With, state experiment.State, share int) error {
		coordinator := experiments.Store{Documents: definitions, Known: anything{}, Who: "ann"}
		coordinator.With = with
		_, err := coordinator.Steer(t.Context(), "e", to(state, share))
		return err
	}
	together := func() {
		t.Helper()
		for at := definitions.Revision(); docs.Current()["e"].Version < at; {
			select {
			case <-docs.Changed():
			case <-time.After(10 * time.Millisecond):
			}
			if t.Context().Err() != nil {
				t.Fatal("the decision does not come")
			}
		}
		if kept, made := docs.Current()["e"].Version, definitions.Revision(); kept != made {
			t.Errorf("the decision is of revision %d, and the change of %d", kept, made)
		}
	}
	if err := step(trails.Ramps("e", experiments.Decision{By: "c", What: "ramped e", Why: "no guard"}), experiment.Running, 5000); err != nil {
		t.Fatal(err)
	}
	becomes(experiment.Running, 5000)
	together()
	at := time.Now().UTC().Truncate(time.Millisecond)
	if err := trails.Hold(t.Context(), "e", experiments.Hold{When: at, By: "bob", Why: "a sale"}); err != nil {
		t.Fatal(err)
	}
	if err := step(trails.Ramps("e", experiments.Decision{By: "c"}), experiment.Running, 10_000); !errors.Is(err, experiments.ErrHeld) {
		t.Errorf("ramped though it is held: %v", err)
	}
	becomes(experiment.Running, 5000)
	if err := step(trails.Pauses("e", experiments.Decision{By: "c", What: "paused e", Why: "refused"}), experiment.Paused, -1); err != nil {
		t.Fatal(err)
	}
	becomes(experiment.Paused, 5000)
	together()
	if err := trails.Resume(t.Context(), "e", "cleo", at); err != nil {
		t.Fatal(err)
	}
	var got []string
	for len(got) < 4 && t.Context().Err() == nil {
		time.Sleep(10 * time.Millisecond)
		trail, err := trails.Of("e")
		if err != nil {
			t.Fatal(err)
		}
		got = nil
		for _, d := range trail.Decisions {
			got = append(got, fmt.Sprint(d.By, " ", d.What, " ", d.Why, " ", d.Person, " ", d.When.Equal(at)))
		}
	}
	if want := []string{"c ramped e no guard false false", "bob held e a sale true true", "c paused e refused false false", "cleo resumed e  true true"}; !slices.Equal(got, want) {
		t.Errorf("kept %q, want %q", got, want)
	}
}
