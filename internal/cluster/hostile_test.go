package cluster_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/brokers"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// The tests here are of hostile inputs 106 to 114; docs/hostile-inputs.md
// lists them with those elsewhere.

// Of two assignments the one with the higher epoch holds, in whatever order
// they come (input 109).
func TestOfTwoAssignmentsTheHigherEpochHolds(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	w := watch(t, etcd.open(""))
	one, two := spreadOver(t, 8, "n1", "n2"), spreadOver(t, 9, "n2", "n3")
	etcd.putAssignment(one)
	await(t, "the first is taken", w.Changed, func() bool { return w.Current().Epoch() == 8 })
	etcd.putAssignment(two)
	await(t, "the second is taken", w.Changed, func() bool { return w.Current().Epoch() == 9 })
	etcd.putAssignment(one)
	await(t, "the first is told as old", w.Changed, func() bool {
		return w.Fault() != nil && strings.Contains(w.Fault().Error(), "older than 9; keeping 9")
	})
	for p := range millrace.Partition(720) {
		if got := w.Current().Replicas(p); len(got) != 2 || got[0] == got[1] {
			t.Fatalf("partition %d is on %v", p, got)
		}
	}
	if w.Current().Epoch() != 9 {
		t.Fatalf("epoch %d", w.Current().Epoch())
	}
}

// A node that is alive though its lease has ended serves on: it stays in the
// map with what it is ready for, and registers again by itself (input 112).
func TestANodeWhoseLeaseEndedServesOn(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	w := watch(t, c)
	check(t, steering.Assign(ctx, c, spreadOver(t, 1, "n1", "n2")))
	pipe := startPipe(t, etcd.addr)
	far, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{pipe.addr()}, Name: "test", Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer far.Close()
	m := join(t, far, topology.Node{ID: "n1", Addr: "a:1"})
	m.SetAnswering(topology.All(), topology.Lag{})
	await(t, "n1 is ready", w.Changed, func() bool { return w.Current().Alive("n1") && w.Current().Ready("n1") == topology.All() })
	pipe.freeze()
	await(t, "its lease ends", w.Changed, func() bool { return !w.Current().Alive("n1") })
	if n, ok := w.Current().Node("n1"); !ok || n.Addr != "a:1" || w.Current().Ready("n1") != topology.All() {
		t.Errorf("n1 is %+v, %v", n, ok)
	}
	pipe.thaw()
	await(t, "n1 is alive again", w.Changed, func() bool { return w.Current().Alive("n1") && w.Current().Ready("n1") == topology.All() })
}

// A value as large as etcd takes is refused wherever it stands, and told;
// everything else goes on (input 113).
func TestAValueOfEtcdsLimitChangesNothing(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c, command := etcd.open(t.TempDir()), etcd.command()
	w, docs, traced := watch(t, c), documentsOf(t, c), brokers.WatchTraced(ctx, c)
	m := join(t, c, topology.Node{ID: "n1", Addr: "a:1"})
	check(t, steering.Assign(ctx, command, spreadOver(t, 1, "n1")))
	check(t, putDocument(ctx, docs, "home", []byte("name: home")))
	await(t, "the document is there", docs.Changed, func() bool { return docs.Current()["home"].Body != "" })
	await(t, "the map is there", w.Changed, func() bool { return w.Current().Epoch() == 1 && w.Fault() == nil })

	huge := strings.Repeat("[", 3<<19-1000)
	for _, key := range []string{"map/assignment", "map/last", "map/nodes/n2", "map/known/n3", "map/ready/n2", "map/lag/n2", "map/state/n2", "docs/feeds/home", "docs/feeds/other", "trace/viewer"} {
		etcd.put("/millrace/test/"+key, huge)
	}
	await(t, "the documents are told", docs.Changed, func() bool {
		return docs.Fault() != nil && strings.Contains(docs.Fault().Error(), "home") && strings.Contains(docs.Fault().Error(), "other")
	})
	await(t, "the map is told", w.Changed, func() bool {
		f := fmt.Sprint(w.Fault())
		return strings.Contains(f, "assignment") && strings.Contains(f, "lag/n2") && strings.Contains(f, "nodes/n2") && strings.Contains(f, "ready/n2") && strings.Contains(f, "state/n2")
	})
	if w.Current().Epoch() != 1 || len(w.Current().Nodes()) != 1 || docs.Current()["home"].Body != "name: home" || len(docs.Current()) != 1 || traced.Has("viewer") {
		t.Errorf("epoch %d, nodes %v, documents %v", w.Current().Epoch(), w.Current().Nodes(), docs.Current())
	}
	m.SetAnswering(topology.All(), topology.Lag{})
	await(t, "n1 is ready", w.Changed, func() bool { return w.Current().Ready("n1") == topology.All() })
	check(t, putDocument(ctx, docs, "jobs", []byte("name: jobs")))
	await(t, "another document is there", docs.Changed, func() bool { return docs.Current()["jobs"].Body != "" })
	check(t, steering.Assign(ctx, command, spreadOver(t, 2, "n1")))
	await(t, "another map is there", w.Changed, func() bool { return w.Current().Epoch() == 2 })
}

