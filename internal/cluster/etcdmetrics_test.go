package cluster_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// What is asked of etcd is counted, by what etcd and gRPC call it.
func TestEtcdMetrics(t *testing.T) {
	c := startEtcd(t).open(t.TempDir())
	if _, err := c.Watch(t.Context()); err != nil {
		t.Fatal(err)
	}
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetCounter().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	calls := 0.0
	for name, n := range got {
		if strings.HasPrefix(name, "millrace_etcd_calls_total ") {
			calls += n
		}
	}
	seconds := got["millrace_etcd_call_seconds /etcdserverpb.KV/Range"] + got["millrace_etcd_call_seconds /etcdserverpb.KV/Txn"]
	if calls < 2 || seconds != calls || got["millrace_etcd_streams_total OK /etcdserverpb.Watch/Watch"] < 1 {
		t.Errorf("%v", got)
	}
}
