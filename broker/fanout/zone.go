package fanout

import (
	"math/rand/v2"
	"sync/atomic"

	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// zone is where a broker stands, and which share of its requests prefers the
// nodes that stand there too: all, unless its nodes would then do more than
// the mean of all nodes do. Otherwise the one node of a small zone would be
// asked by all its brokers.
//
// Brokers are taken to get the same traffic in each of the Z zones that have
// nodes, and nodes to be of one strength. Of the work in its zone a zone can do
// the share c, that of the partitions which its nodes serve, and the part f of
// all nodes is to do the part f of all work. If the share s of its requests
// prefers it, and the others are routed as if there were no zones, it does
// (s*c + (1-s)*f) / Z; that is f for s = f*(Z-1) / (c-f).
type zone struct {
	name  string // "": no preference
	share atomic.Pointer[zoneShare]
}

// zoneShare is the share under one map.
type zoneShare struct {
	of    *topology.Map
	share float64
}

// preferred returns the zone that one request prefers, or "".
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

// shareOf returns s as [zone] has it.
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
