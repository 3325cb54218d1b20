package cluster_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// lead waits to lead.
func lead(t *testing.T, c *cluster.Client, name string) *cluster.Lead {
	t.Helper()
	l, err := c.Lead(t.Context(), cluster.Leader{Name: name})
	check(t, err)
	return l
}

// put returns a change of one document.
func put(name, body string) func(*steering.State) error {
	return func(s *steering.State) error { s.Documents[name] = body; return nil }
}

// A key that names a leader and has no lease, which no process has written, keeps nobody from
// leading, whether somebody did when it was written or not.
func TestALeaderWithoutALeaseIsNone(t *testing.T) {
	s := startEtcd(t)
	a, b := s.open(""), s.open("")
	forged := func() {
		s.raw(func(c *clientv3.Client) error {
			_, err := c.Put(t.Context(), "/millrace/test/leader", `{"name":"evil"}`)
			return err
		})
	}
	forged()
	first := lead(t, a, "a")
	forged() // the lease that ends is not the key's any more
	second := lead(t, b, "b")
	check(t, steering.Change(t.Context(), b, second, put("plan", "2")))
	if err := steering.Change(t.Context(), a, first, put("plan", "3")); !errors.Is(err, cluster.ErrNotLeader) {
		t.Errorf("a leader that is none writes: %v", err)
	}
}

// One process leads; the next one when it resigns, or when its key is gone,
// whatever the first one believes.
func TestOneLeads(t *testing.T) {
	s := startEtcd(t)
	a, b := s.open(""), s.open("")
	first := lead(t, a, "a")
	check(t, steering.Change(t.Context(), a, first, put("plan", "1")))

	second := make(chan *cluster.Lead, 1)
	go func() {
		l, err := b.Lead(context.Background(), cluster.Leader{Name: "b"})
		if err != nil {
			t.Error(err)
		}
		second <- l
	}()
	if who, ok, err := b.Leader(t.Context()); err != nil || !ok || who.Name != "a" {
		t.Errorf("%v, %v, %v leads", who, ok, err)
	}
	s.raw(deleteKey("/millrace/test/leader")) // as its lease does, while it is frozen
	l := <-second
	check(t, steering.Change(t.Context(), b, l, put("plan", "2")))
	if err := steering.Change(t.Context(), a, first, put("plan", "3")); !errors.Is(err, cluster.ErrNotLeader) {
		t.Errorf("a leader that is none writes: %v", err)
	}
	first.Resign(t.Context()) // takes nothing from the other
	check(t, steering.Change(t.Context(), b, l, put("plan", "4")))
	l.Resign(t.Context())
	if _, ok, err := b.Leader(t.Context()); ok || err != nil {
		t.Errorf("somebody leads after both resigned: %v", err)
	}
	select {
	case <-first.Lost():
	case <-time.After(time.Minute):
		t.Error("the first one still believes that it leads")
	}
	if got, err := steering.Read(t.Context(), a); err != nil || got.Documents["plan"] != "4" {
		t.Errorf("the plan is %q, %v", got.Documents["plan"], err)
	}
}

