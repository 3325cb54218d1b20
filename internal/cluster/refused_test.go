package cluster_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/cluster/brokers"
	"github.com/millrace/millrace/internal/cluster/documents"
	"github.com/millrace/millrace/internal/cluster/etcdtest"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/restoration"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/cluster/steering"
)

// refusing starts an etcd, and returns it with a function that tries an act as many times as
// the act calls etcd: each time another call is refused. All but may of these times the act
// must fail. begin prepares for each time, and returns the act.
func refusing(t *testing.T) (etcd *server, try func(name string, may int, begin func() func(ctx context.Context) error)) {
	var calls, refused atomic.Int64 // of the act under way; the number of the call that is refused
	etcd = &server{t: t, dir: t.TempDir(), addr: "127.0.0.1:0"}
	etcd.judge = func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		if md, _ := metadata.FromIncomingContext(ctx); len(md.Get("act")) > 0 && calls.Add(1) == refused.Load() {
			return nil, status.Error(codes.FailedPrecondition, "refused")
		}
		return handle(ctx, req)
	}
	etcd.start()
	t.Cleanup(etcd.stop)
	return etcd, func(name string, may int, begin func() func(ctx context.Context) error) {
		t.Helper()
		act := func(i int64) (int64, error) {
			do := begin()
			ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), "act", "x"), time.Minute)
			defer cancel()
			calls.Store(0)
			refused.Store(i)
			err := do(ctx)
			refused.Store(0)
			return calls.Load(), err
		}
		all, err := act(0)
		if err != nil || all == 0 {
			t.Errorf("%s: %v, after %d calls", name, err, all)
			return
		}
		passed := 0
		for i := range all {
			if _, err := act(i + 1); err == nil {
				passed++
			}
		}
		if passed > may {
			t.Errorf("%s: %d of %d calls may be refused, want %d", name, passed, all, may)
		}
	}
}

