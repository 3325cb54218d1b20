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
	// givenUp are nodes that are gone and are not waited for.
	givenUp map[millrace.NodeID]bool
}

// answers reports whether a node serves a partition: it is alive, reports that it is ready,
// and is not behind the log.
func (e *evidence) answers(id millrace.NodeID, p millrace.Partition) bool {
	ready, lag := e.nodes.Ready(id), e.nodes.Lag(id)
	return e.nodes.Alive(id) && ready.Has(p) && !lag.Behind.Has(p)
}

// ready reports whether a node serves a partition and will go on to. A node whose ingest is
// halted (paused, or its disk full) will soon be behind, and is not ready.
func (e *evidence) ready(id millrace.NodeID, p millrace.Partition) bool {
	return e.answers(id, p) && e.nodes.Halted(id) == ""
}

// serving counts the owners that are ready for a partition. It leaves out the node but.
func (e *evidence) serving(p millrace.Partition, owners []millrace.NodeID, but millrace.NodeID) (n int) {
	for _, id := range owners {
		if id != but && e.ready(id, p) {
			n++
		}
	}
	return n
}

// worth returns how much a replica on a node is worth: 0 if the node is given up, 1 if it is
// not alive, else 2. The replicas worth least are replaced first.
func (e *evidence) worth(id millrace.NodeID) int {
	switch {
	case e.givenUp[id]:
		return 0
	case !e.nodes.Alive(id):
		return 1
	}
	return 2
}

// pace bounds how fast moves are begun.
type pace struct {
	limits          Limits                        // of plans that have none of their own
	planned, urgent struct{ moves, bytes bucket } // what was begun of urgent moves, and of all others
}

// of returns the limits for the urgent or for the other moves of a plan. Urgent moves replace
// lost replicas. The limits of a plan hold for them only if the plan is a repair. The
// coordinator's limit of moves a second never holds for them.
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

// may reports whether a move of so many bytes may begin now, and if so counts it as begun.
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

// urgent reports whether a move replaces a lost replica. Other moves of a repair are not
// urgent: moves away from drained nodes, and further replicas for partitions that lost
// none, as after a cancelled shrink.
func (p *Plan) urgent(m *Move, e *evidence) bool {
	if m.From == "" {
		return p.Kind == Repair && slices.ContainsFunc(p.Base[m.Partition], func(id millrace.NodeID) bool { return e.givenUp[id] })
	}
	return e.givenUp[m.From]
}

// bucket is a leaky bucket, a limit of a rate. What one second allows may be taken at once,
// because a coordinator may look only once a second.
type bucket struct {
	next time.Time // when what was taken is paid off
}

// free reports whether anything may be taken now. A rate of 0 or less is no limit.
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

// advance takes every move of the plan as far as the evidence allows, by changes of the
// plan and the assignment a, and reports whether anything changed. It makes no calls and
// waits for nothing: the leader calls it again and again.
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
			m.State, changed = Waiting, true // etcd was set back, and the assignment was restored without the new replica
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
			m.From, m.To, changed = m.To, "", true // keep the old replica, which serves, and drop the new one, which nobody builds
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

// builds reports whether the new replica of a move is being built, and so counts against the
// limit of moves to its node at a time. A replica that is ready does not count, however
// long the old one has to stay: the old one may wait for other moves to the node. A
// replica in quarantine does not count either, since nobody builds it.
func (m *Move) builds(e *evidence) bool {
	if m.State != Building || m.To == "" || e.ready(m.To, m.Partition) {
		return false
	}
	return !e.quarantined(m)
}

// quarantined reports whether the new replica of a move is in quarantine: its node has set it
// aside because something is wrong with it.
func (e *evidence) quarantined(m *Move) bool {
	out := e.nodes.Quarantined(m.To)
	return out.Has(m.Partition)
}

// takesBack reports whether the plan is being cancelled or rolled back.
func (p *Plan) takesBack() bool { return p.Status == Cancelling || p.Status == RollingBack }

// needs returns how many bytes the node of a move must still write for it. Bytes that it has
// already, of a replica that it builds or has not deleted yet, do not count.
func (m *Move) needs(e *evidence) int64 {
	return max(0, m.Bytes-e.stats[m.To].Partitions[m.Partition].Bytes)
}

// End returns the status that a plan of status s gets when no move is left.
func (s Status) End() Status {
	switch s {
	case Cancelling:
		return Cancelled
	case RollingBack:
		return RolledBack
	}
	return Done
}

