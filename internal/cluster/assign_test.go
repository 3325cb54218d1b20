package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

const assignmentKey = "/millrace/test/map/assignment"

// spreadOver is an assignment over nodes that need not be registered.
func spreadOver(t *testing.T, epoch int64, ids ...millrace.NodeID) topology.Assignment {
	t.Helper()
	a, err := topology.Spread(ids, 2)
	check(t, err)
	a.Epoch, a.AllowUnknown = epoch, true
	return a
}

func (s *server) putAssignment(a topology.Assignment) {
	s.t.Helper()
	body, err := json.Marshal(a)
	check(s.t, err)
	s.put(assignmentKey, string(body))
}

func (s *server) put(key, value string) {
	s.t.Helper()
	s.raw(func(e *clientv3.Client) error { _, err := e.Put(s.t.Context(), key, value); return err })
}

// An operator's mistakes are refused before they are written.
func TestAssignRefusesMistakes(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	first, err := topology.Spread([]millrace.NodeID{"n1", "nodel"}, 2)
	check(t, err)
	n1 := join(t, c, topology.Node{ID: "n1", Addr: "a:1"})
	registered(t, n1)
	err = steering.Assign(ctx, c, first)
	if !errors.Is(err, topology.ErrUnknownOwner) || !strings.Contains(err.Error(), `"nodel"`) {
		t.Fatalf("a misspelt node: %v", err)
	}
	if strings.Contains(err.Error(), "allow_unknown") { // the way out of a command is its flag
		t.Errorf("it names a field of the document: %v", err)
	}
	if _, ok, err := steering.Assigned(ctx, c); ok || err != nil {
		t.Fatalf("it was assigned, %v", err)
	}
	first.AllowUnknown = true
	check(t, steering.Assign(ctx, c, first))

	// Of a node that was there once the name is known, and stays so.
	n2 := join(t, c, topology.Node{ID: "n2", Addr: "a:2"})
	registered(t, n2)
	check(t, n2.Leave(ctx))
	second, err := topology.Spread([]millrace.NodeID{"n1", "n2", "nodel"}, 2)
	check(t, err)
	second.Epoch = 2
	check(t, steering.Assign(ctx, c, second))

	for epoch, want := range map[int64]error{2: steering.ErrEpoch, 1: steering.ErrEpoch, 1003: steering.ErrEpoch, math.MaxInt64: nil, 0: nil, -1: nil} {
		a := second
		a.Epoch = epoch
		if err := steering.Assign(ctx, c, a); err == nil || want != nil && !errors.Is(err, want) {
			t.Errorf("epoch %d: %v", epoch, err)
		}
	}
	for _, epoch := range []int64{3, 4, 12} {
		if err := steering.Assign(ctx, c, spreadOver(t, epoch, "n1")); !errors.Is(err, topology.ErrShrink) {
			t.Errorf("shrinking in epoch %d: %v", epoch, err)
		}
	}
	meant := spreadOver(t, 3, "n1")
	meant.AllowShrink = true
	check(t, steering.Assign(ctx, c, meant))
	got, ok, err := steering.Assigned(ctx, c)
	if err != nil || !ok || got.Epoch != 3 || len(got.Past) != 2 {
		t.Errorf("assigned %d with past %v, %v, %v", got.Epoch, got.Past, ok, err)
	}
}

// Of two assignments at once one is taken, and the other told so.
func TestOfTwoAssignsOneIsTaken(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	clients := []*cluster.Client{etcd.open(""), etcd.open(""), etcd.open(""), etcd.open("")}
	for epoch := range int64(20) {
		var wg sync.WaitGroup
		errs := make([]error, len(clients))
		for i, c := range clients {
			a := spreadOver(t, epoch+1, "n1", "n2", "n3")
			a.Replicas[0] = a.Replicas[0][:1+i%2]
			wg.Go(func() { errs[i] = steering.Assign(ctx, c, a) })
		}
		wg.Wait()
		taken := 0
		for _, err := range errs {
			if err == nil {
				taken++
			} else if !errors.Is(err, steering.ErrEpoch) {
				t.Error(err)
			}
		}
		if taken != 1 {
			t.Fatalf("epoch %d was taken %d times: %v", epoch+1, taken, errs)
		}
	}
}