// Whatever etcd refuses of an act, call by call, is an error of the act, and is not taken for
// an answer. A few calls only clean up, and what they leave is cleaned up later.
func TestWhatEtcdRefusesIsAnError(t *testing.T) {
	t.Parallel()
	etcd, try := refusing(t)
	c, dir := etcd.openAs(cluster.Config{Who: "ann"}), t.TempDir()
	c.SetRelist(10 * time.Millisecond) // a restoration waits for it
	ctx := t.Context()
	kept := etcd.open(dir)
	models, err := artefacts.Watch(ctx, c, "models")
	check(t, err)
	condemned, err := artefacts.WatchCondemned(ctx, c)
	check(t, err)
	w := watch(t, kept)
	check(t, steering.Assign(ctx, c, spreadOver(t, 1, "n1", "n2")))
	await(t, "the assignment is kept", w.Changed, func() bool { return w.Current().Epoch() == 1 })
	check(t, kept.Close())
	_, err = secrets.Get(ctx, c, "pages")
	check(t, err)
	feeds := documents.Of(c, "feeds")
	n := 0
	name := func() string { n++; return fmt.Sprint("x", n) }
	publish := func() artefacts.Version {
		t.Helper()
		v, _, err := models.Publish(ctx, "other", "", []byte(name()), "ann")
		check(t, err)
		return v
	}
	bodies := map[artefacts.Version][]byte{}
	for range 6 {
		body := []byte(name())
		v, _, err := models.Publish(ctx, "m", "", body, "ann")
		check(t, err)
		bodies[v] = body
		check(t, models.Serve(ctx, v, nil, "ann"))
	}
	large := []byte(strings.Repeat("x", keyspace.MaxDocumentBytes+1))
	for _, c := range []struct {
		name string
		may  int // how many of its calls may be refused
		act  func() func(ctx context.Context) error
	}{
		{"nothing is lost", 0, func() func(context.Context) error {
			return func(ctx context.Context) error {
				if _, err := restoration.Restore(ctx, c, dir); !errors.Is(err, restoration.ErrNothingLost) {
					return err
				}
				return nil
			}
		}},
		{"list", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := c.List(ctx, cluster.MapPrefix); return err }
		}},
		{"history", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := c.LastRestored(ctx); return err }
		}},
		{"note", 1, func() func(context.Context) error { // trims the history
			return func(ctx context.Context) error { return c.Note(ctx, audit.Entry{Act: "x"}) }
		}},
		{"leader", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, _, err := c.Leader(ctx); return err }
		}},
		{"remembered", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, _, err := c.Remembered(ctx); return err }
		}},
		{"alone", 1, func() func(context.Context) error { // its lease ends by itself
			return func(ctx context.Context) error {
				return c.Alone(ctx, "x", func(context.Context) error { return nil })
			}
		}},
		{"heard", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := brokers.Heard(ctx, c, nil); return err }
		}},
		{"all heard", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := brokers.All(ctx, c); return err }
		}},
		{"trace", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := brokers.Trace(ctx, c, "viewer", time.Minute); return err }
		}},
		{"untrace", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { return brokers.Untrace(ctx, c, "viewer") }
		}},
		{"generations", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := secrets.All(ctx, c, "pages"); return err }
		}},
		{"share", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := secrets.Share(ctx, c, name(), nil); return err }
		}},
		{"rotate", 1, func() func(context.Context) error { // trims the history
			return func(ctx context.Context) error {
				n++
				return secrets.Rotate(ctx, c, "pages", secrets.Generation{From: time.Now().Add(-time.Hour + time.Duration(n)*time.Second)}, time.Time{})
			}
		}},
		{"steering", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := steering.Read(ctx, c); return err }
		}},
		{"assigned", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, _, err := steering.Assigned(ctx, c); return err }
		}},
		{"assign", 1, func() func(context.Context) error { // trims the history
			a, _, err := steering.Assigned(ctx, c)
			check(t, err)
			a.Epoch++
			return func(ctx context.Context) error { return steering.Assign(ctx, c, a) }
		}},
		{"assign if", 1, func() func(context.Context) error {
			a, _, err := steering.Assigned(ctx, c)
			check(t, err)
			a.Epoch++
			return func(ctx context.Context) error {
				return steering.AssignIf(ctx, c, a, false, func(*steering.State) error { return nil })
			}
		}},
		{"steer", 1, func() func(context.Context) error {
			return func(ctx context.Context) error {
				return steering.Change(ctx, c, nil, func(s *steering.State) error {
					s.Documents["plan"], s.Acts = name(), []audit.Entry{{Act: "x"}}
					return nil
				})
			}
		}},
		{"put", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := feeds.PutIf(ctx, name(), []byte("x")); return err }
		}},
		{"put in parts", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := feeds.PutIf(ctx, name(), large); return err }
		}},
		{"delete", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { return feeds.Delete(ctx, "x") }
		}},
		{"change", 0, func() func(context.Context) error {
			return func(ctx context.Context) error {
				return feeds.Change(ctx, "home", func(string) (string, error) { return name(), nil })
			}
		}},
		{"seen", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := members.Seen(ctx, c); return err }
		}},
		{"stats", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := members.Stats(ctx, c); return err }
		}},
		{"publish", 1, func() func(context.Context) error { // sweeps
			return func(ctx context.Context) error {
				_, _, err := models.Publish(ctx, name(), "", []byte(name()), "ann")
				return err
			}
		}},
		{"publish in parts", 1, func() func(context.Context) error {
			return func(ctx context.Context) error {
				_, _, err := models.Publish(ctx, name(), "", append(large, name()...), "ann")
				return err
			}
		}},
		{"serve", 1, func() func(context.Context) error {
			v := models.Before("m")[0]
			return func(ctx context.Context) error { return models.Serve(ctx, v, nil, "ann") }
		}},
		{"roll back", 1, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := models.Rollback(ctx, "m", "ann"); return err }
		}},
		{"rolls back to", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := models.RollsBackTo(ctx, "m"); return err }
		}},
		{"drop", 2, func() func(context.Context) error { // sweeps
			v := publish()
			return func(ctx context.Context) error { return models.Drop(ctx, v, nil, "ann") }
		}},
		{"may drop", 0, func() func(context.Context) error {
			v := models.Before("m")[0]
			return func(ctx context.Context) error { _, err := models.MayDrop(ctx, v, nil); return err }
		}},
		{"events", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := models.History(ctx, "m"); return err }
		}},
		{"settle", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { return models.Settle(ctx) }
		}},
		{"body", 0, func() func(context.Context) error {
			v := models.Before("m")[0]
			return func(ctx context.Context) error { _, err := models.Body(ctx, v); return err }
		}},
		{"condemn", 1, func() func(context.Context) error {
			v := publish()
			return func(ctx context.Context) error { return condemned.Condemn(ctx, models, v, "slow", "n1", time.Now()) }
		}},
		{"release", 1, func() func(context.Context) error {
			v := publish()
			check(t, condemned.Condemn(ctx, models, v, "slow", "n1", time.Now()))
			return func(ctx context.Context) error { return condemned.Release(ctx, models, v, "ann") }
		}},
		{"steadily", 2, func() func(context.Context) error {
			v := publish()
			return func(ctx context.Context) error {
				return artefacts.Steady(ctx, c, []string{"models", "feeds"}, func(ctx context.Context) error { return models.Drop(ctx, v, nil, "ann") })
			}
		}},
		{"bare", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := models.Bare(ctx); return err }
		}},
		{"unreadable", 0, func() func(context.Context) error {
			return func(ctx context.Context) error { _, err := models.Unreadable(ctx, "m"); return err }
		}},
		{"drop unreadable", 1, func() func(context.Context) error { // sweeps
			etcd.put("/millrace/test/docs/models/bad", "{")
			return func(ctx context.Context) error { return models.DropUnreadable(ctx, "bad", "ann") }
		}},
		{"retract", 2, func() func(context.Context) error { // sweeps
			v := publish()
			return func(ctx context.Context) error { return models.Retract(ctx, v, "ann") }
		}},
		{"publish again", 1, func() func(context.Context) error { // what cannot be read is written, too
			v, _ := models.Served("m")
			etcdtest.Lose(t, etcd.addr, "/millrace/test/bodies/models/m/"+v.Sum)
			return func(ctx context.Context) error {
				_, fresh, err := models.Publish(ctx, "m", v.Version, bodies[v], "ann")
				if fresh {
					return errors.New("it is taken for new")
				}
				return err
			}
		}},
		{"forked", 0, func() func(context.Context) error {
			gone := map[string]documents.Document{"gone": {Name: "gone", Version: 1}}
			return func(ctx context.Context) error {
				_, err := feeds.ForkedFrom(ctx, gone, keyspace.Origin{}, &keyspace.Snapshot{})
				return err
			}
		}},
		{"alone, after one without a lease", 2, func() func(context.Context) error { // leases end by themselves
			etcd.put("/millrace/test/acting", "{}")
			return func(ctx context.Context) error {
				return c.Alone(ctx, "x", func(context.Context) error { return nil })
			}
		}},
		{"full", 1, func() func(context.Context) error { // it is not known then
			return func(ctx context.Context) error { return c.Full(ctx) }
		}},
	} {
		try(c.name, c.may, c.act)
	}
}

