package indexnode

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/prometheus/client_golang/prometheus"

	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/schemas"
)

// gathered returns what a registry tells, by series without the prefix
// millrace_; of histograms how much was observed.
func gathered(t *testing.T, r *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			series := strings.TrimPrefix(f.GetName(), "millrace_")
			for _, l := range m.GetLabel() {
				series += fmt.Sprintf(" %s=%s", l.GetName(), l.GetValue())
			}
			out[series] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return out
}

// Every metric of a node tells what it says.
func TestMetrics(t *testing.T) {
	n, h := openStored(t, cache.Config{Memory: 16 << 10}, store.Options{FS: vfs.NewMem(), FlushEvery: -1})
	registry := prometheus.NewRegistry()
	n.counters = newCounters(registry, n)
	if _, err := n.schemas.Admit(nodetest.Review(t, "Other", `{"name":"likes","type":"string"}`)); err != nil {
		t.Fatal(err)
	}
	ask := func(req *nodev1.QueryRequest) { _, _ = n.Query(t.Context(), req) }

	n.cache.Warm().Put(millrace.Timeline{Entity: "member:0", Type: "share"}, cache.Empty)

	// Timelines, features and empty timelines of more members than there is
	// room for, asked for twice so that they are let in.
	names := entities(t, n, h, 30, 3)
	for i, name := range names {
		nodetest.Feature(t, h, name, i)
	}
	for range 3 {
		for _, name := range names {
			for _, typ := range []string{"post", "like"} {
				for range 2 {
					req := nodetest.OfAll([]string{name})
					req.Types = []string{typ}
					ask(req)
				}
			}
		}
	}
	held := n.cache.Reader() // what is removed now cannot be used again
	defer held.Leave()
	nodetest.BringLine(t, h, kafka.Timeline, `{"id":"r1","actor":"member:1","verb":"post","created_at":1700000000002}`, 1000)
	ask(nodetest.All(func(r *nodev1.QueryRequest) {}))
	nodetest.BringLine(t, h, kafka.Timeline, `{"id":"r1","actor":"member:1","verb":"post","created_at":1700000000002,"version":1}`, 1001)
	nodetest.BringLine(t, h, kafka.Timeline, `{"id":"r1","actor":"member:1","verb":"post","created_at":1700000000002,"deleted":true,"version":2}`, 1002)
	nodetest.BringLine(t, h, kafka.Timeline, `{"id":"r1","actor":"member:1","verb":"post","created_at":1700000000002}`, 1003)
	ask(nodetest.All(func(r *nodev1.QueryRequest) { r.Limit = 0 }))
	n.replicas.Condemn(1, replica.Why{Reason: replica.Corrupt, Detail: "a flipped bit"})
	n.replicas.Serve(2, time.Now().Add(-time.Minute))
	n.replicas.Serve(3, time.Now().Add(-time.Hour))
	n.replicas.Pause(time.Now().Add(time.Hour))
	n.counters.refused(schemas.KeyMismatch)
	for _, c := range n.admission.Collectors() {
		if refused, is := c.(prometheus.Counter); is {
			refused.Inc()
		}
	}
	if err := errors.Join(n.memory.Borrow().More(7), n.arriving.Borrow().More(11)); err != nil {
		t.Fatal(err)
	}

	got, s := gathered(t, registry), n.cache.Stats()
	for series, want := range map[string]float64{
		"indexnode_records_total stream=timeline": 90 + 4, "indexnode_records_total stream=features": 30,
		"indexnode_changes_total kind=inserted": 90 + 1, "indexnode_changes_total kind=replaced": 1, "indexnode_changes_total kind=deleted": 1, "indexnode_changes_total kind=ignored": 1,
		"indexnode_refused_total reason=" + string(schemas.KeyMismatch): 1, "indexnode_models_refused_total": 1,
		"indexnode_queries_total outcome=answered": 3*30*2*2 + 1, "indexnode_queries_total outcome=refused": 1,
		"indexnode_query_seconds stage=resolve": 361, "indexnode_query_seconds stage=scan": 361, "indexnode_query_seconds stage=rank": 361,
		"indexnode_ready_partitions": 719, "indexnode_types": 1, "indexnode_schema_clashes": 1, "indexnode_behind_partitions": 2,
		"indexnode_replicas reason=corrupt state=quarantined": 1, "indexnode_replicas reason= state=ready": 719,
		"cache_fat_records": float64(s.Records), "cache_skinny_keys": float64(s.EmptyKeys), "cache_features_rows": float64(s.FeatureRows),
		"cache_fat_hits_total": float64(s.FatHits), "cache_skinny_hits_total": float64(s.SkinnyHits), "cache_features_hits_total": float64(s.FeatureHits),
		"cache_misses_total": float64(s.Misses), "cache_features_misses_total": float64(s.FeatureMisses),
		"cache_fat_evictions_total": float64(s.FatEvictions), "cache_skinny_evictions_total": float64(s.SkinnyEvictions), "cache_features_evictions_total": float64(s.FeatureEvictions),
		"cache_removals_total": float64(s.Removals), "cache_not_admitted_total": float64(s.NotAdmitted), "cache_purges_total": 1, "cache_warmed_total": 1,
		"cache_memory_bytes": float64(s.Arena.Used), "cache_mapped_bytes": float64(s.Arena.Mapped), "cache_retired_bytes": float64(s.Arena.Retired),
		"cache_record_bytes": float64(s.Arena.Used) / float64(s.Records), "cache_fat_bytes": float64(s.Bytes),
		"cache_bound_bytes": 16 << 10, "cache_taken_bytes": float64(s.Taken),
		"indexnode_question_memory_bytes": 7, "indexnode_request_memory_bytes": 11,
		"indexnode_type_records type=post": 90, "indexnode_type_deleted_records type=post": 1, "indexnode_type_timelines type=post": 30,
		"indexnode_type_newest_timestamp_seconds type=post": 1700000000.002, "indexnode_type_cached_records type=post": float64(s.Records),
		"indexnode_type_in_total type=post": 90 + 1 + 1, "indexnode_type_out_total how=deleted type=post": 1,
		"indexnode_panics_total": 0, // TestAPanicEndsAQuestionOnly, of package answers
	} {
		value, there := got[series]
		if !there || value != want || want == 0 && !strings.Contains(series, "panics") {
			t.Errorf("%s is %v (there: %t), want %v", series, value, there, want)
		}
		delete(got, series)
	}
	if reads := got["indexnode_reads_total"]; reads < 30 || reads > float64(s.Misses+s.FeatureMisses) {
		t.Errorf("%v reads for %d misses", reads, s.Misses+s.FeatureMisses)
	}
	delete(got, "indexnode_reads_total")
	if lag := got["indexnode_lag_seconds"]; lag < 3600 || lag > 3700 {
		t.Errorf("the oldest answers are %v s old, want an hour", lag)
	}
	delete(got, "indexnode_lag_seconds")
	if paused := got["indexnode_ingest_paused_seconds"]; paused < 3500 || paused > 3600 {
		t.Errorf("paused for %v s yet, want an hour", paused)
	}
	delete(got, "indexnode_ingest_paused_seconds")
	if size := got["indexnode_type_bytes type=post"]; size < 91*20 || size > 91*200 {
		t.Errorf("records have %v bytes", size)
	}
	for _, none := range []string{
		"indexnode_type_out_total how=expired type=post", "indexnode_uncounted_partitions",
		"indexnode_queries_total outcome=failed", "indexnode_queries_total outcome=stopped", "indexnode_queries_total outcome=expired",
	} {
		if n, there := got[none]; !there || n != 0 {
			t.Errorf("%s is %v (there: %t)", none, n, there)
		}
		delete(got, none)
	}
	delete(got, "indexnode_type_bytes type=post")
	if got["store_disk_bytes"] == 0 || got["store_memtable_bytes"] == 0 {
		t.Errorf("the engine: %v bytes on disk, %v in memory", got["store_disk_bytes"], got["store_memtable_bytes"])
	}
	for series := range got { // of the engine, and of Kafka's client, which have tests of their own
		if strings.HasPrefix(series, "store_") || strings.HasPrefix(series, "indexnode_kafka_") {
			delete(got, series)
		}
	}
	for series := range got {
		t.Errorf("nobody looks at %s", series)
	}
}

// Partitions in the same state for the same reason are one series, though
// their causes differ: two equal series would fail the scrape.
func TestReplicasAreToldByStateAndReason(t *testing.T) {
	n, h := openNode(t, cache.Config{})
	registry := prometheus.NewRegistry()
	n.counters = newCounters(registry, n)
	h.Condemn(1, replica.Why{Reason: replica.ByOperator, Detail: "it ranks oddly"})
	h.Condemn(2, replica.Why{Reason: replica.ByOperator, Detail: "its disk is slow"})
	got := gathered(t, registry)
	if n := got["indexnode_replicas reason=by_operator state=quarantined"]; n != 2 {
		t.Errorf("%v partitions are quarantined, want 2: %v", n, got)
	}
}
