package coordinator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// evidence is what is known of the nodes at one moment.
type evidence struct {
	now   time.Time
	nodes *topology.Map
	stats map[millrace.NodeID]members.NodeStats
	// givenUp are nodes that are gone and will not be waited for.
	givenUp map[millrace.NodeID]bool
}

// answers reports whether a node serves a partition: it lives, and says so, and
// is not behind.
func (e *evidence) answers(id millrace.NodeID, p millrace.Partition) bool {
	ready, lag := e.nodes.Ready(id), e.nodes.Lag(id)
	return e.nodes.Alive(id) && ready.Has(p) && !lag.Behind.Has(p)
}

// ready reports whether a node can be relied on to serve a partition: it does,
// and is not about to be behind, as one is whose ingest is paused or whose disk is full.
func (e *evidence) ready(id millrace.NodeID, p millrace.Partition) bool {
	return e.answers(id, p) && e.nodes.Halted(id) == ""
}

// serving counts the nodes that serve a partition, but for one.
func (e *evidence) serving(p millrace.Partition, owners []millrace.NodeID, but millrace.NodeID) (n int) {
	for _, id := range owners {
		if id != but && e.ready(id, p) {
			n++
		}
	}
	return n
}

// worth orders nodes by how little a replica there is worth. What comes in place of one
// that is lost is the most urgent.
func (e *evidence) worth(id millrace.NodeID) int {
	switch {
	case e.givenUp[id]:
		return 0
	case !e.nodes.Alive(id):
		return 1
	}
	return 2
}

// pace bounds what is begun.
type pace struct {
	limits          Limits // of a plan that does not say
	planned, urgent struct{ moves, bytes bucket }
}

// of returns the limits of moves of a plan. What is lost is made elsewhere as
// fast as nodes can, also where a plan of other limits is under way: only what
// somebody planned waits for its second.
func (c *pace) of(p *Plan, urgent bool) Limits {
	said := p.Limits
	if urgent && p.Kind != Repair {
		said = Limits{}
	}
	l := Limits{PerNode: cmp.Or(said.PerNode, c.limits.PerNode), BytesPerSecond: cmp.Or(said.BytesPerSecond, c.limits.BytesPerSecond), PerSecond: said.PerSecond}
	if !urgent {
		l.PerSecond = cmp.Or(l.PerSecond, c.limits.PerSecond)
	}
	return l
}

// may reports whether a move of so many bytes may begin now, and notes that it
// does.
func (c *pace) may(now time.Time, bytes int64, urgent bool, l Limits) bool {
	b := &c.planned
	if urgent {
		b = &c.urgent
	}
	if !b.moves.free(now, int64(l.PerSecond)) || !b.bytes.free(now, l.BytesPerSecond) {
		return false
	}
	b.moves.take(now, 1, int64(l.PerSecond))
	b.bytes.take(now, bytes, l.BytesPerSecond)
	return true
}

// urgent reports whether a move makes elsewhere what is lost. A repair also does
// what the rules demand of nodes that are there, such as those that are drained, and
// brings partitions that lost nothing to what is wanted, as after a shrink that was
// cancelled: that is not urgent.
func (p *Plan) urgent(m *Move, e *evidence) bool {
	if m.From == "" {
		return p.Kind == Repair && slices.ContainsFunc(p.Base[m.Partition], func(id millrace.NodeID) bool { return e.givenUp[id] })
	}
	return e.givenUp[m.From]
}

// bucket is a leaky bucket: what is taken of it is spread over time, but for
// what a second allows, since nobody looks more often for sure.
type bucket struct {
	next time.Time // when what was taken is paid for
}

func (b *bucket) free(now time.Time, perSecond int64) bool {
	return perSecond <= 0 || !now.Before(b.next)
}

func (b *bucket) take(now time.Time, n, perSecond int64) {
	if perSecond <= 0 {
		return
	}
	if idle := now.Add(-time.Second); b.next.Before(idle) {
		b.next = idle
	}
	b.next = b.next.Add(time.Duration(float64(n) / float64(perSecond) * float64(time.Second)))
}

