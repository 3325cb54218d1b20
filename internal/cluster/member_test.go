package cluster_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/datadir"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// registered waits until a node is registered.
func registered(t *testing.T, m *members.Membership) {
	t.Helper()
	await(t, "the node is registered", m.Changed, func() bool { return m.Fault() == nil })
}

// notRegistered waits until a node's registration fails for a reason.
func notRegistered(t *testing.T, m *members.Membership, text string) {
	t.Helper()
	await(t, "the registration fails: "+text, m.Changed, func() bool { return m.Fault() != nil && strings.Contains(m.Fault().Error(), text) })
}

func join(t *testing.T, c *cluster.Client, n topology.Node) *members.Membership {
	t.Helper()
	m, err := members.Join(t.Context(), c, n)
	check(t, err)
	return m
}

func watch(t *testing.T, c *cluster.Client) *cluster.Watcher {
	t.Helper()
	w, err := c.Watch(t.Context())
	check(t, err)
	return w
}

// holder is the address under which etcd has a node registered.
func holder(w *cluster.Watcher, id millrace.NodeID) string {
	n, _ := w.Current().Node(id)
	if !w.Current().Alive(id) {
		return ""
	}
	return n.Addr
}

const nodeKey = "/millrace/test/map/nodes/n1"

// A node joins without etcd, says what it has to say, and all of that is told
// once etcd is there.
func TestJoinDoesNotWaitForEtcd(t *testing.T) {
	t.Parallel()
	etcd, dir := startEtcd(t), t.TempDir()
	a, err := topology.Spread([]millrace.NodeID{"n1"}, 1)
	check(t, err)
	a.AllowUnknown = true
	c := etcd.open(dir)
	w := watch(t, c)
	check(t, steering.Assign(t.Context(), c, a))
	await(t, "the assignment is there", w.Changed, func() bool { return w.Current().Epoch() == 1 })
	check(t, c.Close())
	etcd.stop()

	c = etcd.open(dir)
	w = watch(t, c)
	m := join(t, c, topology.Node{ID: "n1", Addr: "a:1"})
	notRegistered(t, m, "etcd is away")
	lag := topology.Lag{Seconds: 3, Behind: topology.All()}
	m.SetAnswering(topology.Set{}, topology.Lag{})
	m.SetAnswering(topology.All(), lag)
	m.SetReports([]topology.Report{{State: "stale", Reason: "kafka_away"}})
	if m.Fault() == nil {
		t.Fatal("registered without etcd")
	}
	etcd.start()
	registered(t, m)
	await(t, "all is told", w.Changed, func() bool {
		m := w.Current()
		return m.Alive("n1") && m.Ready("n1") == topology.All() && m.Lag("n1") == lag && len(m.Reports("n1")) == 1
	})
}

// A second process of a name waits, tells who has it, and takes it over when
// it is free. What it says in the meantime changes nothing.
func TestASecondProcessOfANodeIsRefused(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	w := watch(t, etcd.open(""))
	first, second := etcd.open(""), etcd.open("")
	one := join(t, first, topology.Node{ID: "n1", Addr: "a:1", Instance: "one"})
	registered(t, one)
	one.SetAnswering(topology.All(), topology.Lag{})
	two := join(t, second, topology.Node{ID: "n1", Addr: "a:2", Instance: "two"})
	notRegistered(t, two, "at a:1")
	two.SetAnswering(topology.Set{}, topology.Lag{Seconds: 1})
	await(t, "the first is ready", w.Changed, func() bool { return w.Current().Ready("n1") == topology.All() })
	check(t, two.Leave(ctx)) // touches nothing
	etcd.raw(func(e *clientv3.Client) error {
		for _, key := range []string{nodeKey, "/millrace/test/map/ready/n1"} {
			if got, err := e.Get(ctx, key); err != nil || len(got.Kvs) != 1 {
				t.Errorf("%s after the second process left: %v, %v", key, got, err)
			}
		}
		if got, err := e.Get(ctx, "/millrace/test/map/left/n1"); err != nil || len(got.Kvs) != 0 {
			t.Errorf("the first process counts as gone: %v, %v", got, err)
		}
		return nil
	})
	if got := holder(w, "n1"); got != "a:1" {
		t.Fatalf("n1 is at %q", got)
	}

	three := join(t, second, topology.Node{ID: "n1", Addr: "a:3", Instance: "three"})
	notRegistered(t, three, "at a:1")
	check(t, one.Leave(ctx))
	registered(t, three)
	await(t, "the third has the name", w.Changed, func() bool { return holder(w, "n1") == "a:3" })
}

