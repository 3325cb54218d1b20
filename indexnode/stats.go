package indexnode

import (
	"context"
	"math"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/memory"
	"github.com/millrace/millrace/internal/partition"
)

const (
	// statsEvery is how often a node looks at what it tells for planning, and
	// heldEvery how often at what its disk has of partitions hosted elsewhere,
	// for which the planner waits, and at the room that is left.
	statsEvery = 15 * time.Second
	heldEvery  = 3 * time.Second
	// lately is the time over which rates are smoothed.
	lately = time.Minute
)

// observer makes rates of counts.
type observer struct {
	node *Node
	at   time.Time // of the last look; zero: there was none
	seen [partition.Count]struct {
		records, read int64 // at the last look
		known         bool
		ingest, load  float64
	}
}

// look returns what the node is to tell for planning.
func (o *observer) look(now time.Time, held topology.Set) members.NodeStats {
	n := o.node
	s := members.NodeStats{MemoryBytes: memory.Machine(), Partitions: map[millrace.Partition]members.PartitionStats{}, Held: held}
	s.DiskBytes, s.FreeBytes = n.store.Disk()
	s.KeptBytes = n.store.MinFree()
	for p := range partition.All() {
		if n.replicas.Of(p).State() == replica.Absent && !held.Has(p) {
			o.seen[p].known = false
			continue
		}
		s.Partitions[p] = o.observe(p, now.Sub(o.at).Seconds())
	}
	o.at = now
	return s
}

// due reports whether it is time to look again, after so much was told.
func (o *observer) due(now time.Time, held topology.Set, told *members.NodeStats) bool {
	_, free := o.node.store.Disk()
	return held != told.Held || !told.NearFree(free) || now.Sub(o.at) >= statsEvery
}

// observe looks at a partition, some seconds after the last time.
func (o *observer) observe(p millrace.Partition, seconds float64) members.PartitionStats {
	n, was := o.node, &o.seen[p]
	at := n.store.Applied(p)
	records, read := max(0, int64(at.Content))+max(0, int64(at.Features)), n.lookup.Read(p)
	if was.known {
		share := 1 - math.Exp(-seconds/lately.Seconds())
		was.ingest += share * (float64(max(0, records-was.records))/seconds - was.ingest)
		was.load += share * (float64(read-was.read)/seconds - was.load)
	} else {
		was.ingest, was.load = 0, 0
	}
	was.records, was.read, was.known = records, read, true
	size, err := n.store.Bytes(p)
	if err != nil {
		size = 0 // the store is closed, or the partition unknown
	}
	return members.PartitionStats{Bytes: size, Records: records, Ingest: was.ingest, Load: was.load}
}

// tellStats tells what planning is to know of the node: soon what its disk holds
// of others and how much of it is free, and the rest now and then.
func (h *hosting) tellStats(ctx context.Context) error {
	o := &observer{node: h.node}
	tick := time.NewTicker(heldEvery)
	defer tick.Stop()
	var told members.NodeStats
	for {
		now, held := time.Now(), h.node.replicas.Held()
		if o.due(now, held, &told) {
			h.node.rates.look(h.node, now)
			if s := o.look(now, held); !told.Near(&s) {
				told = s
				h.member.SetStats(s)
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// unflushedBytes is how much a node gathers before it writes it to disk, on a machine
// of so much memory: a thirty-second of it. The more records of a timeline are
// written together, the less each costs.
func unflushedBytes(memory int64) int64 { return min(max(memory/32, 128<<20), 512<<20) }
