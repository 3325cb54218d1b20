package cluster_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/secrets"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// What somebody has done is in the history, in the order in which it was done,
// and what nobody has done, or could not, is not.
func TestHistory(t *testing.T) {
	ctx, etcd := t.Context(), startEtcd(t)
	role := etcd.open("")
	c, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{etcd.addr}, Name: "test", Who: "me@here", Log: slog.New(slog.DiscardHandler)})
	check(t, err)
	defer c.Close()
	a, err := topology.Spread([]millrace.NodeID{"n1", "n2", "n3"}, 2)
	check(t, err)
	a.AllowUnknown = true
	check(t, steering.Assign(ctx, c, a))
	if err := steering.Assign(ctx, c, a); err == nil {
		t.Error("the same epoch is assigned twice")
	}
	a.Epoch++
	check(t, steering.Assign(ctx, role, a)) // a role's own doing
	_, err = secrets.Get(ctx, role, "pages")
	check(t, err)
	check(t, secrets.Rotate(ctx, c, "pages", secrets.Generation{From: time.Now(), Alone: true}, time.Time{}))
	check(t, steering.Change(ctx, c, nil, func(s *steering.State) error {
		s.Acts = append(s.Acts, audit.Entry{Who: "another", Act: "drain", On: "[n1]"})
		return nil
	})) // which changes nothing, and so is no act
	check(t, steering.Change(ctx, c, nil, func(s *steering.State) error {
		s.Documents["intent"] = "{}"
		s.Acts = append(s.Acts, audit.Entry{Who: "another", Act: "drain", On: "[n1]"}, audit.Entry{Act: "add", On: "[n2]"})
		return nil
	}))
	check(t, c.Note(ctx, audit.Entry{Act: "restart", On: "n1", Before: "start 1", After: "restarted", Fault: "it is away"}))
	all, err := role.History(ctx)
	check(t, err)
	var got []string
	for i, e := range all {
		if e.Time.IsZero() || i > 0 && e.Time.Before(all[i-1].Time) {
			t.Errorf("%+v comes after %+v", e, all[max(i-1, 0)])
		}
		got = append(got, fmt.Sprintf("%s %s %s: %s, then %s %s", e.Who, e.Act, e.On, e.Before, e.After, e.Fault))
	}
	want := []string{
		"me@here assign all partitions: no assignment, then epoch 1: 3 nodes, 2 replicas ",
		"me@here revoke secret pages: the first, then from " + time.Now().UTC().Format("2006"),
		"another drain [n1]: , then  ", "me@here add [n2]: , then  ",
		"me@here restart n1: start 1, then restarted it is away",
	}
	if len(got) != len(want) {
		t.Fatalf("the history is\n%s", strings.Join(got, "\n"))
	}
	for i := range want {
		if !strings.HasPrefix(got[i], want[i]) {
			t.Errorf("%q, not %q", got[i], want[i])
		}
	}
	cluster.SetMaxHistory(t, 3)
	check(t, c.Note(ctx, audit.Entry{Act: "trace"}))
	etcd.raw(func(raw *clientv3.Client) error {
		kept, err := raw.Get(ctx, "/millrace/test/history/", clientv3.WithPrefix())
		if err == nil && len(kept.Kvs) != 3 {
			t.Errorf("%d acts are kept, not 3", len(kept.Kvs))
		}
		return err
	})
	if last, err := role.History(ctx); err != nil || len(last) != 3 || last[2].Act != "trace" || last[1].Act != "restart" {
		t.Errorf("the last three are %+v, %v", last, err)
	}
}
