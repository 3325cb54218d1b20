package etcdtest

import (
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Lasting returns the keys of an etcd that begin with a prefix and belong to no
// lease, with the revision that wrote each.
func Lasting(t testing.TB, addr, prefix string) map[string]int64 {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{addr}})
	if err != nil {
		t.Fatal(err)
	}
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