// waitsFor returns why the new replica of a move may not be assigned now, or "". It may be
// if its node is alive, ingests what is new, has disk space for it or the data already, and
// the partition has fewer than topology.MaxOwners owners. Besides, the node must not report
// that it serves the partition: it may have hosted it a moment ago and not have heard that
// this ended, and its report would be taken for the new replica's. A move without a new
// replica begins at once. coming is how many bytes moves under way will still write to the
// node.
func (p *Plan) waitsFor(m *Move, a *topology.Assignment, e *evidence, coming int64) string {
	if m.To == "" || slices.Contains(a.Replicas[m.Partition], m.To) {
		return ""
	}
	if !e.nodes.Alive(m.To) {
		return fmt.Sprintf("%s is not there", m.To)
	}
	served := e.serving(m.Partition, a.Replicas[m.Partition], "") > 0                     // if nobody serves it, a node that takes in nothing new is better than none
	if why := e.nodes.Halted(m.To); served && why != "" && why != topology.PausedReason { // a pause ends by itself
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

// begin assigns the new replica of a move, and marks the move as under way.
func (p *Plan) begin(m *Move, a *topology.Assignment, now time.Time) {
	if owners := a.Replicas[m.Partition]; m.To != "" && !slices.Contains(owners, m.To) {
		a.Replicas[m.Partition] = append(slices.Clip(owners), m.To)
		undrop(a, m.To, m.Partition)
	}
	m.State, m.Since = Building, now.UTC().Truncate(time.Millisecond)
}

// mayEnd reports whether the old replica of a move may be removed. The new one must serve.
// Without the old one as many replicas must serve as are wanted; in a rollback as many as
// there were before the plan, if those are fewer. Fewer are enough in two cases: the old
// replica's node is given up; or the plan itself brought the old replica, it does not serve,
// and another does. The last replica of a partition is never removed.
func (p *Plan) mayEnd(m *Move, a *topology.Assignment, e *evidence) bool {
	if m.To != "" && !e.ready(m.To, m.Partition) {
		return false
	}
	owners := a.Replicas[m.Partition]
	serving, wanted := e.serving(m.Partition, owners, m.From), p.Wanted
	if p.Status == RollingBack { // if there were fewer before, no move brings more
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

// leave drops moves that could never end, so that the plan can, and reports whether it
// dropped any. There are two kinds. If the old replica went, too few would be left, and no
// move brings another: such a move is of another assignment, as when etcd was set back.
// Or the plan is cancelled or rolled back, and the move waits for a node that takes in
// nothing new until a person mends it: then both replicas stay, and a later plan removes
// the surplus.
func (p *Plan) leave(a *topology.Assignment, e *evidence) (changed bool) {
	coming := map[millrace.Partition]int{}
	for _, m := range p.Moves {
		if m.State != Moved && m.To != "" && !slices.Contains(a.Replicas[m.Partition], m.To) {
			coming[m.Partition]++
		}
	}
	needless := 0
	stay := map[millrace.NodeID]int{} // moves whose both replicas stay, by the node that they wait for
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

// spoilt returns an owner of a partition that takes in nothing new until a person mends it,
// if such nodes are the only owners that are not ready; else "". The node but, whose
// replica is to go, does not count.
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

// end removes the old replica of a move from the assignment, and marks the move as done.
func (p *Plan) end(m *Move, a *topology.Assignment, now time.Time) {
	if m.From != "" {
		a.Replicas[m.Partition] = slices.DeleteFunc(slices.Clone(a.Replicas[m.Partition]), func(id millrace.NodeID) bool { return id == m.From })
		a.AllowShrink = true // the guard against shrinking is for mistakes; mayEnd has judged this removal
	}
	m.State, m.Since = Moved, now.UTC().Truncate(time.Millisecond)
}

// undrop takes back the order to a node to delete a partition.
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

// retarget changes the plan's moves so that they lead from the assignment to another goal.
// Moves that are done stay, as a record. Moves that lead to the goal as well stay as they
// are. All others are replaced by new ones.
func (p *Plan) retarget(a *topology.Assignment, goal *Layout, e *evidence) {
	kept, bytes := p.Moves[:0:0], bytesOf(e.stats)
	spoken := map[millrace.Partition]map[millrace.NodeID]bool{} // the nodes that kept moves add or remove
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

// removes reports whether the plan still has moves that only remove a replica.
func (p *Plan) removes() bool {
	return slices.ContainsFunc(p.Moves, func(m Move) bool { return m.State != Moved && m.To == "" })
}

// cancelled returns the goal of a plan that is cancelled now. A new replica that is ready
// replaces the old one; one that is not is dropped. A partition that has no more replicas
// than are wanted keeps all.
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
