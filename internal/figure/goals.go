package figure

import "path"

// goal is a bound that a figure is to keep.
type goal struct {
	name  string  // of the figure, with a * for what differs between figures of a kind
	most  bool    // the figure is to be at most value; else at least
	value float64 // in the unit of the figure
	slack float64 // the share of value by which it may be missed: processors and runs differ
}

// most returns a goal that a figure is to be at most value, and least one that it is to be at
// least value. slack is a share of value.
func most(name string, value, slack float64) goal  { return goal{name, true, value, slack} }
func least(name string, value, slack float64) goal { return goal{name, false, value, slack} }

// goals are the goals of all figures, grouped by the command that measures them. A figure
// without a goal is printed because it helps to read another one. The benchmark that prints a
// figure says what it is. A figure A_vs_B is a ratio: with most, how much A takes compared
// with B; with least, how many times better A is than B. A comment that ends a line has the
// unit of the value, or says what is measured.
//
// If the project aims higher than a goal here, the DESIGN.md of the measured package says so,
// and says what stands in the way.
var goals = []goal{
	// make bench: the index node.
	most("query_folded_vs_touch_floor", 2, 0.2),
	most("query_warm_vs_touch_floor", 4, 0.2),
	least("query_warm_vs_lru_pointers", 12, 0.2),
	most("query_warm_allocs", 0, 0),
	least("query_two_cores", 1.8, 0.1),
	most("query_p99_marking_vs_idle", 5, 0.2), // while garbage is collected all the time; 3.5 if there is nothing to mark
	most("query_judged_finite_vs_not", 1.02, 0.05),
	most("query_judged_none_vs_not", 1.05, 0.05),
	least("topk_vs_heap", 100, 0.2),
	most("lists_vs_by_hand", 0.5, 0.2),
	most("lists_explained_vs_plain", 3, 0.2),
	most("lists_bytes_vs_body", 1.1, 0.02),
	most("lists_allocs", 28, 0), // for two questions; terms of the filter that read the viewer are bound for each
	most("vectors_int8_dot_above_touch_floor_ns", 5, 0.2),
	least("cache_lookup_vs_lru", 10, 0.2),
	least("cache_hit_vs_lru", 6, 0.1),
	least("cache_bytes_vs_pointers", 4, 0.05),
	least("gc_cpu_vs_pointers", 100, 0.2),
	most("decode_keys_us", 10, 0.3),
	most("node_explained_vs_plain", 3, 0.2),
	most("beside_five_vs_one", 2, 0.2),
	most("node_judging_vs_query", 1, 0), // %
	most("node_p99_collector_vs_none", 1.2, 0.2),
	most("handover_p99_warm", 1.2, 0.2),
	most("ingest_cpu_vs_key_per_record", 3, 0.2),
	most("ingest_write_amplification", 6, 0.05),
	most("ingest_with_counts_vs_without", 1.05, 0.05),
	most("features_among_unflushed_vs_alone", 2, 0.2),
	most("timeline_read_vs_key_per_record", 0.65, 0.2),
	most("store_miss_vs_get", 2.5, 0.2),
	least("store_restore*_rate_vs_copy", 0.7, 0.2),
	most("store_checkpoint_longest_apply", 1000, 0), // ms
	most("backup_full_vs_live", 1.05, 0.02),
	most("backup_incremental_vs_changed", 1.3, 0.1),
	least("restore_vs_cp", 0.7, 0.2),
	least("restore_s3_rate", 100, 0.2), // MiB/s
	most("bootstrap_vs_cp", 2, 0.2),
	most("bootstrap_log_read", 1, 0), // %
	most("query_p99_backups_vs_none", 1.05, 0.1),
	most("cpu_backups_vs_none", 1.1, 0.05),
	least("ingest_vs_bare_consumer", 0.1, 0.2),

	// make bench: scores and filters, in the process.
	least("score_generated_vs_maps", 100, 0.2),
	least("score_generated_vs_indexed", 5, 0.4), // 3.3 to 3.9 on an EPYC
	most("score_interpreted_vs_generated", 2, 0.2),
	most("score_folded_vs_generated", 0.4, 0.2),
	most("score_joint_vs_alone", 0.8, 0.1),
	least("trees_vs_walker", 5, 0.5), // 2.6 on processors with slow gather instructions (Cascade Lake)
	least("trees_swept_vs_walked", 3, 0.2),
	least("filter_vs_cel", 60, 0.2),
	most("filter_generated_vs_kernels", 1, 0.1),
	least("avro_generated_vs_hamba", 5, 0.3), // 4.0 on Cascade Lake

	// make bench: the broker.
	most("broker_overhead_us", 500, 0),
	most("broker_cpu_per_node_call_us", 85, 0.2),
	most("node_call_vs_bare_grpc", 1.8, 0.2),
	most("hedge_overhead_us", 10, 0),
	most("answer_full_receipt_vs_plain", 2, 0.2),
	most("answer_a_field_vs_plain", 0.75, 0.2),
	most("answer_explain_vs_plain", 3, 0.2),
	most("answer_why_vs_plain", 3, 0.2),

	// make bench: the coordinator.
	most("plan_*_ms", 200, 0.3),
	most("plan_moves_45_to_60", 360, 0),

	// millrace bench.
	most("*_p99_half_saturation_ms_*", 10, 0.2),
	most("*_refused_half_saturation_*", 0, 0),
	most("team*_inexact", 0, 0),
	most("team*_cpu_vs_grpc", 0.7, 0.1),
	most("team*_cpu_vs_redis", 1./6, 0.1),
	most("team*_cpu_vs_lucene", 1./3, 0.1),
	most("team*_p50_vs_grpc", 0.8, 0.1),
	most("team*_p99_vs_grpc", 0.6, 0.1),
	most("team*_memory_vs_grpc", 1.2, 0.05),
	most("random_worst", 1.5, 0.1),
	most("random_median", 0.5, 0.1),

	// make outages.
	least("goodput_at_2x", 90, 0), // %
	least("goodput_at_5x", 85, 0),
	least("goodput_at_10x", 80, 0),
	most("recovery_after_*x", 5, 0),              // s
	least("interactive_under_prefetches", 99, 0), // %
	most("frozen_replica_failed", 0, 0),
	most("frozen_replica_p99_vs_healthy", 1.5, 0.1),
	most("frozen_replica_extra_calls", 5, 0), // %
	most("mute_replicas_wait", 0.5, 0),       // s
	most("kafka_*_told_by_*", 10, 0),         // s
	most("broker_restarts_failed", 0, 0),
	most("stopped_broker_hears", 13, 0),       // s
	most("nodes_died_etcd_away_whole", 30, 0), // s

	// make rollouts.
	most("bad_version_*_served", 1, 0), // s
	most("bad_version_*_failed", 0, 0),
	most("push_10mb", 1, 0),       // s
	most("rollback", 1, 0),        // s
	most("feed_live", 1, 0),       // s
	most("experiment_live", 1, 0), // s
	most("versions_two_in_an_answer", 0, 0),
	most("versions_page_of_another", 0, 0),
	most("versions_failed", 0, 0),
	most("shadows_five_vs_one_cpu", 2, 0.1),
	most("shadows_five_vs_one_p99", 1.3, 0.1),
	least("shadows_same_answers", 1e4, 0),
	most("exposures_*_p99", 1.05, 0.1),
	least("exposures_answers", 1e5, 0),
	most("exposures_uncounted", 0, 0),
	most("exposures_other_than_served", 0, 0),

	// make faults.
	most("violations_*", 0, 0),
	least("campaign_faults", 200, 0),
	most("campaign_oldest_unflagged", 10, 0), // s
	most("resize_failed", 0, 0),
	most("resize_partial", 0, 0),
	most("resize_p99_vs_still", 1.5, 0),
	most("repair_after_grace", 30, 0), // s
	most("repair_failed", 0, 0),
	most("rollback_failed", 0, 0),
	most("moving_faults_failed", 0, 0),
	most("moving_faults_partial", 0, 0),
	most("versions_refused", 0, 0),
	most("cuts_partitions_not_equal", 0, 0),
	most("times_partitions_not_equal", 0, 0),
	most("models_two_versions", 0, 0),
	most("models_refused", 0, 0),

	// make e2e-secured.
	most("delete_gone_after_*", 1, 0), // s
	most("certificates_replaced_failed", 0, 0),
}

// goalOf returns the goal of a figure, or nil.
func goalOf(name string) *goal {
	for i := range goals {
		if ok, err := path.Match(goals[i].name, name); ok && err == nil {
			return &goals[i]
		}
	}
	return nil
}

// misses reports whether a value misses the goal by more than the slack.
func (g *goal) misses(value float64) bool {
	if g.most {
		return !(value <= g.value*(1+g.slack)) // a NaN misses, too
	}
	return !(value >= g.value*(1-g.slack))
}
