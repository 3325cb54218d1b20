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
	entities int   // of the parts, once it is asked,
	room     int64 // and how many bytes its answer may take, unless it says that it takes more
}

// tier says how far a node can be trusted to answer now.
type tier uint8

const (
	near         tier = iota // good, and in the zone that the request prefers
	good                     // alive and caught up
	poor                     // the same, but slow or silent of late
	stale                    // alive and was caught up, but has fallen behind the log
	unresponsive             // caught up once, but answers nothing at all
	lost                     // was caught up when its lease ended; may well be serving
	behind                   // alive, but never caught up as far as it says
	tiers
)

// candidate is a node and what it could be asked for, in one tier.
type candidate struct {
	shardRequest
	tie uint64 // orders nodes that cover as much
}

// choice is what a route is chosen by, beside the partitions wanted.
type choice struct {
	m *topology.Map
	doubtful
	zone   string            // that this request prefers; "": none
	avoid  []millrace.NodeID // tried already
	viewer string
	work   func(millrace.Partition) int
}

// candidates returns what each node of the map, but those to avoid, could be
// asked for in a tier, in the order of ids.
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

// tier returns where an alive and caught-up node stands.
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
// evenly and a viewer meets the same caches again.
func tie(viewer string, id millrace.NodeID) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.WriteString(viewer)
	_, _ = d.Write([]byte{0})
	_, _ = d.WriteString(string(id))
	return d.Sum64()
}

// route covers the wanted partitions with few nodes: always the node that
// covers most of what is left, from the best tier that covers anything. What
// several of the chosen could answer goes to the one with less work. The
// answer depends on the choice alone. rest is what no node can be asked.
func (c *choice) route(want topology.Set) (requests []shardRequest, rest topology.Set) {
	for t := near; t < tiers && want.Len() > 0; t++ {
		chosen := cover(c.candidates(t), &want)
		balance(chosen, c.work)
		requests = append(requests, chosen...)
	}
	return merged(requests), want
}

// cover takes the chosen nodes' partitions out of want. Each request it returns
// has everything wanted that its node could answer.
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

// balance gives each partition to one of the requests that have it: first what
// only one has, then each to the one with the least work so far.
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

// merged joins the requests of one node, which several tiers may have chosen, and
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
