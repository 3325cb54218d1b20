package cluster_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// A map that changes all the time, as while replicas move, is read now and then
// by who watches it, and its last state is heard.
func TestAMapThatChangesAllTheTime(t *testing.T) {
	s := startEtcd(t)
	c := s.open(t.TempDir())
	w, err := c.Watch(t.Context())
	check(t, err)
	m := join(t, s.open(t.TempDir()), topology.Node{ID: "n1", Addr: "a:1"})
	calls := func() (n float64) {
		reg := prometheus.NewRegistry()
		reg.MustRegister(c)
		families, err := reg.Gather()
		check(t, err)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "millrace_etcd_calls_total" {
					n += m.GetCounter().GetValue()
				}
			}
		}
		return n
	}
	before, began, last := calls(), time.Now(), topology.Set{}
	for time.Since(began) < 2*time.Second {
		last = topology.Set{}
		for range 10 {
			last.Add(millrace.Partition(rand.IntN(partition.Count)))
		}
		m.SetAnswering(last, topology.Lag{})
		time.Sleep(5 * time.Millisecond)
	}
	await(t, "the last state is heard", w.Changed, func() bool { return w.Current().Ready("n1") == last })
	if n, most := calls()-before, time.Since(began).Seconds()*4+3; n > most {
		t.Errorf("read %g times in %v", n, time.Since(began))
	}
}