// advance takes every move of a plan as far as the evidence lets it, in the
// assignment, and reports whether anything changed. It asks nobody and waits for
// nothing: whoever leads calls it again and again.
func (p *Plan) advance(a *topology.Assignment, e *evidence, c *pace) (changed bool) {
	if p.Status.Ended() || p.Status == Paused {
		return false
	}
	if a.Wanted != p.Wanted {
		a.Wanted, changed = p.Wanted, true
	}
	building := map[millrace.NodeID]int{}
	coming := map[millrace.NodeID]int64{} // bytes
	for i := range p.Moves {
		m := &p.Moves[i]
		if m.State == Building && m.To != "" && !slices.Contains(a.Replicas[m.Partition], m.To) {
			m.State, changed = Waiting, true // etcd went back, and the assignment was restored without it
		}
		if m.State == Building {
			coming[m.To] += m.needs(e)
		}
		if m.builds(e) {
			building[m.To]++
		}
	}
	for _, urgent := range []bool{true, false} {
		limits := c.of(p, urgent)
		for i := range p.Moves {
			m := &p.Moves[i]
			free := m.To == "" || building[m.To] < max(1, limits.PerNode)
			if m.State == Waiting && p.urgent(m, e) == urgent && free && p.waitsFor(m, a, e, coming[m.To]) == "" && c.may(e.now, m.Bytes, urgent, limits) {
				p.begin(m, a, e.now)
				building[m.To]++
				coming[m.To] += m.needs(e)
				changed = true
			}
		}
	}
	for i := range p.Moves {
		if m := &p.Moves[i]; p.takesBack() && m.State == Building && m.To != "" && m.From != "" && e.quarantined(m) && e.answers(m.From, m.Partition) {
			m.From, m.To, changed = m.To, "", true // the old one is there, and nobody builds the new one
		}
		if m := &p.Moves[i]; m.State == Building && p.mayEnd(m, a, e) {
			p.end(m, a, e.now)
			changed = true
		}
	}
	if p.leave(a, e) {
		changed = true
	}
	if p.left() == 0 {
		p.Status, p.Ended, changed = p.Status.End(), e.now.UTC(), true
		p.note(e.now, "%s", p.Status)
	}
	return changed
}

// builds reports whether the new replica of a move is being built. One that is ready
// takes none of its node's moves at a time, however long the old one has to stay:
// others may be what it stays for. Nor does one that is in quarantine, whose backup, say,
// claims more than the log has: nobody builds it.
func (m *Move) builds(e *evidence) bool {
	if m.State != Building || m.To == "" || e.ready(m.To, m.Partition) {
		return false
	}
	return !e.quarantined(m)
}

// quarantined reports whether the new replica of a move is in quarantine.
func (e *evidence) quarantined(m *Move) bool {
	out := e.nodes.Quarantined(m.To)
	return out.Has(m.Partition)
}

// takesBack reports whether the plan has been told not to go on to its end.
func (p *Plan) takesBack() bool { return p.Status == Cancelling || p.Status == RollingBack }

// needs returns how many bytes the node of a move is yet to write for it, beside those
// that it has: of a replica that it builds, or that moved away and is not deleted.
func (m *Move) needs(e *evidence) int64 {
	return max(0, m.Bytes-e.stats[m.To].Partitions[m.Partition].Bytes)
}

// End is the status in which a plan ends of which nothing is left to be done.
func (s Status) End() Status {
	switch s {
	case Cancelling:
		return Cancelled
	case RollingBack:
		return RolledBack
	}
	return Done
}

// waitsFor is why the new replica of a move may not be assigned now, or "": its
// node lives, takes in what is new and has room, or the data, and the partition has room for one more; and it
// does not say that it serves it, as one does that hosted it a moment ago and has not heard
// that it is to let go: what it says then would be taken for the new replica's. A move
// without one begins at once.
func (p *Plan) waitsFor(m *Move, a *topology.Assignment, e *evidence, coming int64) string {
	if m.To == "" || slices.Contains(a.Replicas[m.Partition], m.To) {
		return ""
	}
	if !e.nodes.Alive(m.To) {
		return fmt.Sprintf("%s is not there", m.To)
	}
	served := e.serving(m.Partition, a.Replicas[m.Partition], "") > 0                     // else whoever has anything of it is better than nobody
	if why := e.nodes.Halted(m.To); served && why != "" && why != topology.PausedReason { // which ends by itself
		return fmt.Sprintf("%s takes in nothing new: %s", m.To, why)
	}
	if ready := e.nodes.Ready(m.To); ready.Has(m.Partition) {
		return fmt.Sprintf("%s has not let go yet of the replica that it had before", m.To)
	}
	if n := len(a.Replicas[m.Partition]); n >= topology.MaxOwners {
		return fmt.Sprintf("the partition has %d replicas, and one has to go first", n)
	}
	s, needs := e.stats[m.To], m.needs(e)
	room := s.FreeBytes - s.KeptBytes
	if _, has := s.Partitions[m.Partition]; has && needs == 0 && (room >= 0 || !served) {
		return ""
	}
	if s.DiskBytes > 0 && (room < 0 || room-coming < needs) {
		return fmt.Sprintf("%s has no room: %d MiB are free, of which %d stay so and %d are for moves under way, and it takes %d", m.To, s.FreeBytes>>20, s.KeptBytes>>20, coming>>20, needs>>20)
	}
	return ""
}

