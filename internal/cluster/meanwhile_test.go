package cluster_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/ledger"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// What somebody else writes between the read and the write of an act is not written over: the
// act is tried again, a number of times, or refused.
func TestWhatOthersWriteMeanwhileStays(t *testing.T) {
	t.Parallel()
	var meanwhile atomic.Pointer[func()] // what somebody else does before each transaction
	etcd := &server{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	etcd.judge = func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if txn, ok := req.(*etcdserverpb.TxnRequest); ok && len(txn.Compare) > 0 {
			if do := meanwhile.Load(); do != nil {
				(*do)()
			}
		}
		return handle(ctx, req)
	}
	etcd.start()
	t.Cleanup(etcd.stop)
	raw, err := clientv3.New(clientv3.Config{Endpoints: []string{etcd.addr}})
	check(t, err)
	t.Cleanup(func() { _ = raw.Close() })
	ctx, writes := t.Context(), 0
	others := func(key, value string, do func() error) error {
		writes = 0
		write := func() {
			writes++
			if _, err := raw.Put(ctx, "/millrace/test/"+key, value); err != nil {
				t.Error(err)
			}
		}
		meanwhile.Store(&write)
		defer meanwhile.Store(nil)
		return do()
	}
	is := func(key string) string {
		got, err := raw.Get(ctx, "/millrace/test/"+key)
		if check(t, err); len(got.Kvs) == 0 {
			return ""
		}
		return string(got.Kvs[0].Value)
	}
	open := func() error {
		c, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{etcd.addr}, Name: "test", Log: slog.New(slog.DiscardHandler)})
		if err == nil {
			err = c.Close()
		}
		return err
	}
	says(t, others("partitions", "719", open), keyspace.ErrPartitions, "719")
	etcdtest.Lose(t, etcd.addr, "/millrace/")
	check(t, others("partitions", "720", open))
	if is("keyspace") != "" {
		t.Error("the keyspace of another process is written over")
	}
	etcdtest.Lose(t, etcd.addr, "/millrace/")

	dir := t.TempDir()
	keeps := etcd.open(dir)
	w := watch(t, keeps)
	check(t, steering.Assign(ctx, keeps, spreadOver(t, 1, "n1", "n2")))
	await(t, "the assignment is known", w.Changed, func() bool { return w.Current().Epoch() == 1 })
	await(t, "it is on disk", func() <-chan struct{} { return closedAfter(t) }, func() bool { files, _ := keeps.Unwritten(); return files == 0 })
	check(t, keeps.Close())
	c := etcd.open("")
	c.SetRelist(10 * time.Millisecond) // a restoration waits for it
	feeds := documents.Of(c, "feeds")
	err = others("docs/feeds/home", "theirs", func() error {
		return feeds.Change(ctx, "home", func(body string) (string, error) { return body + "mine", nil })
	})
	if err == nil || !strings.Contains(err.Error(), "others change it all the time") || writes != cluster.MaxChanges || is("docs/feeds/home") != "theirs" {
		t.Errorf("%v, after %d tries", err, writes)
	}
	says(t, others("steer/plan", "theirs", func() error { return steering.Change(ctx, c, nil, put("plan", "mine")) }), steering.ErrRaced, "at the same time")
	says(t, others("steer/plan", "theirs", func() error {
		return steering.AssignIf(ctx, c, spreadOver(t, 2, "n1", "n2"), false, func(*steering.State) error { return nil })
	}), steering.ErrRaced, "at the same time")
	theirs, err := json.Marshal(spreadOver(t, 5, "n1", "n2"))
	check(t, err)
	says(t, others("map/assignment", string(theirs), func() error { return steering.Assign(ctx, c, spreadOver(t, 2, "n1", "n2")) }), steering.ErrEpoch, "somebody else assigned")
	etcdtest.Lose(t, etcd.addr, "/millrace/test/map/")
	etcdtest.Lose(t, etcd.addr, "/millrace/test/keyspace")
	says(t, others("map/assignment", string(theirs), func() error { _, err := restoration.Restore(ctx, c, dir); return err }), steering.ErrEpoch, "somebody assigned at the same time")
	if r, err := restoration.Restore(ctx, c, dir); err != nil || r.Epoch != 5 { // they have assigned since
		t.Errorf("restored %+v, %v", r, err)
	}
	etcdtest.Lose(t, etcd.addr, "/millrace/test/docs/")

	_, err = secrets.Get(ctx, c, "pages")
	check(t, err)
	g := secrets.Generation{From: time.Now().Add(-time.Minute).Truncate(time.Millisecond)}
	says(t, others(fmt.Sprintf("secrets/pages.%d", g.From.UnixMilli()), strings.Repeat("x", secrets.Size), func() error { return secrets.Rotate(ctx, c, "pages", g, time.Time{}) }), nil, "at the same instant")

	models, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	var all []artefacts.Version
	for i := range 33 {
		if i == 32 { // there is no room
			last := func(v artefacts.Version, history []ledger.Event) bool { return v.Version == "2" && len(history) == 32 }
			models.Spare(func(v artefacts.Version) bool { return v.Version == "1" }, last)
		}
		v, _, err := models.Publish(ctx, "m", "", fmt.Append(nil, i), "ann")
		check(t, err)
		all = append(all, v)
	}
	if got := models.All()["m"]; !slices.Equal(got, slices.Delete(slices.Clone(all), 2, 3)) {
		t.Errorf("%v are left", got)
	}
	body := is("docs/models/m")
	says(t, others("docs/models/m", body, func() error { return models.Serve(ctx, all[1], nil, "ann") }), nil, "others change it all the time; publish it again")
	if _, serves := models.Served("m"); serves || writes != cluster.MaxChanges {
		t.Errorf("it serves, after %d tries", writes)
	}
	looks := 0
	says(t, artefacts.Steady(ctx, c, []string{"models"}, func(ctx context.Context) error {
		looks++
		etcd.put("/millrace/test/docs/models/other", body)
		return models.Serve(ctx, all[1], nil, "ann")
	}), artefacts.ErrMoved, "all the time; try again")
	if looks != cluster.MaxChanges {
		t.Errorf("it is looked at %d times", looks)
	}
	check(t, models.DropUnreadable(ctx, "m", "ann")) // it can be read
	if is("docs/models/m") != body {
		t.Error("a good ledger is dropped")
	}
	etcd.put("/millrace/test/docs/models/bad", "{")
	says(t, others("docs/models/bad", "[", func() error { return models.DropUnreadable(ctx, "bad", "ann") }), artefacts.ErrMoved, "somebody else has changed bad of the models")
	check(t, models.DropUnreadable(ctx, "bad", "ann"))
	if why, err := models.Unreadable(ctx, "bad"); why != nil || err != nil {
		t.Errorf("it cannot be read: %v, %v", why, err)
	}
	events, err := models.History(ctx, "bad")
	if check(t, err); len(events) != 1 || !strings.HasPrefix(events[0].Who, "ann: it could not be read: ") {
		t.Errorf("%+v", events)
	}

	m := join(t, etcd.open(""), topology.Node{ID: "n1", Addr: "a:1"})
	registered(t, m)
	check(t, m.Leave(ctx))
	another := `{"id":"n2","addr":"b:1","instance":"other"}`
	check(t, others("map/nodes/n2", another, func() error {
		m = join(t, etcd.open(""), topology.Node{ID: "n2", Addr: "a:2"})
		notRegistered(t, m, "another process registers as n2 at the same time")
		return nil
	}))
	if is("map/nodes/n2") != another {
		t.Error("the other is no longer registered")
	}
	registered(t, m) // since nobody holds what has no lease
}