// Whatever somebody writes past this package, an operator comes back from it
// with the next epoch.
func TestAnOperatorGoesBackFromAnyAssignment(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	w := watch(t, c)
	check(t, steering.Assign(ctx, c, spreadOver(t, 1, "n1", "n2", "n3")))
	held := int64(1)
	await(t, "the first is taken", w.Changed, func() bool { return w.Current().Epoch() == held })
	goBack := func(what string) {
		t.Helper()
		a, ok, err := steering.Assigned(ctx, c)
		if err != nil || !ok {
			t.Fatalf("%s: %v, %v", what, ok, err)
		}
		held = a.Epoch + 1
		good := spreadOver(t, held, "n1", "n2", "n3")
		good.AllowShrink = true
		check(t, steering.Assign(ctx, c, good))
		await(t, what+" is over", w.Changed, func() bool { return w.Current().Epoch() == held && w.Fault() == nil })
		if got := w.Current().Assignment(); got.Replicas[7][0] != good.Replicas[7][0] {
			t.Fatalf("%s: partition 7 is on %v", what, got.Replicas[7])
		}
	}
	for what, write := range map[string]func(){
		"nonsense":           func() { etcd.put(assignmentKey, "nonsense") },
		"the highest epoch":  func() { etcd.putAssignment(spreadOver(t, math.MaxInt64, "n1", "n2", "n3")) },
		"an epoch far ahead": func() { etcd.putAssignment(spreadOver(t, held+5000, "n1", "n2", "n3")) },
		"a small map":        func() { etcd.putAssignment(spreadOver(t, held+2, "n1")) },
		"an old map":         func() { etcd.putAssignment(spreadOver(t, 1, "n1")) },
		"unknown nodes": func() {
			a := spreadOver(t, held+3, "x1", "x2", "x3")
			a.AllowUnknown = false
			etcd.putAssignment(a)
		},
		"another map of its epoch": func() { etcd.putAssignment(spreadOver(t, held, "n3", "n2")) },
	} {
		write()
		await(t, what+" is told", w.Changed, func() bool { return w.Fault() != nil })
		if w.Current().Epoch() != held {
			t.Fatalf("%s was taken", what)
		}
		goBack(what)
	}
	// One that watchers take, being neither smaller nor far ahead, is gone back
	// from in the same way.
	etcd.putAssignment(spreadOver(t, held+900, "n1", "n2", "y"))
	await(t, "it is taken", w.Changed, func() bool { return w.Current().Epoch() == held+900 })
	goBack("a map that was a mistake")
}

