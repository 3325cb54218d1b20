package plan

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/internal/partition"
)

// Bounds on the work of swap.
const (
	swapPasses = 8       // passes over all replicas that move
	swapTries  = 400_000 // exchanges that are tried, in all passes together
	swapOthers = 64      // other moving replicas that one is tried against
)

// swap exchanges replicas that move anyway, so that bytes, load and pairs of nodes get
// more even. The counts stay as they are, and there are no more moves. A moving replica is
// exchanged with another moving one; or it stays where it is today, and another replica of
// that node moves in its place.
func (l *layout) swap() {
	tries := swapTries
	for range swapPasses {
		moving, better := l.moving(), false
		for i, s := range moving {
			if s = l.best(moving, i, &tries); s.other != none {
				l.exchange(s)
				better = true
			}
			if tries <= 0 {
				return
			}
		}
		if !better {
			return
		}
	}
}

// exchange is two replicas that change places: part is on n, other on m.
type exchange struct{ part, n, other, m int }

// moving returns the replicas that are not where they are today, as exchanges that lack
// the other replica.
func (l *layout) moving() (all []exchange) {
	for part, at := range l.at {
		for _, n := range at {
			if !l.home[n][part] {
				all = append(all, exchange{part, n, none, none})
			}
		}
	}
	return all
}

// best returns the exchange of the i-th moving replica that gains most. Its other is none
// if no exchange gains. It takes what it tries from tries.
func (l *layout) best(moving []exchange, i int, tries *int) exchange {
	s := moving[i]
	best, gain := exchange{other: none}, -1e-9 // an exchange must gain more than rounding errors
	try := func(other, m int) {
		*tries--
		x := exchange{s.part, s.n, other, m}
		if l.mayExchange(x) {
			if g := l.gain(x); g < gain {
				best, gain = x, g
			}
		}
	}
	if !l.held[s.n][s.part] { // an exchange before this one has taken it away
		return best
	}
	for m := range l.nodes {
		if l.home[m][s.part] && l.standing(m) == "" && !l.held[m][s.part] {
			for other := range partition.Count {
				if l.held[m][other] {
					try(other, m)
				}
			}
		}
	}
	stride := len(moving)/swapOthers + 1
	for j := 1; j*stride < len(moving); j++ {
		o := moving[(i+j*stride)%len(moving)]
		if l.held[o.n][o.part] {
			try(o.part, o.n)
		}
	}
	return best
}

// mayExchange reports whether an exchange keeps the hard rules, and adds no
// move.
func (l *layout) mayExchange(x exchange) bool {
	if x.n == x.m || l.held[x.m][x.part] || l.held[x.n][x.other] || !l.takes(x.part, x.m) || !l.takes(x.other, x.n) {
		return false
	}
	moves := 0
	for _, s := range [...]step{{x.part, x.n, x.m}, {x.other, x.m, x.n}} {
		if l.home[s.from][s.part] {
			moves++
		}
		if l.home[s.to][s.part] {
			moves--
		}
	}
	return moves <= 0 && l.zoneFits(x.part, x.n, l.zone[x.m]) && l.zoneFits(x.other, x.m, l.zone[x.n])
}

func (l *layout) exchange(x exchange) {
	l.take(x.part, x.n)
	l.take(x.other, x.m)
	l.put(x.part, x.m)
	l.put(x.other, x.n)
}

// gain returns by how much an exchange changes unevenness; below 0 is better. Unevenness
// is the sum of the squares of bytes, of load, and of the partitions that pairs of nodes
// share, each as a multiple of its mean. Bytes that do not fit on a disk count more than
// all that.
func (l *layout) gain(x exchange) (g float64) {
	for k := range l.total {
		if l.total[k] == 0 {
			continue
		}
		mean := l.total[k] / l.weight
		d := (l.size[x.part][k] - l.size[x.other][k]) / mean
		n, m := l.fill[x.n][k]/mean, l.fill[x.m][k]/mean
		g += d*(d-2*n)/l.nodes[x.n].Weight + d*(d+2*m)/l.nodes[x.m].Weight
	}
	if l.usable > 1 && l.wanted > 1 {
		nodes, wanted := float64(l.usable), float64(l.wanted)
		mean := partition.Count * wanted * (wanted - 1) / (nodes * (nodes - 1))
		pairs := l.pairs(x.part, x.other, x.n, x.m) + l.pairs(x.other, x.part, x.m, x.n)
		g += float64(pairs) / (mean * mean) * 2 / (nodes - 1)
	}
	return g + l.overdraws(x)
}

// pairs returns how the sum of the squares of what pairs of nodes share changes when a
// partition goes from n to m, and other from m to n.
func (l *layout) pairs(part, other, n, m int) (change int) {
	for _, third := range l.at[part] {
		if third != n && !l.held[third][other] {
			change += 2 - 2*int(l.pair[n][third]) + 2*int(l.pair[m][third])
		}
	}
	return change
}

// overdraws returns how many more bytes do not fit on their disks after an exchange (below
// 0: fewer), weighted so that they count more than all else.
func (l *layout) overdraws(x exchange) (g float64) {
	const dear = 1e6
	bytes := func(part, n int) int64 {
		if l.home[n][part] {
			return 0
		}
		return l.problem.Partitions[part].Bytes
	}
	for _, c := range [...]struct{ n, out, in int }{{x.n, x.part, x.other}, {x.m, x.other, x.part}} {
		before := l.room[c.n]
		after := before + bytes(c.out, c.n) - bytes(c.in, c.n)
		g += dear * (float64(min(before, 0)) - float64(min(after, 0))) / (1 + l.total[0]/partition.Count)
	}
	return g
}

// overfull finds nodes that have no room for all replicas that come to them, and lowers
// how many those nodes may have. It reports whether there are any.
func (l *layout) overfull() (found bool) {
	for n := range l.nodes {
		if l.room[n] >= 0 || l.nodes[n].Away {
			continue
		}
		var coming []int64
		room := l.room[n]
		for part := range partition.Count {
			if l.held[n][part] && !l.home[n][part] {
				bytes := l.problem.Partitions[part].Bytes
				coming = append(coming, bytes)
				room += bytes
			}
		}
		slices.SortFunc(coming, func(a, b int64) int { return cmp.Compare(a, b) })
		fit := 0
		for ; fit < len(coming) && coming[fit] <= room; fit++ {
			room -= coming[fit]
		}
		if fit < len(coming) {
			l.most[n] = min(l.most[n], l.count[n]) - max(1, (len(coming)-fit)/2)
			found = true
		}
	}
	return found
}
