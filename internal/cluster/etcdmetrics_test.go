package cluster_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/cluster/documents"
)

// What is asked of etcd is counted, by what etcd and gRPC call it.
func TestEtcdMetrics(t *testing.T) {
	c := startEtcd(t).open(t.TempDir())
	docs, err := documents.Watch(t.Context(), c, "feeds")
	check(t, err)
	check(t, docs.Put(t.Context(), "home", []byte("heard")))
	await(t, "the watch hears", docs.Changed, func() bool { return docs.Current()["home"].Body == "heard" })
	reg := prometheus.NewRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	check(t, err)
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
