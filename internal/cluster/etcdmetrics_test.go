package cluster_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/documents"
)

// What is asked of etcd is counted, by what etcd and gRPC call it.
func TestEtcdMetrics(t *testing.T) {
	c := startEtcd(t).open(t.TempDir())
	docs, err := documents.Watch(t.Context(), c, "feeds")
	check(t, err)
	check(t, putDocument(t.Context(), docs, "home", []byte("heard")))
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

// A process that has nothing to go by and waits for etcd says for how long.
func TestWhoWaitsForEtcdTellsSo(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	reg := prometheus.NewRegistry()
	opened := make(chan error, 1)
	go func() {
		_, err := cluster.Open(ctx, cluster.Config{Endpoints: []string{"127.0.0.1:1"}, Name: "test", Metrics: reg})
		opened <- err
	}()
	waits := func() (seconds float64) {
		families, err := reg.Gather()
		check(t, err)
		for _, f := range families {
			if f.GetName() == "millrace_cluster_fault_seconds" && f.Metric[0].Label[0].GetValue() == "cluster" {
				seconds = f.Metric[0].GetGauge().GetValue()
			}
		}
		return seconds
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	late := time.After(time.Minute)
	for waits() == 0 {
		select {
		case err := <-opened:
			t.Fatalf("it does not wait: %v", err)
		case <-late:
			t.Fatal("it says nothing")
		case <-tick.C:
		}
	}
	stop()
	if err := <-opened; err == nil || waits() > 0 {
		t.Errorf("opened without etcd: %v; it tells %v s", err, waits())
	}
}