func (p *Plan) begin(m *Move, a *topology.Assignment, now time.Time) {
	if owners := a.Replicas[m.Partition]; m.To != "" && !slices.Contains(owners, m.To) {
		a.Replicas[m.Partition] = append(slices.Clip(owners), m.To)
		undrop(a, m.To, m.Partition)
	}
	m.State, m.Since = Building, now.UTC().Truncate(time.Millisecond)
}

// mayEnd reports whether the old replica of a move may go: the new one serves,
// and as many serve then as are wanted, or as there were before a plan that is rolled
// back, if those are fewer. One that is given up, or that the plan itself brought and
// that does not serve, is not counted on; the latter stays while nobody else serves, for
// it may have a moment ago and have all that there is.
func (p *Plan) mayEnd(m *Move, a *topology.Assignment, e *evidence) bool {
	if m.To != "" && !e.ready(m.To, m.Partition) {
		return false
	}
	owners := a.Replicas[m.Partition]
	serving, wanted := e.serving(m.Partition, owners, m.From), p.Wanted
	if p.Status == RollingBack { // where there were fewer before, nothing brings more
		wanted = min(wanted, max(1, len(p.Base[m.Partition])))
	}
	switch {
	case m.From == "" || !slices.Contains(owners, m.From):
		return true
	case len(owners) == 1:
		return false
	case serving >= wanted:
		return true
	case e.answers(m.From, m.Partition):
		return false
	}
	return e.givenUp[m.From] || serving > 0 && !slices.Contains(p.Base[m.Partition], m.From)
}

// leave takes out the moves whose old replica can never go: fewer would be left than there
// are to be, and nothing brings another one. They are of another assignment, which etcd
// had when the plan was made, or when it was last heard of it. Or the plan is cancelled or
// rolled back, and they wait for a node that takes in nothing new until somebody mends it:
// both replicas stay, and what is too many goes by a plan that is made when it is mended.
func (p *Plan) leave(a *topology.Assignment, e *evidence) (changed bool) {
	coming := map[millrace.Partition]int{}
	for _, m := range p.Moves {
		if m.State != Moved && m.To != "" && !slices.Contains(a.Replicas[m.Partition], m.To) {
			coming[m.Partition]++
		}
	}
	needless := 0
	stay := map[millrace.NodeID]int{} // by whom they wait for
	p.Moves = slices.DeleteFunc(p.Moves, func(m Move) bool {
		owners := a.Replicas[m.Partition]
		if m.State != Building || !slices.Contains(owners, m.From) || m.To != "" && !e.answers(m.To, m.Partition) {
			return false
		}
		if len(owners)-1+coming[m.Partition] < min(p.Wanted, len(p.Base[m.Partition])) && (m.To == "" || e.ready(m.To, m.Partition)) {
			needless++
			return true
		}
		id := e.spoilt(m.Partition, owners, m.From)
		if !p.takesBack() || id == "" {
			return false
		}
		stay[id]++
		return true
	})
	if needless > 0 {
		p.note(e.now, "%d moves are not needed: as many replicas are there as are wanted, and nothing brings another one", needless)
	}
	for _, id := range slices.Sorted(maps.Keys(stay)) {
		p.note(e.now, "%d replicas stay that were to go, since %s takes in nothing new (%s): when that is mended, millrace cluster plan shows what is too many", stay[id], id, e.nodes.Halted(id))
	}
	return needless+len(stay) > 0
}

