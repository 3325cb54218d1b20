package cluster_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// What a node tells for planning arrives, goes with its registration, rings at
// no broker, and nonsense of another node hides nothing.
func TestStats(t *testing.T) {
	t.Parallel()
	etcd := startEtcd(t)
	c := etcd.open("")
	w := watch(t, c)
	m := join(t, c, topology.Node{ID: "n1", Addr: "a:1"})
	registered(t, m)
	await(t, "the node is seen", w.Changed, func() bool { return w.Current().Alive("n1") })
	before := w.Current()

	largest := members.NodeStats{DiskBytes: math.MaxInt64, FreeBytes: math.MaxInt64, KeptBytes: math.MaxInt64, MemoryBytes: math.MaxInt64, Partitions: map[millrace.Partition]members.PartitionStats{}}
	for p := range partition.All() {
		largest.Partitions[p] = members.PartitionStats{Bytes: math.MaxInt64, Records: math.MaxInt64, Ingest: 1.23e300, Load: 4.56e-300}
		if p%2 == 0 {
			largest.Held.Add(p)
		}
	}
	etcd.raw(func(e *clientv3.Client) error {
		for id, body := range map[string]string{"n2": `{"partitions":"0-3","bytes":[1]}`, "n3": strings.Repeat(" ", 1<<17), "n4": `{"disk":-1}`, "n5": `{"kept":-1}`} {
			if _, err := e.Put(t.Context(), "/millrace/test/stats/"+id, body); err != nil {
				return err
			}
		}
		return nil
	})
	m.SetStats(largest)
	told := func() members.NodeStats {
		t.Helper()
		all, err := members.Stats(t.Context(), c)
		check(t, err)
		for id := range all {
			if id != "n1" {
				t.Errorf("stats of %s are taken for some", id)
			}
		}
		return all["n1"]
	}
	for end := time.Now().Add(5 * time.Minute); len(told().Partitions) == 0; { // the registration tells it as soon as etcd listens
		if time.Now().After(end) {
			t.Fatal("the stats are not told")
		}
	}
	if got, want := fmt.Sprint(told()), fmt.Sprint(largest); got != want {
		t.Errorf("came back as %.300s", got)
	}
	if w.Current() != before {
		t.Error("brokers heard of it")
	}
	check(t, m.Leave(context.WithoutCancel(t.Context())))
	if got := told(); len(got.Partitions) > 0 {
		t.Error("a node that left has stats")
	}
}

// What has moved by less than a tenth of all is not told again.
func TestStatsNear(t *testing.T) {
	t.Parallel()
	of := func(bytes int64, load float64) *members.NodeStats {
		return &members.NodeStats{FreeBytes: 1000, Partitions: map[millrace.Partition]members.PartitionStats{
			1: {Bytes: bytes, Load: load}, 2: {Bytes: 1000, Load: 100, Records: bytes},
		}}
	}
	base := of(1000, 100)
	held := of(1000, 100)
	held.Held.Add(7)
	other := of(1000, 100)
	other.Partitions[3] = other.Partitions[2]
	delete(other.Partitions, 2)
	full := of(1000, 100)
	full.FreeBytes = 800
	keeps := of(1000, 100)
	keeps.KeptBytes = 64
	for i, c := range []struct {
		now  *members.NodeStats
		near bool
	}{
		{base, true}, {of(1190, 119), true}, {of(1210, 100), false}, {of(1000, 79), false}, {held, false}, {other, false}, {full, false}, {keeps, false}, {new(members.NodeStats), false},
	} {
		if got := base.Near(c.now); got != c.near {
			t.Errorf("%d: near %v", i, got)
		}
	}
}
