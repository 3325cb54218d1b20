package experiments_test

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/relevance/experiment"
)

// A trail that cannot be read may have a veto in it: it counts for one, nothing
// a coordinator notes takes its place, and a person begins it anew.
func TestTrailsThatCannotBeRead(t *testing.T) {
	cl := client(t)
	docs, err := cl.Documents(t.Context(), "decisions")
	if err != nil {
		t.Fatal(err)
	}
	if err := docs.Change(t.Context(), "e", func(string) (string, error) { return `{"hold":`, nil }); err != nil {
		t.Fatal(err)
	}
	trails, err := experiments.OpenTrails(t.Context(), cl)
	if err != nil {
		t.Fatal(err)
	}
	if trail, err := trails.Of("e"); err == nil || trail.Hold == nil {
		t.Errorf("%+v, %v", trail, err)
	}
	if trails.Look(t.Context(), nil, "e", experiments.Look{When: time.Now()}) == nil {
		t.Error("a coordinator writes over it")
	}
	if err := docs.Change(t.Context(), "e", trails.Ramps("e", experiments.Decision{}).By); !errors.Is(err, experiments.ErrHeld) {
		t.Errorf("it is ramped: %v", err)
	}
	if err := docs.Change(t.Context(), "e", func(body string) (string, error) {
		next, err := trails.Pauses("e", experiments.Decision{}).By(body)
		if next != body {
			t.Errorf("a pause writes over it: %q", next)
		}
		return next, err
	}); err != nil {
		t.Errorf("it keeps a pause off: %v", err)
	}
	if err := trails.Hold(t.Context(), "e", experiments.Hold{By: "ann"}); err == nil {
		t.Error("it is held twice")
	}
	if err := trails.Resume(t.Context(), "e", "ann", time.Now()); err != nil {
		t.Fatal(err)
	}
	for trail, err := trails.Of("e"); err != nil || trail.Hold != nil; trail, err = trails.Of("e") {
		if t.Context().Err() != nil {
			t.Fatal(trail, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
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
	documents, err := cl.Artefacts(t.Context(), experiments.Kind)
	if err != nil {
		t.Fatal(err)
	}
	docs, err := cl.Documents(t.Context(), "decisions")
	if err != nil {
		t.Fatal(err)
	}
	trails, err := experiments.OpenTrails(t.Context(), cl)
	if err != nil {
		t.Fatal(err)
	}
	store := &experiments.Store{Documents: documents, Known: anything{}, Who: "ann"}
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
	step := func(with *cluster.With, state experiment.State, share int) error {
		coordinator := *store
		coordinator.With = with
		_, err := coordinator.Steer(t.Context(), "e", to(state, share))
		return err
	}
	together := func() {
		t.Helper()
		for at := documents.Revision(); docs.Current()["e"].Version < at; {
			select {
			case <-docs.Changed():
			case <-time.After(10 * time.Millisecond):
			}
			if t.Context().Err() != nil {
				t.Fatal("the decision does not come")
			}
		}
		if kept, made := docs.Current()["e"].Version, documents.Revision(); kept != made {
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