// Each call that etcd refuses a node that registers is why it is not registered, until it is. A
// registration whose answer is lost is its own all the same.
func TestANodeThatEtcdRefusesRegistersLater(t *testing.T) {
	t.Parallel()
	var calls, refuses atomic.Int64
	var leaves, loses atomic.Bool
	etcd := &server{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	etcd.judge = func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		md, _ := metadata.FromIncomingContext(ctx)
		if leaves.Load() == (len(md.Get("act")) > 0) && calls.Add(1) == refuses.Load() {
			return nil, status.Error(codes.FailedPrecondition, "refused")
		}
		answer, err := handle(ctx, req)
		if txn, ok := req.(*etcdserverpb.TxnRequest); ok && len(txn.Success) > 5 && loses.Swap(false) {
			return nil, status.Error(codes.FailedPrecondition, "the answer is lost")
		}
		return answer, err
	}
	etcd.start()
	t.Cleanup(etcd.stop)
	var log logged
	c := etcd.openLogging("", slog.New(slog.NewTextHandler(&log, nil)))
	for call := range int64(4) { // two reads, a lease and a transaction
		calls.Store(0)
		refuses.Store(call + 1)
		m := join(t, c, topology.Node{ID: "n1", Addr: "a:1"})
		notRegistered(t, m, "refused")
		if !errors.Is(m.Fault(), cluster.ErrAway) {
			t.Errorf("call %d: %v", call, m.Fault())
		}
		registered(t, m)
		leaves.Store(true)
		calls.Store(0)
		refuses.Store(1 + call%2)
		if err := m.Leave(metadata.AppendToOutgoingContext(t.Context(), "act", "x")); err == nil || !strings.Contains(err.Error(), "cluster: leave n1: ") || !strings.Contains(err.Error(), "refused") {
			t.Errorf("leaves: %v", err)
		}
		refuses.Store(0)
		leaves.Store(false)
		etcdtest.Lose(t, etcd.addr, "/millrace/test/map/")
	}
	m := join(t, c, topology.Node{ID: "n1", Addr: "a:1"})
	registered(t, m)
	loses.Store(true)
	etcdtest.Lose(t, etcd.addr, "/millrace/test/map/nodes/")
	m.SetReports([]topology.Report{{State: "opening"}})
	notRegistered(t, m, "the answer is lost")
	registered(t, m)
	if log.has("another process") {
		t.Errorf("it takes its own registration for another's:\n%s", &log)
	}
}
