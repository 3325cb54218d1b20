package fanout

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// zone is the zone that a broker is in, and the share of its requests that prefer the
// nodes of that zone. The share is 1, unless the zone's nodes would then do more work than
// the mean of all nodes: the one node of a small zone must not be asked by all the zone's
// brokers.
//
// The formula assumes that each of the Z zones with nodes gets the same traffic, that all
// nodes are equally strong, and that other zones keep to their own nodes. c is the share
// of the partitions that the zone's nodes serve, and so of the zone's requests that they
// can answer. f is the zone's share of all nodes; its fair share of all work is f as well.
// If the share s of the zone's requests prefers the zone, and its other requests are
// routed as if there were no zones, the zone's nodes do (s*c + (1-s)*f) / Z of all work.
// That equals f for s = f*(Z-1) / (c-f).
type zone struct {
	name  string // "": no preference
	share atomic.Pointer[zoneShare]
}

// zoneShare is the share worked out for one map.
type zoneShare struct {
	of    *topology.Map
	share float64
}

// preferred returns the zone that one request prefers, or "". Requests are drawn at random
// by the share.
func (z *zone) preferred(m *topology.Map) string {
	if z.name == "" {
		return ""
	}
	s := z.share.Load()
	if s == nil || s.of != m {
		s = &zoneShare{m, shareOf(m, z.name)}
		z.share.Store(s)
	}
	if s.share < 1 && rand.Float64() >= s.share {
		return ""
	}
	return z.name
}

// shareOf returns the share s of the formula at [zone], for the zone name. It is 0 if no
// node of the zone can answer.
func shareOf(m *topology.Map, name string) float64 {
	var served topology.Set
	own, all, zones := 0, 0, map[string]bool{}
	for _, n := range m.Nodes() {
		hosted := m.Hosted(n.ID)
		parts := hosted.And(m.Ready(n.ID))
		if !m.Alive(n.ID) || parts.Len() == 0 {
			continue
		}
		zones[n.Zone] = true
		all++
		if n.Zone == name {
			own++
			served = served.Or(parts)
		}
	}
	if own == 0 {
		return 0
	}
	c, f := float64(served.Len())/partition.Count, float64(own)/float64(all)
	if c <= f {
		return 1
	}
	return min(1, f*float64(len(zones)-1)/(c-f))
}
