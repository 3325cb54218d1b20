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
	// statsEvery is how often a node gathers what it tells the planner.
	statsEvery = 15 * time.Second
	// heldEvery is how often it looks whether its disk still has partitions that are
	// hosted elsewhere, and how much room is left. The planner waits for both.
	heldEvery = 3 * time.Second
	// lately is the time over which rates are smoothed.
	lately = time.Minute
)

// observer makes rates from the counts that it sees at each look.
type observer struct {
	node *Node
	at   time.Time // of the last look; zero: there was none
	seen [partition.Count]struct {
		records, read int64   // counts at the last look
		known         bool    // there was a last look
		ingest, load  float64 // records applied a second, and read a second, smoothed over lately
	}
}

// look returns what the node is to tell the planner. held is the partitions that are hosted
// elsewhere and still have something on this node's disk.
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

// due reports whether it is time to look again. told is what the planner was told last: it
// is time if held has changed since, if the free space has changed enough, or if
// statsEvery has passed.
func (o *observer) due(now time.Time, held topology.Set, told *members.NodeStats) bool {
	_, free := o.node.store.Disk()
	return held != told.Held || !told.NearFree(free) || now.Sub(o.at) >= statsEvery
}

// observe looks at a partition, seconds after the last look.
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

// tellStats tells the planner about the node until ctx is done. It tells within heldEvery
// what the disk holds of partitions hosted elsewhere and how much of it is free, and the
// rest every statsEvery.
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

// unflushedBytes returns how many bytes of records a node gathers before it writes them to
// disk: a thirty-second of the machine's memory, between 128 and 512 MiB. The more records
// of a timeline are written together, the less each costs.
func unflushedBytes(memory int64) int64 { return min(max(memory/32, 128<<20), 512<<20) }