// Who waits for the newest change of a kind does not wait for what is left out: a name
// that nobody here writes, or a value that is too large, stopped guards and commands.
func TestWhatIsLeftOutIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open(t.TempDir())
	join(t, c, topology.Node{ID: "n1", Addr: "a:1"})
	check(t, steering.Assign(ctx, c, spreadOver(t, 1, "n1")))
	a, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	v, _, err := a.Publish(ctx, "m", "1", []byte("a pack"), "somebody")
	check(t, err)
	check(t, a.Serve(ctx, v, nil, "somebody"))
	for i, odd := range []string{"a b", "a/b", "large"} {
		etcd.put("/millrace/test/docs/models/"+odd, map[bool]string{false: "x", true: strings.Repeat("[", 1<<20+1)}[odd == "large"])
		check(t, a.Settle(ctx))
		if _, by := a.GoesBy(); by.Revision != a.Revision() || len(by.Not) > 0 {
			t.Errorf("beside %q it goes by %+v, of %d", odd, by, a.Revision())
		}
		if want := fmt.Sprintf("etcdctl del %q", "/millrace/test/docs/models/"+odd); odd != "large" && !strings.Contains(a.Fault().Error(), want) {
			t.Errorf("%v; want %s", a.Fault(), want)
		}
		next, _, err := a.Publish(ctx, "m", fmt.Sprint(i+2), fmt.Append(nil, "pack ", i), "somebody")
		check(t, err)
		check(t, a.Settle(ctx))
		check(t, a.ServeAt(ctx, next, a.Revision(), nil, "somebody"))
	}
}

// What etcd answers with at once is bounded before it is read (P20).
func TestAnAnswerOfEtcdIsBounded(t *testing.T) {
	cluster.SetMaxAnswer(t, 1<<20) // so not in parallel
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	docs := documentsOf(t, c)
	check(t, putDocument(ctx, docs, "home", []byte("name: home")))
	await(t, "the document is there", docs.Changed, func() bool { return docs.Current()["home"].Body != "" })
	for i := range 3 {
		check(t, putDocument(ctx, docs, fmt.Sprint("large", i), noise(9, 400<<10)))
	}
	await(t, "it is told", docs.Changed, func() bool {
		return docs.Fault() != nil && strings.Contains(docs.Fault().Error(), "more than 1048576 bytes")
	})
	if docs.Current()["home"].Body != "name: home" {
		t.Error("the last good document went")
	}
	check(t, docs.Delete(ctx, "large0"))
	await(t, "all is well", docs.Changed, func() bool { return docs.Fault() == nil && len(docs.Current()) == 3 })
}

