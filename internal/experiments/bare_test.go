package experiments_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/relevance/experiment"
)

// bared is a store, and what takes the bytes of a document's version that serves.
func bared(t *testing.T) (s *experiments.Store, bare func(document string)) {
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
	documents, err := artefacts.Watch(t.Context(), cl, experiments.Kind)
	if err != nil {
		t.Fatal(err)
	}
	return &experiments.Store{Documents: documents, Known: anything{}, Who: "ann"}, func(document string) {
		t.Helper()
		raw, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.Addr()}})
		if err == nil {
			v, _ := documents.Served(document)
			_, err = raw.Delete(t.Context(), "/millrace/test/bodies/experiments/"+document+"/"+v.Sum, clientv3.WithPrefix())
			_ = raw.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A document whose bytes are not there holds up no change of others, and is itself put in
// place anew, ended and dropped.
func TestADocumentWithoutBytesHoldsUpNothing(t *testing.T) {
	s, bare := bared(t)
	ctx := t.Context()
	define := func(name, src string) {
		t.Helper()
		if _, err := s.Define(ctx, name, []byte(src)); err != nil {
			t.Fatal(err)
		}
	}
	steer := func(name string, state experiment.State) error {
		_, err := s.Steer(ctx, name, func(now experiment.Experiment) (experiment.State, int, error) { return state, now.Share, nil })
		return err
	}
	is := func(what string, want map[string]experiment.State) {
		t.Helper()
		st, err := s.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]experiment.State{}
		for _, d := range st.Set.Experiments() {
			got[d.Experiment.Name] = d.Experiment.State
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s: %v, want %v; faults %v", what, got, want, st.Faults)
		}
	}
	running := func(doc string) string { return strings.ReplaceAll(doc, "state: draft", "state: running") }
	define("base", document(true, "base", 0, 9))
	define("whole", running(document(false, "whole", 10, 19)))
	define("late", running(document(false, "late", 20, 29)))
	bare("late")
	is("bare", map[string]experiment.State{"base": experiment.Draft, "whole": experiment.Running})
	st, err := s.Read(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if fault, way := fmt.Sprint(st.Faults["late"]), st.WayBack("late"); fault != "the bytes of experiment late 1 are not in etcd" || !strings.HasPrefix(way, artefacts.BytesWayOut+"; else put document late in place again") {
		t.Errorf("%s; %s", fault, way)
	}
	for name, want := range map[string]string{
		"late":   "experiment: experiment late stood in document late, and whether it still does is not known: the bytes of experiment late 1 are not in etcd; " + st.WayBack("late"),
		"nosuch": `experiment: there is no experiment "nosuch" in the documents that can be read; name one of base, whole; ` + st.WayBack("late"),
	} {
		if _, err := st.Find(name); err == nil || err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	if err := steer("whole", experiment.Paused); err != nil {
		t.Error(err)
	}
	define("more", document(false, "more", 30, 39))
	if err := steer("late", experiment.Paused); err == nil || !strings.Contains(err.Error(), "millrace experiment drop late") {
		t.Errorf("what nobody has is paused: %v", err)
	}
	anew, err := s.Define(ctx, "late", []byte(running(document(false, "late", 20, 29)))) // the same bytes
	if want := "[experiment late: running, at 100% of its slots; what it was before cannot be read]"; err != nil || fmt.Sprint(anew.Sentences) != want {
		t.Errorf("%q, %v; want %s", anew.Sentences, err, want)
	}
	is("anew", map[string]experiment.State{"base": experiment.Draft, "whole": experiment.Paused, "more": experiment.Draft, "late": experiment.Running})

	two := running(document(false, "late", 20, 29)) + strings.TrimPrefix(running(document(false, "other", 40, 49)), "experiments: ")
	two = strings.ReplaceAll(two, "]}]\n[", "]}, ")
	define("late", two)
	if err := steer("late", experiment.Stopped); err != nil {
		t.Fatal(err)
	}
	bare("late")
	if err := steer("other", experiment.Paused); err != nil { // late comes to run by no means
		t.Error(err)
	}
	is("ended", map[string]experiment.State{"base": experiment.Draft, "whole": experiment.Paused, "more": experiment.Draft, "late": experiment.Paused, "other": experiment.Paused})

	bare("more")
	if err := s.Drop(ctx, "more"); err != nil {
		t.Error(err)
	}
	st, err = s.Read(ctx)
	if err != nil || len(st.Faults) != 0 {
		t.Errorf("%v, %v", st, err)
	}
}
