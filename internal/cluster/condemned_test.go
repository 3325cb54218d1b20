package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster"
)

// What one process condemns another hears of, with the first reason, until
// somebody releases it; and no more are kept than a model has versions.
func TestCondemned(t *testing.T) {
	etcd := startEtcd(t)
	a, err := etcd.open("").Condemned(t.Context())
	check(t, err)
	b, err := etcd.open("").Condemned(t.Context())
	check(t, err)
	version := func(n int) cluster.Version {
		return cluster.Version{Name: "likes", Version: fmt.Sprint(n), Sum: fmt.Sprintf("%064x", n)}
	}
	check(t, a.Condemn(t.Context(), version(1), "it panicked", "n1"))
	check(t, b.Condemn(t.Context(), version(1), "it is slow", "n2"))
	if x := b.Current()[version(1)]; x.Why != "it panicked" || x.Who != "n1" || x.When.IsZero() || a.Why(version(1)) != "it panicked" || a.Why(version(2)) != "" {
		t.Errorf("%+v", x)
	}
	check(t, b.Release(t.Context(), version(1)))
	check(t, b.Release(t.Context(), version(1)))
	if len(b.Current()) > 0 {
		t.Errorf("%v", b.Current())
	}
	const most = 64
	for n := range most + 3 {
		check(t, a.Condemn(t.Context(), version(n), strings.Repeat("x", 1000), "n1"))
	}
	if all := a.Current(); len(all) != most || a.Why(version(2)) != "" || len(a.Why(version(most))) != 300 {
		t.Errorf("%d are kept", len(all))
	}
	if err := a.Condemn(t.Context(), cluster.Version{Name: "a/b", Version: "1", Sum: "x"}, "", ""); err == nil {
		t.Error("a name that is none")
	}
}
