package experiments_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/minicluster"
)

// A trail that cannot be read may have a veto in it: it counts for one, nothing
// a coordinator notes takes its place, and a person begins it anew.
func TestTrailsThatCannotBeRead(t *testing.T) {
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
	if trails.Look(t.Context(), "e", experiments.Look{When: time.Now()}) == nil || trails.Decide(t.Context(), "e", experiments.Decision{}) == nil {
		t.Error("a coordinator writes over it")
	}
	if err := trails.Hold(t.Context(), "e", experiments.Hold{By: "ann"}); err == nil {
		t.Error("it is held twice")
	}
	if err := trails.Resume(t.Context(), "e"); err != nil {
		t.Fatal(err)
	}
	for trail, err := trails.Of("e"); err != nil || trail.Hold != nil; trail, err = trails.Of("e") {
		if t.Context().Err() != nil {
			t.Fatal(trail, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}