// What a process holds of etcd is bounded together, under however many prefixes,
// in one piece or in parts: what is too much is told, the last good one stays,
// and all is well again when there is room.
func TestAllOfEtcdIsBounded(t *testing.T) {
	cluster.SetMaxHeld(t, 8<<20) // so not in parallel
	ctx, etcd := t.Context(), startEtcd(t)
	var log logged
	c := etcd.openLogging("", slog.New(slog.NewTextHandler(&log, nil)))
	kinds := map[string]*documents.Kind{}
	for _, kind := range []string{"feeds", "experiments", "others"} {
		d, err := documents.Watch(ctx, c, kind)
		check(t, err)
		kinds[kind] = d
		check(t, putDocument(ctx, d, "home", []byte("good")))
		await(t, "the document is there", d.Changed, func() bool { return d.Current()["home"].Body == "good" })
	}
	feeds, experiments, others := kinds["feeds"], kinds["experiments"], kinds["others"]
	check(t, putDocument(ctx, feeds, "parts", noise(1, 4<<20)))
	await(t, "it is there", feeds.Changed, func() bool { return len(feeds.Current()) == 2 })
	for i := range 3 {
		check(t, putDocument(ctx, experiments, fmt.Sprint("large", i), noise(2, 1<<20)))
	}
	await(t, "they are there", experiments.Changed, func() bool { return len(experiments.Current()) == 4 })
	full := func(d *documents.Kind) func() bool {
		return func() bool { return d.Fault() != nil && strings.Contains(d.Fault().Error(), "are more than 8388608") }
	}
	for i := range 2 { // in one piece
		check(t, putDocument(ctx, others, fmt.Sprint("large", i), noise(3, 1<<20)))
	}
	await(t, "it is told", others.Changed, full(others))
	if !log.has("what etcd holds is left as it was") {
		t.Errorf("the log does not tell it:\n%s", &log)
	}
	check(t, putDocument(ctx, feeds, "more", noise(4, 3<<20))) // in parts
	await(t, "it is told", feeds.Changed, full(feeds))
	if c.Held() > 8<<20 {
		t.Errorf("%d bytes are held", c.Held())
	}
	if others.Current()["home"].Body != "good" || len(feeds.Current()) != 2 || len(feeds.Current()["parts"].Body) != 4<<20 || experiments.Fault() != nil {
		t.Error("what was good is gone")
	}
	check(t, feeds.Delete(ctx, "parts"))
	await(t, "there is room for one", feeds.Changed, func() bool { return feeds.Fault() == nil && len(feeds.Current()) == 2 })
	check(t, experiments.Delete(ctx, "large0"))
	await(t, "and for the other", others.Changed, func() bool { return others.Fault() == nil && len(others.Current()) == 3 })
}

// What stands beside the documents, such as the bytes of models, is no part of
// what a restoration reads of etcd: it may be far more than an answer.
func TestRestoreReadsNoBodies(t *testing.T) {
	cluster.SetMaxAnswer(t, 2<<20) // so not in parallel
	ctx, etcd, dir := t.Context(), startEtcd(t), t.TempDir()
	c := etcd.open(dir)
	w, docs := watch(t, c), documentsOf(t, c)
	check(t, steering.Assign(ctx, c, spreadOver(t, 1, "n1", "n2")))
	for i := range 2 {
		check(t, putDocument(ctx, docs, fmt.Sprint("large", i), noise(9, 3<<19)))
	}
	await(t, "the documents are there", docs.Changed, func() bool { return len(docs.Current()) == 2 })
	await(t, "the map is there", w.Changed, func() bool { return w.Current().Epoch() == 1 })
	check(t, c.Close()) // what is kept is on the disk then
	if _, err := restoration.Restore(ctx, etcd.command(), dir); !errors.Is(err, restoration.ErrNothingLost) {
		t.Error(err)
	}
}

// Another etcd under the same address is not believed, whatever it holds
// (input 114), and a process that starts does not believe it either.
func TestAForeignEtcdIsNotBelieved(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	etcd := startEtcd(t)
	c := etcd.open(dir)
	w, docs := watch(t, c), documentsOf(t, c)
	check(t, putDocument(ctx, docs, "home", []byte("name: home")))
	check(t, steering.Assign(ctx, c, spreadOver(t, 1, "n1", "n2")))
	await(t, "the document is there", docs.Changed, func() bool { return docs.Current()["home"].Body != "" })
	await(t, "the map is there", w.Changed, func() bool { return w.Current().Epoch() == 1 })

	etcd.stop()
	etcd.empty()
	etcd.token = "foreign"
	etcd.start()
	other := etcd.open("")
	check(t, steering.Assign(ctx, other, spreadOver(t, 1, "x1", "x2")))
	check(t, steering.Assign(ctx, other, spreadOver(t, 2, "x1", "x2")))
	check(t, putDocument(ctx, documentsOf(t, other), "home", []byte("foreign")))
	foreign := func(w *cluster.Watcher, d *documents.Kind) {
		t.Helper()
		await(t, "the map is told", w.Changed, func() bool { return w.Fault() != nil && strings.Contains(w.Fault().Error(), "another etcd cluster") })
		await(t, "the documents are told", d.Changed, func() bool { return d.Fault() != nil && strings.Contains(d.Fault().Error(), "another etcd cluster") })
		if w.Current().Epoch() != 1 || w.Current().Replicas(0)[0] == "x1" || d.Current()["home"].Body != "name: home" {
			t.Errorf("epoch %d on %v, %v", w.Current().Epoch(), w.Current().Replicas(0), d.Current())
		}
	}
	foreign(w, docs)
	check(t, c.Close())
	c = etcd.open(dir)
	foreign(watch(t, c), documentsOf(t, c))
	if _, err := restoration.Restore(ctx, c); errors.Is(err, restoration.ErrNothingLost) || err == nil {
		t.Errorf("restoring from nothing gives %v", err)
	}
}

