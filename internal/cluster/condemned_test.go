package cluster_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/ledger"
)

// What one process condemns another hears of, with the first reason, until
// it is forgotten; and no more are kept than a model has versions.
func TestCondemned(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	one, two := etcd.open(""), etcd.open("")
	a, err := artefacts.WatchCondemned(t.Context(), one)
	check(t, err)
	b, err := artefacts.WatchCondemned(t.Context(), two)
	check(t, err)
	models, err := artefacts.Watch(t.Context(), one, "models")
	check(t, err)
	same, err := artefacts.Watch(t.Context(), two, "models")
	check(t, err)
	version := func(n int) artefacts.Version {
		v, _, err := models.Publish(t.Context(), "likes", fmt.Sprint(n), fmt.Append(nil, n), "ann")
		check(t, err)
		return v
	}
	first, second := version(1), version(2)
	await(t, "the other hears of it", same.Changed, func() bool { return same.Has(second) })
	check(t, a.Condemn(t.Context(), models, first, "it panicked", "n1", time.Now()))
	check(t, b.Condemn(t.Context(), same, first, "it is slow", "n2", time.Now()))
	if x := b.Current()[first]; x.Why != "it panicked" || x.Who != "n1" || x.When.IsZero() || a.Why(first) != "it panicked" || a.Why(second) != "" {
		t.Errorf("%+v", x)
	}
	events, err := models.History(t.Context(), "likes")
	check(t, err)
	if e := events[len(events)-1]; len(events) != 3 || e.What != ledger.Failed || e.Version != "1" || e.Who != "n1: it panicked" || e.When.IsZero() {
		t.Errorf("history: %+v", events)
	}
	check(t, b.Forget(t.Context(), first))
	check(t, b.Forget(t.Context(), first))
	if len(b.Current()) > 0 {
		t.Errorf("%v", b.Current())
	}
	// A version that is dropped is not to be asked for anyway.
	gone := artefacts.Version{Name: "likes", Version: "0", Sum: strings.Repeat("0", 64)}
	check(t, a.Condemn(t.Context(), models, gone, "it panicked", "n1", time.Now()))
	const most = 64
	var last artefacts.Version
	for n := range most + 3 {
		last = version(n)
		check(t, a.Condemn(t.Context(), models, last, strings.Repeat("x", 1000), "n1", time.Now()))
	}
	if all := a.Current(); len(all) != most || a.Why(first) != "" || a.Why(gone) != "" || len(a.Why(last)) != 300 {
		t.Errorf("%d are kept", len(all))
	}
	if err := a.Condemn(t.Context(), models, artefacts.Version{Name: "a/b", Version: "1", Sum: "x"}, "", "", time.Now()); err == nil {
		t.Error("a name that is none")
	}
}

// Who tells late of what was seen before a release does not undo it; what is seen after
// it counts.
func TestAReleaseIsNotUndoneByWhoIsLate(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	c := etcd.open("")
	all, err := artefacts.WatchCondemned(t.Context(), c)
	check(t, err)
	models, err := artefacts.Watch(t.Context(), c, "models")
	check(t, err)
	v, _, err := models.Publish(t.Context(), "likes", "1", []byte("1"), "ann")
	check(t, err)
	seen := time.Now()
	check(t, all.Condemn(t.Context(), models, v, "it panicked", "n1", seen))
	time.Sleep(2 * time.Millisecond)
	check(t, all.Release(t.Context(), models, v, "ann"))
	if err := all.Condemn(t.Context(), models, v, "it panicked", "n2", seen); !errors.Is(err, artefacts.ErrReleased) || all.Why(v) != "" {
		t.Errorf("%v, %q", err, all.Why(v))
	}
	time.Sleep(2 * time.Millisecond)
	check(t, all.Condemn(t.Context(), models, v, "it panicked again", "n2", time.Now()))
	if why := all.Why(v); why != "it panicked again" {
		t.Errorf("%q", why)
	}
}

// A document that is malformed keeps what it said before, and nothing of another
// model.
func TestCondemnedBesideAMalformedDocument(t *testing.T) {
	etcd := startEtcd(t)
	c := etcd.open("")
	all, err := artefacts.WatchCondemned(t.Context(), c)
	check(t, err)
	models, err := artefacts.Watch(t.Context(), c, "models")
	check(t, err)
	version := func(name string, n int) artefacts.Version {
		v, _, err := models.Publish(t.Context(), name, fmt.Sprint(n), fmt.Append(nil, n), "ann")
		check(t, err)
		return v
	}
	for _, v := range []artefacts.Version{version("a", 1), version("b", 1), version("b", 2)} {
		check(t, all.Condemn(t.Context(), models, v, "it panicked", "n1", time.Now()))
	}
	docs, err := documents.Watch(t.Context(), c, "condemned")
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
	models, err := artefacts.Watch(t.Context(), c, "models")
	check(t, err)
	all, err := artefacts.WatchCondemned(t.Context(), c)
	check(t, err)
	docs, err := documents.Watch(t.Context(), c, "condemned")
	check(t, err)
	v, _, err := models.Publish(t.Context(), "likes", "1", []byte("one"), "ann")
	check(t, err)
	gone, _, err := models.Publish(t.Context(), "likes", "0", []byte("none"), "ann")
	check(t, err)
	for _, bad := range []artefacts.Version{v, gone} {
		check(t, all.Condemn(t.Context(), models, bad, "it panicked", "n1", time.Now()))
	}
	check(t, models.Drop(t.Context(), gone, nil, "ann"))
	refused(t, all.Release(t.Context(), models, gone, "bob"), artefacts.ErrNoVersion, "")
	if all.Why(gone) == "" {
		t.Error("a version that is not there is released")
	}
	check(t, all.Release(t.Context(), models, v, "bob"))
	events, err := models.History(t.Context(), "likes")
	check(t, err)
	if e := events[len(events)-1]; len(events) != 6 || e.What != ledger.Released || e.Who != "bob: it was condemned: it panicked" || e.Version != "1" || e.When.IsZero() || all.Why(v) != "" || all.Why(gone) == "" {
		t.Errorf("%+v; condemned %v", events, all.Current())
	}
	await(t, "the release is heard of", docs.Changed, func() bool { return docs.Current()["likes"].Version >= models.Revision() })
	if at := docs.Current()["likes"].Version; at != models.Revision() {
		t.Errorf("released at %d, and kept at %d", at, models.Revision())
	}
}
