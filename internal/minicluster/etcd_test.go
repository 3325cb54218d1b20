package minicluster

import "testing"

// Who closes etcd to see what follows, and then fails, closes it again.
func TestEtcdClosesTwice(t *testing.T) {
	e, err := StartEtcd(t.Context(), t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.Close()
	e.Close()
}
