package cluster_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/dial"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/cluster/steering"
)

// An etcd without space is read on, and who would write is told what to do. That
// nobody can lead is an alarm.
func TestAFullEtcd(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	c := etcd.open("")
	check(t, steering.Assign(t.Context(), c, spreadOver(t, 1, "n1")))
	if err := c.Full(t.Context()); err != nil {
		t.Fatal(err)
	}
	etcdtest.Fill(t, etcd.addr)
	late := etcd.open("") // opens all the same
	if w := watch(t, late); w.Current().Epoch() != 1 || w.Fault() != nil {
		t.Errorf("epoch %d, %v", w.Current().Epoch(), w.Fault())
	}
	if err := late.Full(t.Context()); !errors.Is(err, dial.ErrFull) {
		t.Errorf("full: %v", err)
	}
	models, err := artefacts.Watch(t.Context(), late, "models")
	check(t, err)
	_, _, err = models.Publish(t.Context(), "m", "1", []byte("body"), "")
	if refused := dial.Refused(err); refused == nil || refused.Reason != millrace.ReasonUnavailable || !strings.Contains(refused.WayOut, "alarm disarm") {
		t.Errorf("a write gives %v, %v", err, refused)
	}
	go func() { _, _ = late.Lead(t.Context(), cluster.Leader{Name: "c"}) }()
	for began := time.Now(); alarm(t, late)["leader"] == 0; time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > 60*time.Second {
			t.Fatal("no alarm says that nobody can lead")
		}
	}
	etcd.raw(func(raw *clientv3.Client) error {
		_, err := raw.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
		return err
	})
	for began := time.Now(); ; time.Sleep(50 * time.Millisecond) {
		_, leads, err := late.Leader(t.Context())
		check(t, err)
		if _, told := alarm(t, late)["leader"]; leads && !told {
			return
		}
		if time.Since(began) > 60*time.Second {
			t.Fatal("nobody leads again, or the alarm does not end")
		}
	}
}
