package members

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// NodeStats is what a node tells of itself for the planning of moves. It may be a quarter
// of a minute old, and its sums may be a tenth off.
type NodeStats struct {
	DiskBytes   int64                                 // size of the file system of its data; 0: not known
	FreeBytes   int64                                 // how much of DiskBytes is free
	KeptBytes   int64                                 // how much must stay free: with less the node takes nothing more in; 0: not known
	MemoryBytes int64                                 // how much memory the process may take; 0: not known
	Partitions  map[millrace.Partition]PartitionStats // of all partitions that it hosts or holds
	Held        topology.Set                          // partitions on its disk that it does not host
}

// PartitionStats is what a replica takes of its node.
type PartitionStats struct {
	Bytes   int64   // on disk
	Records int64   // records of the log that were applied
	Ingest  float64 // records applied a second, lately
	Load    float64 // records that requests read a second, lately
}

// Near reports whether o is so close to s, which was told last, that it need not be told.
// It is if the partitions and the machine are the same, and the sums of bytes, of ingest
// and of load, and free space, have each moved by a tenth at most. Records do not count.
func (s *NodeStats) Near(o *NodeStats) bool {
	if s.Held != o.Held || len(s.Partitions) != len(o.Partitions) || s.DiskBytes != o.DiskBytes || s.KeptBytes != o.KeptBytes || s.MemoryBytes != o.MemoryBytes {
		return false
	}
	var bytes, ingest, load drift
	for p, is := range o.Partitions {
		was, ok := s.Partitions[p]
		if !ok {
			return false
		}
		bytes.add(float64(was.Bytes), float64(is.Bytes))
		ingest.add(was.Ingest, is.Ingest)
		load.add(was.Load, is.Load)
	}
	return bytes.near() && ingest.near() && load.near() && s.NearFree(o.FreeBytes)
}

// NearFree reports whether free space has moved by a tenth at most since s, so that it
// need not be told.
func (s *NodeStats) NearFree(bytes int64) bool {
	var free drift
	free.add(float64(s.FreeBytes), float64(bytes))
	return free.near()
}

// drift adds up values and how far they have moved.
type drift struct{ sum, moved float64 }

func (d *drift) add(was, is float64) {
	d.sum += was
	d.moved += math.Abs(is - was)
}

func (d *drift) near() bool { return d.moved <= d.sum/10 }

// statsDoc is NodeStats as JSON in etcd. Bytes, Records, Ingest and Load have one value
// for each partition, in order.
type statsDoc struct {
	Disk       int64        `json:"disk"`
	Free       int64        `json:"free"`
	Kept       int64        `json:"kept,omitempty"`
	Memory     int64        `json:"memory"`
	Held       topology.Set `json:"held"`
	Partitions topology.Set `json:"partitions"`
	Bytes      []int64      `json:"bytes"`
	Records    []int64      `json:"records"`
	Ingest     []figure     `json:"ingest"`
	Load       []figure     `json:"load"`
}

// figure is written with three significant digits.
type figure float64

// MarshalJSON writes at most nine characters. NaN, the infinities and negative numbers
// become 0.
func (f figure) MarshalJSON() ([]byte, error) {
	x := float64(f)
	if math.IsNaN(x) || math.IsInf(x, 0) || x < 0 {
		x = 0
	}
	return strconv.AppendFloat(nil, x, 'g', 3, 64), nil
}

// maxStatsBytes bounds stats. Those of all partitions, with the longest
// numbers, take 47 KB.
const maxStatsBytes = 64 << 10

func (s *NodeStats) encode() []byte {
	doc := statsDoc{Disk: max(0, s.DiskBytes), Free: max(0, s.FreeBytes), Kept: max(0, s.KeptBytes), Memory: max(0, s.MemoryBytes), Held: s.Held}
	for p := range s.Partitions {
		doc.Partitions.Add(p)
	}
	for p := range doc.Partitions.All() {
		of := s.Partitions[p]
		doc.Bytes, doc.Records = append(doc.Bytes, max(0, of.Bytes)), append(doc.Records, max(0, of.Records))
		doc.Ingest, doc.Load = append(doc.Ingest, figure(of.Ingest)), append(doc.Load, figure(of.Load))
	}
	body, err := json.Marshal(doc)
	if err != nil {
		panic(fmt.Sprintf("cluster: stats: %v", err)) // they hold nothing that JSON cannot say
	}
	return body
}

func decodeStats(body []byte) (s NodeStats, err error) {
	if len(body) > maxStatsBytes {
		return s, fmt.Errorf("stats of %d bytes are longer than %d", len(body), maxStatsBytes)
	}
	var doc statsDoc
	if err := json.Unmarshal(body, &doc); err != nil {
		return s, err
	}
	n := doc.Partitions.Len()
	if len(doc.Bytes) != n || len(doc.Records) != n || len(doc.Ingest) != n || len(doc.Load) != n {
		return s, fmt.Errorf("stats of %d partitions have %d, %d, %d and %d figures", n, len(doc.Bytes), len(doc.Records), len(doc.Ingest), len(doc.Load))
	}
	if min(doc.Disk, doc.Free, doc.Kept, doc.Memory) < 0 {
		return s, fmt.Errorf("stats have %d bytes of disk, %d free, %d kept so, and %d of memory", doc.Disk, doc.Free, doc.Kept, doc.Memory)
	}
	s = NodeStats{DiskBytes: doc.Disk, FreeBytes: doc.Free, KeptBytes: doc.Kept, MemoryBytes: doc.Memory, Held: doc.Held, Partitions: make(map[millrace.Partition]PartitionStats, n)}
	i := 0
	for p := range doc.Partitions.All() {
		of := PartitionStats{doc.Bytes[i], doc.Records[i], float64(doc.Ingest[i]), float64(doc.Load[i])}
		if of.Bytes < 0 || of.Records < 0 || of.Ingest < 0 || of.Load < 0 {
			return NodeStats{}, fmt.Errorf("stats of partition %d are below 0: %+v", p, of)
		}
		s.Partitions[p] = of
		i++
	}
	return s, nil
}

// SetStats notes what planning is to know of the node. It is told as the values of
// [Membership.SetAnswering] are. Brokers do not hear of it.
func (m *Membership) SetStats(s NodeStats) { m.say(statsKind, string(s.encode())) }

const statsKind = "stats"

// Stats returns what each registered node last told for planning. What cannot be read is
// logged and left out. A node tells anew at most every few seconds; to follow it, call
// Stats again.
func Stats(ctx context.Context, c *cluster.Client) (map[millrace.NodeID]NodeStats, error) {
	ctx, cancel := context.WithTimeout(ctx, cluster.CallTimeout)
	defer cancel()
	prefix := c.Prefix() + statsKind + "/"
	got, err := c.Etcd().Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		return nil, cluster.Away(err)
	}
	all := make(map[millrace.NodeID]NodeStats, len(got.Kvs))
	for _, kv := range got.Kvs {
		id := millrace.NodeID(kv.Key[len(prefix):])
		s, err := decodeStats(kv.Value)
		if err != nil {
			c.Log().Warn("the stats of a node cannot be read", "node", id, "err", err)
			continue
		}
		all[id] = s
	}
	return all, nil
}