// A process that is restarted has its name back at once, though the lease of
// the one before still holds; one that died for good has it taken when its
// lease ends.
func TestARestartTakesTheNameOver(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	w := watch(t, etcd.open(""))
	dead := etcd.open("")
	one := join(t, dead, topology.Node{ID: "n1", Addr: "a:1", Instance: "one"})
	registered(t, one)
	check(t, dead.Close()) // as if killed: the registration stays

	again := etcd.open("")
	two := join(t, again, topology.Node{ID: "n1", Addr: "a:2", Instance: "one"})
	var faults []string
	await(t, "the restarted process is registered", two.Changed, func() bool {
		if err := two.Fault(); err != nil {
			faults = append(faults, err.Error())
		}
		return two.Fault() == nil
	})
	if strings.Contains(strings.Join(faults, ""), "another process") {
		t.Errorf("the restarted process was refused: %q", faults)
	}
	await(t, "the restarted process has the name", w.Changed, func() bool { return holder(w, "n1") == "a:2" })

	check(t, again.Close())
	three := join(t, etcd.open(""), topology.Node{ID: "n1", Addr: "a:3", Instance: "three"})
	notRegistered(t, three, "at a:2")
	registered(t, three) // when the lease has ended
}

// A process whose registration is removed, or was overwritten by one that is
// gone again, registers again by itself, with all that it said.
func TestALivingProcessRegistersAgain(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	c := etcd.open("")
	w := watch(t, c)
	m := join(t, c, topology.Node{ID: "n1", Addr: "a:1"})
	registered(t, m)
	m.SetAnswering(topology.All(), topology.Lag{Seconds: 7})
	told := func() bool {
		m := w.Current()
		return holder(w, "n1") == "a:1" && m.Ready("n1") == topology.All() && m.Lag("n1").Seconds == 7
	}
	await(t, "all is told", w.Changed, told)

	etcd.loses(nodeKey)
	await(t, "it is registered again", w.Changed, told)

	// What it says of itself is mended, too.
	etcd.loses("/millrace/test/map/ready/n1")
	await(t, "what is ready is told again", w.Changed, told)

	// Another has the name for the length of its lease.
	body, err := json.Marshal(topology.Node{ID: "n1", Addr: "a:9", Instance: "nine"})
	check(t, err)
	etcd.raw(func(e *clientv3.Client) error {
		lease, err := e.Grant(ctx, 5)
		if err == nil {
			_, err = e.Put(ctx, nodeKey, string(body), clientv3.WithLease(lease.ID))
		}
		return err
	})
	notRegistered(t, m, "at a:9")
	registered(t, m)
	await(t, "it has its name back", w.Changed, told)
}

// A process that was frozen, and whose name was given away in the meantime,
// neither overwrites the other nor removes it.
func TestAFrozenProcessDoesNotTakeItsNameBack(t *testing.T) {
	t.Parallel()
	ctx, etcd := t.Context(), startEtcd(t)
	w := watch(t, etcd.open(""))
	pipe := startPipe(t, etcd.addr)
	frozen, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{pipe.addr()}, Name: "test", Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer frozen.Close()
	one := join(t, frozen, topology.Node{ID: "n1", Addr: "a:1", Instance: "one"})
	registered(t, one)
	pipe.freeze()
	two := join(t, etcd.open(""), topology.Node{ID: "n1", Addr: "a:2", Instance: "two"})
	notRegistered(t, two, "at a:1")
	registered(t, two)
	two.SetAnswering(topology.All(), topology.Lag{})
	one.SetAnswering(topology.Set{}, topology.Lag{})
	pipe.thaw()
	notRegistered(t, one, "at a:2")
	check(t, one.Leave(ctx))
	await(t, "the second is ready", w.Changed, func() bool { return holder(w, "n1") == "a:2" && w.Current().Ready("n1") == topology.All() })
}

// Two processes of one instance are a copied directory: the name does not go
// back and forth between them.
func TestACopiedDirectoryIsTold(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	one := filepath.Join(t.TempDir(), "data")
	first, second := etcd.open(""), etcd.open("")
	living := join(t, first, topology.Node{ID: "n1", Addr: "a:1", Dir: instance(t, one)})
	registered(t, living)
	dir := copied(t, one)
	w := watch(t, second)
	copy := join(t, second, topology.Node{ID: "n1", Addr: "a:2", Dir: instance(t, dir)})
	notRegistered(t, copy, "is a copy")
	for range 2 { // signs of life, until long after a dead one would have lost the name
		for before := seenAt(t, second); !seenAt(t, second).After(before); {
			time.Sleep(50 * time.Millisecond) // until it is heard again
		}
	}
	if err := living.Fault(); err != nil || holder(w, "n1") != "a:1" {
		t.Fatalf("the name is with %s; the first says: %v", holder(w, "n1"), err)
	}

	// It is away for a moment, and the directory that is there may have been
	// moved: the copy has the name, and the first one does not take it back.
	check(t, first.Close())
	registered(t, copy)
	again := join(t, etcd.open(""), topology.Node{ID: "n1", Addr: "a:1", Dir: instance(t, one)})
	notRegistered(t, again, "is a copy")
}

