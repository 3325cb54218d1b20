package etcdtest

import (
	"testing"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Lasting returns the keys of an etcd that begin with a prefix and belong to no
// lease, with the revision that wrote each.
func Lasting(t testing.TB, addr, prefix string) map[string]int64 {
	t.Helper()
	c := open(t, addr)
	defer c.Close()
	got, err := c.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]int64{}
	for _, kv := range got.Kvs {
		if kv.Lease == 0 {
			all[string(kv.Key)] = kv.ModRevision
		}
	}
	return all
}

// Lose removes all keys of an etcd that begin with a prefix, as if etcd had lost them.
func Lose(t testing.TB, addr, prefix string) {
	t.Helper()
	c := open(t, addr)
	defer c.Close()
	if _, err := c.Delete(t.Context(), prefix, clientv3.WithPrefix()); err != nil {
		t.Fatal(err)
	}
}

// Fill raises the alarm that an etcd without disk space raises, so that it refuses writes.
func Fill(t testing.TB, addr string) {
	t.Helper()
	c := open(t, addr)
	defer c.Close()
	is, err := c.Status(t.Context(), addr)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := etcdserverpb.NewMaintenanceClient(c.ActiveConnection()).Alarm(t.Context(), &etcdserverpb.AlarmRequest{
		Action: etcdserverpb.AlarmRequest_ACTIVATE, MemberID: is.Header.MemberId, Alarm: etcdserverpb.AlarmType_NOSPACE,
	}); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, addr string) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
