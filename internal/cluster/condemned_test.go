package cluster_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cluster"
)

// What one process condemns another hears of, with the first reason, until
// it is forgotten; and no more are kept than a model has versions.
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
	check(t, b.Forget(t.Context(), version(1)))
	check(t, b.Forget(t.Context(), version(1)))
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

// A document that is malformed keeps what it said before, and nothing of another
// model.
func TestCondemnedBesideAMalformedDocument(t *testing.T) {
	etcd := startEtcd(t)
	c := etcd.open("")
	all, err := c.Condemned(t.Context())
	check(t, err)
	version := func(name string, n int) cluster.Version {
		return cluster.Version{Name: name, Version: fmt.Sprint(n), Sum: fmt.Sprintf("%064x", n)}
	}
	for _, v := range []cluster.Version{version("a", 1), version("b", 1), version("b", 2)} {
		check(t, all.Condemn(t.Context(), v, "it panicked", "n1"))
	}
	docs, err := c.Documents(t.Context(), "condemned")
	check(t, err)
	check(t, docs.Change(t.Context(), "a", func(string) (string, error) { return "no list", nil }))
	check(t, all.Forget(t.Context(), version("b", 1)))
	await(t, "one is forgotten", all.Changed, func() bool { return all.Why(version("b", 1)) == "" })
	if all.Why(version("a", 1)) == "" || all.Why(version("b", 2)) == "" {
		t.Errorf("condemned: %v", all.Current())
	}
}

// Who lets a condemned version be asked for again stands in the model's history,
// from the moment on that it is; of a version that is not there nothing changes.
func TestReleasesAreKept(t *testing.T) {
	etcd := startEtcd(t)
	c := etcd.open("")
	models, err := c.Artefacts(t.Context(), "models")
	check(t, err)
	all, err := c.Condemned(t.Context())
	check(t, err)
	docs, err := c.Documents(t.Context(), "condemned")
	check(t, err)
	v, _, err := models.Publish(t.Context(), "likes", "1", []byte("one"), "ann")
	check(t, err)
	gone := cluster.Version{Name: "likes", Version: "0", Sum: strings.Repeat("0", 64)}
	for _, bad := range []cluster.Version{v, gone} {
		check(t, all.Condemn(t.Context(), bad, "it panicked", "n1"))
	}
	refused(t, all.Release(t.Context(), models, gone, "bob"), cluster.ErrNoVersion, "")
	if all.Why(gone) == "" {
		t.Error("a version that is not there is released")
	}
	check(t, all.Release(t.Context(), models, v, "bob"))
	events, err := models.History(t.Context(), "likes")
	check(t, err)
	if e := events[len(events)-1]; len(events) != 2 || e.What != cluster.Released || e.Who != "bob" || e.Version != "1" || e.When.IsZero() || all.Why(v) != "" || all.Why(gone) == "" {
		t.Errorf("%+v; condemned %v", events, all.Current())
	}
	await(t, "the release is heard of", docs.Changed, func() bool { return docs.Current()["likes"].Version >= models.Revision() })
	if at := docs.Current()["likes"].Version; at != models.Revision() {
		t.Errorf("released at %d, and kept at %d", at, models.Revision())
	}
}