// Documents and assignment change together or not at all, and never over
// somebody else's change.
func TestSteerIsOneTransaction(t *testing.T) {
	s := startEtcd(t)
	c := s.open("")
	join(t, c, topology.Node{ID: "a", Addr: "127.0.0.1:1"})
	w := watch(t, c)
	await(t, "a", w.Changed, func() bool { return w.Current().Alive("a") })
	first := spreadOver(t, 1, "a")
	check(t, steering.Change(t.Context(), c, nil, func(s *steering.State) error {
		s.Assignment, s.Documents["plan"] = first, "one"
		return nil
	}))
	got, err := steering.Read(t.Context(), c)
	check(t, err)
	if got.Assignment.Epoch != 1 || got.Documents["plan"] != "one" || !got.Map.Alive("a") {
		t.Errorf("epoch %d, plan %q, alive %v", got.Assignment.Epoch, got.Documents["plan"], got.Map.Alive("a"))
	}

	for name, race := range map[string]func(*steering.State) error{
		"document":   put("plan", "theirs"),
		"other":      put("intent", "theirs"),
		"assignment": func(s *steering.State) error { s.Assignment.Wanted = 2; return nil },
	} {
		err := steering.Change(t.Context(), c, nil, func(s *steering.State) error {
			check(t, steering.Change(t.Context(), c, nil, race))
			s.Documents["plan"] = "mine"
			s.Assignment.Wanted = 5
			return nil
		})
		if !errors.Is(err, steering.ErrRaced) {
			t.Errorf("beside a change of the %s: %v", name, err)
		}
	}
	got, err = steering.Read(t.Context(), c)
	check(t, err)
	if got.Documents["plan"] != "theirs" || got.Assignment.Wanted != 2 || got.Assignment.Epoch != 2 {
		t.Errorf("plan %q, wanted %d, epoch %d", got.Documents["plan"], got.Assignment.Wanted, got.Assignment.Epoch)
	}
	unknown := func(s *steering.State) error { s.Assignment.Replicas[7] = []millrace.NodeID{"stranger"}; return nil }
	if err := steering.Change(t.Context(), c, nil, unknown); !errors.Is(err, topology.ErrUnknownOwner) {
		t.Errorf("an owner that nobody knows: %v", err)
	}
}

// What somebody else left among the documents, whatever it is, hinders nobody.
func TestAStrayDocumentHindersNobody(t *testing.T) {
	s := startEtcd(t)
	c := s.open("")
	for key, body := range map[string]string{"Bad name!": "x", "big": strings.Repeat("x", 1<<20+1)} {
		_, err := c.Etcd().Put(t.Context(), c.Prefix()+"steer/"+key, body)
		check(t, err)
	}
	check(t, steering.Change(t.Context(), c, nil, put("plan", "1")))
	if err := steering.Change(t.Context(), c, nil, put("Bad name?", "1")); err == nil {
		t.Error("a document of any name is written")
	}
	if err := steering.Change(t.Context(), c, nil, put("plan", strings.Repeat("x", 1<<20+1))); err == nil {
		t.Error("a document of any size is written")
	}
}

// An assignment beside the coordinator's is for what was looked at: none is made where
// a document changes meanwhile, or etcd is found to have gone back.
func TestAssignmentsAreForWhatWasSeen(t *testing.T) {
	s := startEtcd(t)
	c := s.open("")
	join(t, c, topology.Node{ID: "a", Addr: "127.0.0.1:1"})
	first, nothing := spreadOver(t, 1, "a"), func(*steering.State) error { return nil }
	if err := steering.AssignIf(t.Context(), c, first, false, func(*steering.State) error {
		return steering.Change(t.Context(), c, nil, put("plan", "theirs"))
	}); !errors.Is(err, steering.ErrRaced) {
		t.Errorf("beside a plan that begins: %v", err)
	}
	back := func(*steering.State) error {
		_, err := c.Etcd().Put(t.Context(), c.SetbackKey(), `{"of":"state"}`)
		return err
	}
	if err := steering.AssignIf(t.Context(), c, first, false, back); !errors.Is(err, cluster.ErrLost) {
		t.Errorf("as etcd is found to have gone back: %v", err)
	}
	if _, ok, err := steering.Assigned(t.Context(), c); ok || err != nil {
		t.Errorf("it is assigned: %v, %v", ok, err)
	}
	if err := steering.AssignIf(t.Context(), c, first, true, nothing); err != nil {
		t.Errorf("where it is meant: %v", err)
	}
}

// deleteKey removes a key past this package.
func deleteKey(key string) func(*clientv3.Client) error {
	return func(c *clientv3.Client) error { _, err := c.Delete(context.Background(), key); return err }
}