// Names that nobody here would write are left out and told: names become labels
// of metrics, files and lines.
func TestDocumentsOfStrangeNames(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	d, err := documents.Watch(ctx, c, "feeds")
	check(t, err)
	check(t, putDocument(ctx, d, "good", []byte("1")))
	for _, name := range []string{"\xff\xfe", strings.Repeat("a", 64), "a b", "\x1b[2J"} {
		etcd.put("/millrace/test/docs/feeds/"+name, "1")
	}
	await(t, "they are told", d.Changed, func() bool { return d.Fault() != nil && strings.Count(d.Fault().Error(), "is left out") == 4 })
	if got := d.Current(); len(got) != 1 || got["good"].Body == "" {
		t.Errorf("%v", got)
	}
	for i := range 20 {
		etcd.put(fmt.Sprintf("/millrace/test/docs/feeds/stray %d", i), "1")
	}
	says := map[string]int{} // one text, since each is logged
	for range 5 {
		again, err := documents.Watch(ctx, c, "feeds")
		check(t, err)
		says[again.Fault().Error()]++
	}
	if len(says) != 1 {
		t.Errorf("the same fault in %d texts: %v", len(says), says)
	}
	for text := range says {
		if strings.Count(text, "is left out") != 5 || !strings.Contains(text, "and 19 more") {
			t.Errorf("it tells %s", text)
		}
	}
}

// An etcd that went back to an older state is told to who looks for the first
// time, though its assignment is the one that nodes remember; once it is
// restored, it is not.
func TestARollbackIsToldToWhoLooks(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	dir := t.TempDir()
	c := etcd.open(dir)
	docs, w := documentsOf(t, c), watch(t, c)
	check(t, steering.Assign(ctx, c, spreadOver(t, 1, "n1")))
	join(t, c, topology.Node{ID: "n1", Addr: "a:1"})
	await(t, "the node is there", w.Changed, func() bool { return w.Current().Alive("n1") })
	etcd.stop()
	backup := t.TempDir()
	check(t, os.CopyFS(backup, os.DirFS(etcd.dir)))
	etcd.start()
	check(t, putDocument(ctx, docs, "home", []byte("new")))
	await(t, "it is heard", docs.Changed, func() bool { return docs.Current()["home"].Body == "new" })
	for range 100 {
		etcd.put("/elsewhere", "")
	}
	check(t, putDocument(ctx, docs, "home", []byte("newer")))
	await(t, "it is heard", docs.Changed, func() bool { return docs.Current()["home"].Body == "newer" })
	lost := func() string {
		other := etcd.open("")
		defer other.Close()
		return watch(t, other).Current().Lost()
	}
	if got := lost(); got != "" {
		t.Fatalf("before: %s", got)
	}
	etcd.stop()
	etcd.empty()
	check(t, os.CopyFS(etcd.dir, os.DirFS(backup)))
	etcd.start()
	for began := time.Now(); lost() == ""; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > 60*time.Second {
			t.Fatal("nobody is told")
		}
	}
	_, err := restoration.Restore(ctx, c, dir)
	check(t, err)
	for began := time.Now(); lost() != ""; time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > 60*time.Second {
			t.Fatal("it is told after it was restored")
		}
	}
}