// spoilt returns the node for which alone, but for one that is to go, a partition has fewer
// that serve it than host it: one that takes in nothing new, which does not end by itself; ""
// if there is none.
func (e *evidence) spoilt(p millrace.Partition, owners []millrace.NodeID, but millrace.NodeID) (of millrace.NodeID) {
	for _, id := range owners {
		switch why := e.nodes.Halted(id); {
		case id == but || e.ready(id, p):
		case !e.nodes.Alive(id) || why == "" || why == topology.PausedReason:
			return ""
		default:
			of = id
		}
	}
	return of
}

func (p *Plan) end(m *Move, a *topology.Assignment, now time.Time) {
	if m.From != "" {
		a.Replicas[m.Partition] = slices.DeleteFunc(slices.Clone(a.Replicas[m.Partition]), func(id millrace.NodeID) bool { return id == m.From })
		a.AllowShrink = true // its guard is for mistakes, and every replica that goes here was judged
	}
	m.State, m.Since = Moved, now.UTC().Truncate(time.Millisecond)
}

// undrop takes back the order to delete a partition.
func undrop(a *topology.Assignment, id millrace.NodeID, p millrace.Partition) {
	drop, ok := a.Drop[id]
	if !ok || !drop.Has(p) {
		return
	}
	drop.Remove(p)
	a.Drop = maps.Clone(a.Drop)
	if a.Drop[id] = drop; drop.Len() == 0 {
		delete(a.Drop, id)
	}
}

// retarget has the plan lead to another goal from where it is. Moves that are
// done stay as what happened; those under way that lead there go on, for what they
// were planned for.
func (p *Plan) retarget(a *topology.Assignment, goal *Layout, e *evidence) {
	kept, bytes := p.Moves[:0:0], bytesOf(e.stats)
	spoken := map[millrace.Partition]map[millrace.NodeID]bool{} // what kept moves bring or take
	speak := func(m Move) {
		if spoken[m.Partition] == nil {
			spoken[m.Partition] = map[millrace.NodeID]bool{}
		}
		spoken[m.Partition][m.To], spoken[m.Partition][m.From] = true, true
	}
	for _, m := range p.Moves {
		wanted := goal[m.Partition]
		brings := m.To == "" || slices.Contains(wanted, m.To)
		takes := m.From == "" || !slices.Contains(wanted, m.From) && slices.Contains(a.Replicas[m.Partition], m.From)
		switch {
		case m.State == Moved:
			kept = append(kept, m)
		case brings && takes:
			kept = append(kept, m)
			speak(m)
		}
	}
	for q := range partition.Count {
		at := millrace.Partition(q)
		missing := func(of, from []millrace.NodeID) (out []millrace.NodeID) {
			for _, id := range of {
				if !slices.Contains(from, id) && !spoken[at][id] {
					out = append(out, id)
				}
			}
			return out
		}
		add, remove := missing(goal[q], a.Replicas[q]), missing(a.Replicas[q], goal[q])
		slices.SortStableFunc(remove, func(a, b millrace.NodeID) int { return cmp.Compare(e.worth(a), e.worth(b)) })
		for i := range max(len(add), len(remove)) {
			m := Move{Partition: at, State: Waiting, Bytes: bytes(at)}
			if i < len(add) {
				m.To = add[i]
			} else {
				m.Bytes = 0
			}
			if i < len(remove) {
				m.From = remove[i]
				m.Lost = e.givenUp[m.From]
			}
			kept = append(kept, m)
		}
	}
	p.Moves = kept
}

// removes reports whether the plan is yet to have partitions with a replica less.
func (p *Plan) removes() bool {
	return slices.ContainsFunc(p.Moves, func(m Move) bool { return m.State != Moved && m.To == "" })
}

// cancelled is where a plan ends that is stopped now: what is ready replaces
// what it was to replace, and everything else is as it was. A partition that has no
// more replicas than are wanted keeps all.
func (p *Plan) cancelled(a *topology.Assignment, e *evidence) Layout {
	goal := Layout(a.Replicas)
	goal = goal.clone()
	for _, m := range p.Moves {
		if m.State != Building || m.To == "" || len(goal[m.Partition]) <= p.Wanted {
			continue
		}
		gone := m.To
		if e.ready(m.To, m.Partition) && m.From != "" {
			gone = m.From
		} else if e.ready(m.To, m.Partition) {
			continue
		}
		goal[m.Partition] = slices.DeleteFunc(goal[m.Partition], func(id millrace.NodeID) bool { return id == gone })
	}
	return goal
}
