package leans

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
)

// Where etcd leaves while definitions are read, that is the answer, at the first of them:
// they have no fault, and each of the others would take as long.
func TestDefinitionsOfAnEtcdThatLeaves(t *testing.T) {
	t.Parallel()
	s := clitest.NewStage(t, "n1")
	for i := range 40 {
		name := fmt.Sprintf("feed-%d", i)
		v, _, err := s.Feeds.Publish(t.Context(), name, "1", fmt.Appendf(nil, "name: %s\nmodel: recency\n", name), "ann")
		s.Check(err)
		s.Check(s.Feeds.Serve(t.Context(), v, nil, "ann"))
	}
	command, err := cluster.Open(t.Context(), cluster.Config{Endpoints: s.Etcd, Name: s.Name, Log: slog.New(slog.DiscardHandler)})
	s.Check(err)
	defer command.Close()
	versions, err := artefacts.Watch(t.Context(), command, feeds.Kind)
	s.Check(err)
	f := &Feeds{Cluster: command, Versions: versions}
	if all, err := f.Definitions(t.Context()); err != nil || len(all) != 42 { // with home and recent
		t.Fatalf("%d, %v", len(all), err)
	}
	fresh, err := artefacts.Watch(t.Context(), command, feeds.Kind) // which has read no bytes yet
	s.Check(err)
	s.Stop()
	f.Versions = fresh
	if all, err := f.Definitions(t.Context()); !errors.Is(err, cluster.ErrAway) {
		t.Errorf("%d, %v", len(all), err)
	}
}
