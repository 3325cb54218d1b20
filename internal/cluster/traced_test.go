package cluster_test

import (
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/brokers"
)

// A viewer is traced from soon after somebody says so until somebody ends it
// or the lease does.
func TestTraced(t *testing.T) {
	s := startEtcd(t)
	c := s.open("")
	traced := brokers.WatchTraced(t.Context(), c)
	await := func(what string, want bool) {
		t.Helper()
		for deadline := time.After(10 * time.Second); ; {
			changed := traced.Changed()
			if traced.Has("member:9") == want {
				return
			}
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("%s: member:9 is traced: %t", what, !want)
			}
		}
	}
	for _, bad := range []struct {
		viewer string
		d      time.Duration
	}{{"", time.Minute}, {"member:9", 0}, {"member:9", 25 * time.Hour}} {
		var e *millrace.Error
		if _, err := brokers.Trace(t.Context(), c, bad.viewer, bad.d); !errors.As(err, &e) {
			t.Errorf("%q for %s: %v", bad.viewer, bad.d, err)
		}
	}
	if _, err := brokers.Trace(t.Context(), c, "member:9", time.Hour); err != nil {
		t.Fatal(err)
	}
	await("on", true)
	if traced.Has("member:1") || traced.Has("") {
		t.Error("others are traced as well")
	}
	if err := brokers.Untrace(t.Context(), c, "member:9"); err != nil {
		t.Fatal(err)
	}
	await("off", false)
	if _, err := brokers.Trace(t.Context(), c, "member:9", time.Hour); err != nil {
		t.Fatal(err)
	}
	await("on again", true)
	s.raw(func(etcd *clientv3.Client) error {
		leases, err := etcd.Leases(t.Context())
		if err != nil {
			return err
		}
		for _, l := range leases.Leases {
			if _, err := etcd.Revoke(t.Context(), l.ID); err != nil {
				return err
			}
		}
		return nil
	})
	await("the lease has ended", false)
}
