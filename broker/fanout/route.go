package fanout

import (
	"slices"

	"github.com/cespare/xxhash/v2"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// shardRequest is the part of a question that one node is asked for: its partitions.
type shardRequest struct {
	node     topology.Node
	parts    topology.Set
	entities int   // in these partitions; set when the node is asked
	room     int64 // bytes that the answer of one group may take; the node may say that it needs more
}

// tier says how far a node can be trusted to answer now.
type tier uint8

const (
	near         tier = iota // good, and in the zone that the request prefers
	good                     // alive and caught up
	poor                     // the same, but slow or silent of late
	stale                    // alive and was caught up, but has fallen behind the log
	unresponsive             // caught up once, but answers neither calls nor pings
	lost                     // was caught up when its lease ended; it may still be serving
	behind                   // alive, but by its own report never caught up
	tiers                    // how many tiers there are
)

// candidate is a node and what it could be asked for, in one tier.
type candidate struct {
	shardRequest
	tie uint64 // of nodes that cover equally much, the one with the highest is chosen
}

// choice is what a route depends on, besides the wanted partitions.
type choice struct {
	m *topology.Map
	doubtful
	zone   string            // the zone that this request prefers; "": none
	avoid  []millrace.NodeID // nodes tried already
	viewer string
	work   func(millrace.Partition) int // how many entities are asked of a partition
}

// candidates returns what each node could be asked for in tier t, in the order of the
// map's nodes and without those to avoid.
func (c *choice) candidates(t tier) []candidate {
	var out []candidate
	m := c.m
	for _, n := range m.Nodes() {
		if slices.Contains(c.avoid, n.ID) || m.Alive(n.ID) == (t == lost) {
			continue
		}
		parts := m.Hosted(n.ID)
		ready, fallen := m.Ready(n.ID), m.Lag(n.ID).Behind
		switch stands := c.tier(n); {
		case t == behind:
			parts = parts.Minus(ready)
		case t == lost || t == unresponsive && stands == unresponsive:
			parts = parts.And(ready)
		case t == stale && stands != unresponsive:
			parts = parts.And(ready.And(fallen))
		case t == stands:
			parts = parts.And(ready.Minus(fallen))
		default:
			continue
		}
		out = append(out, candidate{shardRequest{node: n, parts: parts}, tie(c.viewer, n.ID)})
	}
	return out
}

// tier returns the tier of an alive node for the partitions that it has caught up with.
func (c *choice) tier(n topology.Node) tier {
	switch {
	case slices.Contains(c.unresponsive, n.ID):
		return unresponsive
	case slices.Contains(c.poor, n.ID):
		return poor
	case c.zone != "" && n.Zone == c.zone:
		return near
	}
	return good
}

// tie hashes viewer and node, so that equally good nodes share the viewers
// evenly and a viewer's requests meet the same node's caches again.
func tie(viewer string, id millrace.NodeID) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(viewer)
	_, _ = d.Write([]byte{0})
	_, _ = d.WriteString(string(id))
	return d.Sum64()
}

// route covers the wanted partitions with few nodes. It goes through the tiers from the
// best to the worst, and in each takes again and again the node that covers most of what
// is left. A partition that several chosen nodes of a tier have goes to the one with less
// work. Equal inputs give equal routes. rest is the partitions that no node can be asked
// for.
func (c *choice) route(want topology.Set) (requests []shardRequest, rest topology.Set) {
	for t := near; t < tiers && want.Len() > 0; t++ {
		chosen := cover(c.candidates(t), &want)
		balance(chosen, c.work)
		requests = append(requests, chosen...)
	}
	return merged(requests), want
}

// cover chooses nodes of one tier, and removes the partitions of the chosen from want.
// Each request has all partitions of the initial want that its node has, so that requests
// may overlap.
func cover(from []candidate, want *topology.Set) []shardRequest {
	var chosen []shardRequest
	all := *want
	for {
		best, most := -1, 0
		for i, c := range from {
			gain := c.parts.And(*want)
			if n := gain.Len(); n > most || n == most && n > 0 && c.tie > from[best].tie {
				best, most = i, n
			}
		}
		if best < 0 {
			return chosen
		}
		*want = want.Minus(from[best].parts)
		chosen = append(chosen, shardRequest{node: from[best].node, parts: from[best].parts.And(all)})
	}
}

// balance leaves each partition in only one of the requests that have it. Partitions that
// only one request has stay there; then each of the others goes to the request with the
// least work so far.
func balance(requests []shardRequest, work func(millrace.Partition) int) {
	var once, more topology.Set
	for _, r := range requests {
		more = more.Or(r.parts.And(once))
		once = once.Or(r.parts)
	}
	load := make([]int, len(requests))
	for i := range requests {
		own := requests[i].parts.Minus(more)
		for p := range own.All() {
			load[i] += work(p)
		}
	}
	for p := range more.All() {
		least := -1
		for i := range requests {
			if requests[i].parts.Has(p) && (least < 0 || load[i] < load[least]) {
				least = i
			}
		}
		for i := range requests {
			if i != least {
				requests[i].parts.Remove(p)
			}
		}
		load[least] += work(p)
	}
}

// merged joins the requests to the same node, which several tiers may have chosen, and
// drops those left without a partition.
func merged(requests []shardRequest) []shardRequest {
	var out []shardRequest
	for _, r := range requests {
		at := slices.IndexFunc(out, func(o shardRequest) bool { return o.node.ID == r.node.ID })
		switch {
		case at >= 0:
			out[at].parts = out[at].parts.Or(r.parts)
		case r.parts.Len() > 0:
			out = append(out, r)
		}
	}
	return out
}