// An etcd that is restored from an older backup gives back neither the
// documents of then, whatever its revisions are by now, nor takes those that
// somebody has written since.
func TestRestoreAfterARollback(t *testing.T) {
	t.Parallel()
	ctx, dir, late := t.Context(), t.TempDir(), t.TempDir()
	etcd := startEtcd(t)
	c := etcd.open(dir)
	w, docs := watch(t, c), documentsOf(t, c)
	check(t, steering.Assign(ctx, c, spreadOver(t, 1, "n1", "n2")))
	check(t, putDocument(ctx, docs, "home", []byte("old")))
	check(t, putDocument(ctx, docs, "jobs", []byte("old")))
	check(t, putDocument(ctx, docs, "same", []byte("same")))
	etcd.stop()
	backup := t.TempDir()
	check(t, os.CopyFS(backup, os.DirFS(etcd.dir)))
	etcd.start()

	big := noise(7, 3<<20)
	check(t, putDocument(ctx, docs, "home", []byte("new")))
	check(t, putDocument(ctx, docs, "big", big))
	check(t, putDocument(ctx, docs, "jobs", []byte("new")))
	check(t, steering.Assign(ctx, c, spreadOver(t, 2, "n1", "n2", "n3")))
	await(t, "all is heard", docs.Changed, func() bool {
		now := docs.Current()
		return now["jobs"].Body == "new" && now["big"].Body == string(big)
	})
	await(t, "the map is heard", w.Changed, func() bool { return w.Current().Epoch() == 2 })
	second := etcd.open(late) // which will not be there to see it go back
	_, secondDocs := watch(t, second), documentsOf(t, second)
	if secondDocs.Current()["home"].Body != "new" {
		t.Fatal("the second process knows less")
	}
	check(t, second.Close())

	etcd.stop()
	etcd.empty()
	check(t, os.CopyFS(etcd.dir, os.DirFS(backup)))
	etcd.start()
	back := func(what string, changed func() <-chan struct{}, fault func() error) {
		t.Helper()
		await(t, what+": the rollback is told", changed, func() bool { return fault() != nil && strings.Contains(fault().Error(), "went back") })
	}
	back("documents", docs.Changed, docs.Fault)
	back("map", w.Changed, w.Fault)
	check(t, putDocument(ctx, docs, "jobs", []byte("since")))
	for range 100 { // until its revisions have caught up
		etcd.put("/elsewhere", "")
	}
	check(t, c.Close())
	c, second = etcd.open(dir), etcd.open(late)
	w, docs = watch(t, c), documentsOf(t, c)
	secondDocs = documentsOf(t, second)
	back("documents, restarted", docs.Changed, docs.Fault)
	back("map, restarted", w.Changed, w.Fault)
	back("documents of the second process", secondDocs.Changed, secondDocs.Fault)
	for name, want := range map[string]string{"home": "new", "jobs": "new", "big": string(big)} {
		if docs.Current()[name].Body != want || secondDocs.Current()[name].Body != want {
			t.Errorf("%s went back", name)
		}
	}

	got, err := restoration.Restore(ctx, c, late, dir)
	check(t, err)
	if got.Epoch != 3 || len(got.Documents) != 2 || !slices.Equal(got.Stays, []string{"feeds jobs"}) {
		t.Errorf("restored %+v", got)
	}
	for _, d := range []*documents.Kind{docs, secondDocs} {
		await(t, "the restored documents are taken", d.Changed, func() bool {
			now := d.Current()
			return d.Fault() == nil && now["home"].Body == "new" && now["jobs"].Body == "since" && now["big"].Body == string(big) && now["same"].Body == "same"
		})
	}
	await(t, "the restored map is taken", w.Changed, func() bool { return w.Fault() == nil && w.Current().Epoch() == 3 && len(w.Current().Replicas(0)) == 2 })
}

func documentsOf(t *testing.T, c *cluster.Client) *documents.Kind {
	t.Helper()
	d, err := documents.Watch(t.Context(), c, "feeds")
	check(t, err)
	return d
}

// putDocument writes a document, whatever there is of it.
func putDocument(ctx context.Context, d *documents.Kind, name string, body []byte) error {
	_, err := d.PutIf(ctx, name, body)
	return err
}

// Of several directories the newest of each thing is restored, in whatever
// order they are named.
func TestRestoreTakesTheNewestDirectory(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	etcd := startEtcd(t)
	older, newer := t.TempDir(), t.TempDir()
	keep := func(dir, body string, epoch int64) {
		c := etcd.open(dir)
		w, docs := watch(t, c), documentsOf(t, c)
		check(t, putDocument(ctx, docs, "home", []byte(body)))
		check(t, steering.Assign(ctx, c, spreadOver(t, epoch, "n1", "n2")))
		await(t, "the document is there", docs.Changed, func() bool { return docs.Current()["home"].Body == body })
		await(t, "the map is there", w.Changed, func() bool { return w.Current().Epoch() == epoch })
		check(t, c.Close())
	}
	keep(older, "old", 1)
	keep(newer, "new", 5)
	empty := t.TempDir() // of a node that has lost its disk
	if _, err := restoration.Restore(ctx, etcd.command(), empty); err == nil || !strings.Contains(err.Error(), "nothing is kept in "+empty) {
		t.Errorf("restored out of nothing: %v", err)
	}
	for _, dirs := range [][]string{{older, newer}, {newer, older}, {empty, newer, older}} {
		etcd.stop()
		etcd.empty()
		etcd.start()
		c := etcd.open("")
		got, err := restoration.Restore(ctx, c, dirs...)
		check(t, err)
		docs := documentsOf(t, c)
		if got.Epoch != 6 || docs.Current()["home"].Body != "new" || slices.Contains(got.Empty, empty) != slices.Contains(dirs, empty) {
			t.Errorf("restored %+v, %v", got, docs.Current())
		}
		check(t, c.Close())
	}
}