// A copy from before the last registration of the original is refused also
// while nobody has the name.
func TestAnOutdatedCopyIsRefused(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	one := filepath.Join(t.TempDir(), "data")
	instance(t, one)
	dir := copied(t, one)
	for range 2 { // since the copy
		m := join(t, etcd.open(""), topology.Node{ID: "n1", Addr: "a:1", Dir: instance(t, one)})
		registered(t, m)
		check(t, m.Leave(t.Context()))
	}
	notRegistered(t, join(t, etcd.open(""), topology.Node{ID: "n1", Addr: "a:2", Dir: instance(t, dir)}), "has registered since")
	registered(t, join(t, etcd.open(""), topology.Node{ID: "n1", Addr: "a:3", Dir: instance(t, copied(t, one))})) // or moved
}

// A registration is noted in the data directory before etcd has it, or as soon as
// that can be written: the directory is no outdated copy when it has moved.
func TestARegistrationIsNotedBeforeItIsMade(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	dir := filepath.Join(t.TempDir(), "data")
	instance(t, dir)
	file := filepath.Join(dir, datadir.IdentityFile) + ".new"
	check(t, syscall.Mkfifo(file, 0o600)) // who writes it waits
	w := watch(t, etcd.open(""))
	var log logged
	m := join(t, etcd.openLogging("", slog.New(slog.NewTextHandler(&log, nil))), topology.Node{ID: "n1", Addr: "a:1", Dir: instance(t, dir)})
	time.Sleep(time.Second)
	if at := holder(w, "n1"); at != "" {
		t.Errorf("it is registered, at %s, and not noted", at)
	}
	pipe, err := os.OpenFile(file, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	check(t, err)
	defer pipe.Close()
	check(t, os.Remove(file)) // what was written is lost, since a pipe cannot be synced
	registered(t, m)
	if !log.has("the registration is not noted in the data directory") {
		t.Errorf("the log does not tell it:\n%s", &log)
	}
	long := time.After(30 * time.Second)
	for instance(t, dir).Start != 1 {
		select {
		case <-long:
			t.Fatal("it is never noted")
		case <-time.After(50 * time.Millisecond):
		}
	}
	check(t, m.Leave(t.Context()))
	moved := instance(t, dir)
	moved.Place = "elsewhere"
	registered(t, join(t, etcd.open(""), topology.Node{ID: "n1", Addr: "a:2", Dir: moved}))
}

// copied returns a copy of a directory.
func copied(t *testing.T, dir string) string {
	t.Helper()
	copy := filepath.Join(t.TempDir(), "copy")
	check(t, os.CopyFS(copy, os.DirFS(dir)))
	return copy
}

func instance(t *testing.T, dir string) datadir.Instance {
	t.Helper()
	i, err := datadir.CheckDir(dir, "c", "n1")
	check(t, err)
	return i
}

// seenAt returns when n1 last said that it lives.
func seenAt(t *testing.T, c *cluster.Client) time.Time {
	t.Helper()
	seen, err := members.Seen(t.Context(), c)
	check(t, err)
	return seen["n1"]
}

func TestReportsAreTold(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	c := etcd.open("")
	w := watch(t, c)
	m := join(t, c, topology.Node{ID: "n1", Addr: "a:1"})
	report := topology.Report{State: "quarantined", Reason: "log_begins_later", Detail: "the log begins at 7", Since: time.Unix(1e9, 0).UTC(), Seconds: 2.5}
	report.Partitions.Add(719)
	m.SetReports([]topology.Report{report})
	await(t, "the report is told", w.Changed, func() bool {
		got := w.Current().Reports("n1")
		return len(got) == 1 && got[0] == report
	})
	m.SetReports(nil)
	await(t, "the report ends", w.Changed, func() bool { return len(w.Current().Reports("n1")) == 0 })
}

func TestCheckDir(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	instance, err := datadir.CheckDir(dir, "c", "n1")
	if err != nil || instance.Word == "" {
		t.Fatalf("a new directory: %+v, %v", instance, err)
	}
	if again, err := datadir.CheckDir(dir, "c", "n1"); err != nil || again != instance {
		t.Fatalf("after a restart: %+v, %v", again, err)
	}
	for _, other := range []struct {
		name string
		id   millrace.NodeID
	}{{"c", "n2"}, {"d", "n1"}, {"c", ""}} {
		_, err := datadir.CheckDir(dir, other.name, other.id)
		if err == nil || !strings.Contains(err.Error(), `belongs to node "n1" of cluster "c"`) {
			t.Errorf("taken for %+v: %v", other, err)
		}
	}
	check(t, os.WriteFile(filepath.Join(dir, "identity.json"), []byte("{"), 0o644))
	if fresh, err := datadir.CheckDir(dir, "c", "n1"); err != nil || fresh.Word == instance.Word {
		t.Errorf("with a damaged identity: %+v, %v", fresh, err)
	}
}

func TestJoinRefusesWhatIsNoNode(t *testing.T) {
	t.Parallel()
	c := startEtcd(t).open("")
	for _, n := range []topology.Node{{Addr: "a:1"}, {ID: "../n", Addr: "a:1"}, {ID: "n1"}, {ID: "n1", Addr: "a:1", Weight: -1}, {ID: "n1", Addr: "a:1", Weight: topology.MaxWeight + 1}} {
		if _, err := members.Join(context.Background(), c, n); err == nil {
			t.Errorf("%+v joined", n)
		}
	}
}
