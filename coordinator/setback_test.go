package coordinator_test

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/relevance/experiment"
)

// Etcd is restored from a backup of before a person paused an experiment. No
// coordinator takes a step by that: neither one that comes to lead and did not lead
// before, nor one that is new and remembers nothing. They say why.
func TestNoStepInAnEtcdThatWentBack(t *testing.T) {
	dir, backup, addr := t.TempDir(), t.TempDir(), "127.0.0.1:0"
	var etcd *minicluster.Etcd
	start := func() {
		t.Helper()
		var err error
		if etcd, err = minicluster.StartEtcd(t.Context(), dir, addr); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(etcd.Close)
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