// Whatever etcd refuses of a restoration is an error of it, and once nothing is refused all is
// brought back, whether etcd has lost all or only bytes.
func TestARestorationThatEtcdRefusesFails(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	etcd, try := refusing(t)
	keeps, c := etcd.open(dir), etcd.openAs(cluster.Config{Who: "ann"})
	c.SetRelist(10 * time.Millisecond) // a restoration waits for it
	models, err := artefacts.Watch(ctx, keeps, "models")
	check(t, err)
	feeds, err := documents.Watch(ctx, keeps, "feeds")
	check(t, err)
	w := watch(t, keeps)
	check(t, steering.Assign(ctx, keeps, spreadOver(t, 1, "n1", "n2")))
	check(t, putDocument(ctx, feeds, "home", []byte("home")))
	v, _, err := models.Publish(ctx, "m", "1", []byte(strings.Repeat("x", keyspace.MaxDocumentBytes+1)), "ann")
	check(t, err)
	check(t, models.Serve(ctx, v, nil, "ann"))
	_, err = models.Body(ctx, v)
	check(t, err)
	_, err = secrets.Get(ctx, keeps, "pages")
	check(t, err)
	await(t, "all is known", w.Changed, func() bool { return w.Current().Epoch() == 1 })
	await(t, "all is known", feeds.Changed, func() bool { return len(feeds.Current()) == 1 })
	await(t, "all is on disk", func() <-chan struct{} { return closedAfter(t) }, func() bool { files, _ := keeps.Unwritten(); return files == 0 })
	check(t, keeps.Close())
	var r restoration.Restored
	restored := func(lost string) func() func(ctx context.Context) error {
		return func() func(context.Context) error {
			etcdtest.Lose(t, etcd.addr, "/millrace/test/"+lost)
			return func(ctx context.Context) (err error) { r, err = restoration.Restore(ctx, c, dir); return err }
		}
	}
	try("all", 0, restored(""))
	check(t, restored("")()(ctx))
	if r.Epoch != 2 || r.Secrets != 1 || r.Alone || len(r.Documents) != 2 || r.Documents[0].Document != "feeds home" || r.Documents[1].Serves != "version 1" || r.BytesOf() != 1 || len(r.Dirs) != 1 {
		t.Errorf("%+v", r)
	}
	try("bytes", 1, restored("bodies/")) // trims the history
	check(t, restored("bodies/")()(ctx))
	if r.Epoch != 2 || !r.Alone || len(r.Documents) != 0 || r.BytesOf() != 1 || r.Bytes[0].Document != "models m" || r.Bytes[0].Dir != dir {
		t.Errorf("%+v", r)
	}
}
