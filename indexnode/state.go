package indexnode

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/indexnode/store/tally"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/internal/wait"
)

// typeMetrics collects how much the node has of each content type, over all its
// partitions; millrace state shows it by partition. It has a label for each type that the
// store counts by name, and an empty one for all others together.
type typeMetrics struct{ node *Node }

func typeDesc(name, help string, more ...string) *prometheus.Desc {
	return prometheus.NewDesc("millrace_indexnode_type_"+name, help, append([]string{"type"}, more...), nil)
}

var (
	descTypeRecords   = typeDesc("records", "Live records of a content type in the partitions of the node, those too that retention has dropped and whose space is not reclaimed yet.")
	descTypeDeleted   = typeDesc("deleted_records", "Tombstones of a content type.")
	descTypeTimelines = typeDesc("timelines", "Timelines of a content type that have records or tombstones.")
	descTypeBytes     = typeDesc("bytes", "Bytes of a content type's records and tombstones before compression.")
	descTypeNewest    = typeDesc("newest_timestamp_seconds", "The latest time of a record of a content type that was ever taken in.")
	descTypeCached    = typeDesc("cached_records", "Records of a content type in the fat cache.")
	descTypeIn        = typeDesc("in_total", "Records of a content type that were taken in: new ones, and newer versions.")
	descTypeOut       = typeDesc("out_total", "Live records of a content type that went, by how: deleted (a tombstone hides them) or expired (retention dropped them, and their space is reclaimed).", "how")
	descUncounted     = prometheus.NewDesc("millrace_indexnode_uncounted_partitions", "Partitions that are not counted yet, as after an upgrade, and are missing in the metrics by content type.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (m *typeMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descTypeRecords, descTypeDeleted, descTypeTimelines, descTypeBytes, descTypeNewest, descTypeCached, descTypeIn, descTypeOut, descUncounted} {
		out <- d
	}
}

// Collect implements [prometheus.Collector].
func (m *typeMetrics) Collect(out chan<- prometheus.Metric) {
	n := m.node
	flows := n.store.Flows() // has all types that any partition counts by name, up to store.MaxTypes
	label := func(t millrace.ContentType) millrace.ContentType {
		if _, known := flows[t]; !known || !utf8.ValidString(string(t)) {
			return ""
		}
		return t
	}
	sums, uncounted := map[millrace.ContentType]tally.Counts{}, 0
	for p := range partition.All() {
		if n.replicas.Of(p).State() == replica.Absent {
			continue
		}
		c, err := n.store.Counts(p)
		if err == nil && !c.Known {
			uncounted++
		}
		for t, k := range c.Types {
			sums[label(t)] = sums[label(t)].Add(k)
		}
	}
	cached := map[millrace.ContentType]int{}
	for _, h := range n.cache.Held() {
		cached[label(h.Type)] += h.Records
	}
	gone := map[millrace.ContentType]tally.Flow{}
	for t, f := range flows {
		g := gone[label(t)]
		gone[label(t)] = tally.Flow{Taken: g.Taken + f.Taken, Hidden: g.Hidden + f.Hidden, Expired: g.Expired + f.Expired}
	}
	tell := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	tell(descUncounted, prometheus.GaugeValue, float64(uncounted))
	for t, f := range gone {
		c, name := sums[t], string(t)
		if t == "" && c == (tally.Counts{}) && f == (tally.Flow{}) && cached[t] == 0 {
			continue // there are no types without a name
		}
		tell(descTypeRecords, prometheus.GaugeValue, float64(c.Records), name)
		tell(descTypeDeleted, prometheus.GaugeValue, float64(c.Deleted), name)
		tell(descTypeTimelines, prometheus.GaugeValue, float64(c.Timelines), name)
		tell(descTypeBytes, prometheus.GaugeValue, float64(c.Bytes), name)
		tell(descTypeCached, prometheus.GaugeValue, float64(cached[t]), name)
		if c.Newest > 0 {
			tell(descTypeNewest, prometheus.GaugeValue, float64(c.Newest)/1e3, name)
		}
		tell(descTypeIn, prometheus.CounterValue, float64(f.Taken), name)
		tell(descTypeOut, prometheus.CounterValue, float64(f.Hidden), name, "deleted")
		tell(descTypeOut, prometheus.CounterValue, float64(f.Expired), name, "expired")
	}
}

// countEvery is how often a node looks for partitions that are not counted.
const countEvery = time.Minute

// count counts the partitions that are not counted yet, such as those that an earlier
// version wrote. It takes one after the other, and pauses after each for as long as the
// counting took.
func (h *hosting) count(ctx context.Context) error {
	n := h.node
	for {
		for p := range partition.All() {
			if c, err := n.store.Counts(p); err != nil || c.Known || n.replicas.Of(p).State() == replica.Absent {
				continue
			}
			began := time.Now()
			if err := n.countPartition(ctx, p); err != nil && ctx.Err() == nil {
				n.log.Error("counting what a partition has", "partition", p, "err", err)
			}
			if err := wait.For(ctx, time.Since(began)); err != nil {
				return err
			}
		}
		if err := wait.For(ctx, countEvery); err != nil {
			return err
		}
	}
}

// countPartition checks a partition, which counts it. If it is damaged it is condemned.
func (n *Node) countPartition(ctx context.Context, p millrace.Partition) error {
	if err := n.examination(ctx); err != nil {
		return err
	}
	defer n.examined()
	_, err := n.store.Check(ctx, p)
	if errors.Is(err, store.ErrCorrupt) {
		n.replicas.CondemnDamaged(p)
	}
	return err
}
