package indexnode

import (
	"context"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/kafka"
)

// lagLimit is how long records may wait to be applied before their partition
// is behind, which it is until they wait less than half as long.
const lagLimit = 10 * time.Second

// lagGrain is how exact a lag is measured: marks stand apart by this part of
// the age of the oldest, so that a long lag needs no more of them.
const lagGrain = 32

// mark is where a stream ended at some time: what is applied up to there is
// not older than that.
type mark struct {
	end millrace.Offset
	at  time.Time
}

// lagGauge tells how long records of the log have waited to be applied.
type lagGauge map[kafka.TopicPartition][]mark

// look notes where a stream ends and how far it is applied, and returns how
// long the oldest record not applied has been seen to wait.
func (g lagGauge) look(tp kafka.TopicPartition, end, applied millrace.Offset, now time.Time) time.Duration {
	marks := g[tp]
	for len(marks) > 0 && marks[0].end <= applied {
		marks = marks[1:]
	}
	if end > applied && (len(marks) == 0 || now.Sub(marks[len(marks)-1].at) >= now.Sub(marks[0].at)/lagGrain) {
		marks = append(marks, mark{end, now})
	}
	if len(marks) == 0 {
		delete(g, tp)
		return 0
	}
	g[tp] = marks
	return now.Sub(marks[0].at)
}

// followLag measures how far the node is behind the log, and tells the cluster
// when that matters. A log that does not answer says nothing about the node.
func (h *hosting) followLag(ctx context.Context) error {
	gauge := lagGauge{}
	tick := time.NewTicker(h.node.cfg.LagLimit / 5)
	defer tick.Stop()
	var told cluster.Lag
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-tick.C:
			lag, ok := h.measure(ctx, gauge, now)
			if !ok || !worthTelling(told, lag) {
				continue
			}
			if lag.Behind != told.Behind {
				h.node.log.Warn("behind the log", "partitions", lag.Behind.Len(), "seconds", lag.Seconds, "records", lag.Records)
			}
			told = lag
			h.member.SetLag(lag)
		}
	}
}

// worthTelling spares every broker a look at the map for a number that has
// hardly changed.
func worthTelling(told, now cluster.Lag) bool {
	return now.Behind != told.Behind || now.Seconds > 1.5*told.Seconds || now.Seconds < told.Seconds/1.5
}

// measure looks at every partition that is served.
func (h *hosting) measure(ctx context.Context, gauge lagGauge, now time.Time) (lag cluster.Lag, ok bool) {
	n := h.node
	var served cluster.Set
	for p := range n.parts {
		if n.served(p) {
			served.Add(millrace.Partition(p))
		}
	}
	tps := both(served)
	ends, err := h.consumer.EndOffsets(ctx, tps...)
	if err != nil {
		return lag, false
	}
	for tp := range gauge {
		if !served.Has(tp.Partition) {
			delete(gauge, tp)
		}
	}
	var worst time.Duration
	var records int64
	for p := range served.All() {
		var longest time.Duration
		for stream, at := range n.Applied(p) {
			tp := kafka.TopicPartition{Stream: kafka.Stream(stream), Partition: p}
			longest = max(longest, gauge.look(tp, ends[tp], at, now))
			records += max(0, int64(ends[tp]-at))
		}
		worst = max(worst, longest)
		if n.parts[p].judge(longest, n.cfg.LagLimit) {
			lag.Behind.Add(p)
		}
	}
	n.lag.Store(&nodeLag{worst, records})
	if lag.Behind.Len() > 0 {
		lag.Seconds, lag.Records = worst.Seconds(), records
	}
	return lag, true
}

// judge takes over how long a partition's records wait, and reports whether it
// is behind.
func (p *part) judge(waited, limit time.Duration) bool {
	if waited < limit/2 || waited <= limit && p.lag.Load() == 0 {
		waited = 0
	}
	p.lag.Store(int64(waited))
	return waited > 0
}

// nodeLag is what metrics tell.
type nodeLag struct {
	worst   time.Duration
	records int64
}
