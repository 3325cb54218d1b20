package coordinator_test

import (
	"errors"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/experiments"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/relevance/experiment"
)

// startEtcd starts etcd on an address that may have been its own before.
func startEtcd(t *testing.T, dir, addr string) *minicluster.Etcd {
	t.Helper()
	etcd, err := minicluster.StartEtcd(t.Context(), dir, addr)
	for tries := 0; err != nil && strings.Contains(err.Error(), "address already in use") && tries < 100; tries++ {
		time.Sleep(200 * time.Millisecond) // an outgoing connection may have the port for a moment
		etcd, err = minicluster.StartEtcd(t.Context(), dir, addr)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	return etcd
}

// A veto is lost with what etcd lost, and a restoration does not know of it. No ramp
// goes on after one until a person says so.
func TestRampsAreHeldAfterARestoration(t *testing.T) {
	t.Parallel()
	ctx, dir, kept, backup := t.Context(), t.TempDir(), t.TempDir(), t.TempDir()
	etcd, err := minicluster.StartEtcd(ctx, dir, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := etcd.Addr()
	open := func(dir string) *cluster.Client {
		t.Helper()
		cl, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{addr}, Name: "test", Dir: dir, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cl.Close() })
		return cl
	}
	tr := newTrialAt(t, addr, rampedDocument)
	broker := open(kept) // which keeps what it hears of
	assignment, err := topology.Spread([]millrace.NodeID{"n1"}, 1)
	assignment.AllowUnknown = true
	if err := errors.Join(err, steering.Assign(ctx, broker, assignment)); err != nil {
		t.Fatal(err)
	}
	w, err := broker.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for w.Current().Epoch() == 0 {
		<-w.Changed()
	}
	if _, err := artefacts.Watch(ctx, broker, experiments.Kind); err != nil {
		t.Fatal(err)
	}
	one, stop := tr.coordinate("one")
	for leads := false; !leads; leads, _ = one.Leads() {
		time.Sleep(50 * time.Millisecond)
	}
	tr.says("")
	stop()
	etcd.Close()
	if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	start := func() {
		t.Helper()
		etcd = startEtcd(t, dir, addr)
	}
	start()
	trails, err := experiments.OpenTrails(ctx, open(""))
	if err != nil {
		t.Fatal(err)
	}
	if err := trails.Hold(ctx, "e", experiments.Hold{When: time.Now(), By: "ann"}); err != nil {
		t.Fatal(err)
	}
	assignment.Epoch++ // which the broker keeps, and the backup does not know
	if err := steering.Assign(ctx, broker, assignment); err != nil {
		t.Fatal(err)
	}
	for w.Current().Epoch() < assignment.Epoch {
		<-w.Changed()
	}
	if err := broker.Close(); err != nil {
		t.Fatal(err)
	}
	etcd.Close()
	if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(backup))); err != nil {
		t.Fatal(err)
	}
	start()
	if _, err := restoration.Restore(ctx, open(""), kept); err != nil {
		t.Fatal(err)
	}

	fresh := tr.of(addr)
	fresh.coordinate("two")
	fresh.show(200, nil) // enough for a step
	fresh.says("a restoration of etcd holds its next step")
	if did := fresh.decisions(); len(did) > 0 {
		t.Errorf("%q", did)
	}
	if trails, err = experiments.OpenTrails(ctx, open("")); err != nil {
		t.Fatal(err)
	}
	held, err := trails.Of("e")
	if n := len(held.Decisions); err != nil || n == 0 || !held.Decisions[n-1].Apart() || held.Decisions[n-1].What != "held e" {
		t.Errorf("the history of the document does not tell the hold: %+v, %v", held.Decisions, err)
	}
	if err := trails.Resume(ctx, "e", "ann", time.Now()); err != nil {
		t.Fatal(err)
	}
	fresh.becoming(experiment.Running, 1000, func() { fresh.show(1, nil) })
}

// Etcd is restored from a backup of before a person paused an experiment. No
// coordinator takes a step by that: neither one that comes to lead and did not lead
// before, nor one that is new and remembers nothing. They say why.
func TestNoStepInAnEtcdThatWentBack(t *testing.T) {
	t.Parallel()
	dir, backup, addr := t.TempDir(), t.TempDir(), "127.0.0.1:0"
	var etcd *minicluster.Etcd
	start := func() {
		t.Helper()
		etcd = startEtcd(t, dir, addr)
		addr = etcd.Addr()
	}
	leads := func(c *coordinator.Coordinator, with error) {
		t.Helper()
		for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
			leads, fault := c.Leads()
			if leads && errors.Is(fault, with) {
				return
			}
			if time.Since(began) > 60*time.Second {
				t.Fatalf("leads is %v, and it says: %v", leads, fault)
			}
		}
	}
	start()
	tr := newTrialAt(t, addr, rampedDocument)
	one, stop := tr.coordinate("one")
	leads(one, nil)
	two, stopTwo := tr.by(addr).coordinate("two")

	etcd.Close()
	if err := os.CopyFS(backup, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	start()
	if _, err := tr.store.Steer(t.Context(), "e", func(now experiment.Experiment) (experiment.State, int, error) {
		return experiment.Paused, now.Share, nil
	}); err != nil {
		t.Fatal(err)
	}
	tr.becomes(experiment.Paused, 100)
	time.Sleep(2 * time.Second) // two hears of it, too
	stop()
	if err := tr.cluster.Close(); err != nil { // of who paused it and led
		t.Fatal(err)
	}
	etcd.Close()
	if err := errors.Join(os.RemoveAll(dir), os.CopyFS(dir, os.DirFS(backup))); err != nil {
		t.Fatal(err)
	}
	start()
	tr.show(200, nil) // enough for a step
	leads(two, cluster.ErrLost)
	time.Sleep(2 * time.Second) // in which it would take one
	stopTwo()
	fresh := tr.of(addr)
	three, _ := fresh.coordinate("three")
	leads(three, cluster.ErrLost)
	time.Sleep(2 * time.Second)
	if did := fresh.decisions(); len(did) > 0 {
		t.Errorf("%q", did)
	}
	if e := fresh.now(); e.State != experiment.Running || e.Share != 100 {
		t.Errorf("it is %s at %d", e.State, e.Share)
	}
}
