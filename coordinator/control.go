package coordinator

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Order is what a person may tell a plan.
type Order string

// The orders.
const (
	Pause    Order = "pause"    // no move is begun, and no old replica is removed
	Resume   Order = "resume"   // the paused plan goes on
	Cancel   Order = "cancel"   // new replicas that are ready stay; the others are removed, and no more are begun
	Rollback Order = "rollback" // everything returns to what it was before the plan
)

// Command gives the last plan an order, if confirm returns nil. A plan that has ended can
// still be rolled back. If the plan or its status has changed while confirm ran, the order
// is refused. It returns the plan as the order left it.
func Command(ctx context.Context, cl *cluster.Client, o Order, by string, confirm func(*Steered) error) (after *Plan, err error) {
	s, stats, err := Look(ctx, cl)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(s.lost(), s.takes(o)); err != nil {
		return nil, err
	}
	plan, status := s.Plan.ID, s.Plan.Status
	if err := confirm(s); err != nil {
		return nil, err
	}
	err = change(ctx, cl, func(s *Steered) error {
		if s.Plan == nil || s.Plan.ID != plan || s.Plan.Status != status {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "plan", Detail: fmt.Sprintf("plan %s was %s, and the plan has changed since", plan, status), WayOut: "look again: millrace cluster status"}
		}
		after = s.Plan
		return s.order(o, &evidence{now: time.Now(), nodes: s.Map, stats: stats, givenUp: map[millrace.NodeID]bool{}}, by)
	})
	return after, err
}

// Assign replaces the assignment without a plan, as [steering.AssignIf] does. It is refused
// while a plan is under way.
func Assign(ctx context.Context, cl *cluster.Client, a topology.Assignment, lost bool) error {
	return steering.AssignIf(ctx, cl, a, lost, func(raw *steering.State) error {
		s, err := read(raw)
		if err != nil {
			return err
		}
		return s.Idle()
	})
}

// Idle returns nil if no plan is under way, else the refusal of an assignment without one.
func (s *Steered) Idle() error {
	if p := s.Plan; p != nil && !p.Status.Ended() {
		wayOut := "cancel it first: millrace cluster cancel"
		if s.takes(Cancel) != nil {
			wayOut = "wait for its end, or roll it back first: millrace cluster rollback"
		}
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "plan", Detail: fmt.Sprintf("plan %s (%s) is %s, and would go on from another assignment", p.ID, p.Kind, p.Status.words()), WayOut: wayOut}
	}
	return nil
}

// Missing returns the nodes that hosted something before the last plan and are not alive. A
// rollback waits for them until they are back or are given up. s.Plan must not be nil.
func (s *Steered) Missing() (ids []millrace.NodeID) {
	for _, id := range s.Plan.Base.nodes() {
		if !s.Map.Alive(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Fewer returns the partitions that a rollback leaves with fewer replicas than were wanted
// before the plan and than there are now, because fewer nodes hosted them then.
func (s *Steered) Fewer() (fewer topology.Set) {
	for q, before := range s.Plan.Base {
		if len(before) < min(s.Plan.BaseWanted, len(s.Assignment.Replicas[q])) {
			fewer.Add(millrace.Partition(q))
		}
	}
	return fewer
}

// Growing returns, while a plan raises the number of replicas, the partitions of which at
// least as many replicas are ready as were wanted before the plan.
func (s *Steered) Growing() (growing topology.Set) {
	p := s.Plan
	if p == nil || p.Status.Ended() || p.Wanted <= p.BaseWanted {
		return growing
	}
	e := &evidence{nodes: s.Map}
	for q, owners := range s.Assignment.Replicas {
		if e.serving(millrace.Partition(q), owners, "") >= p.BaseWanted {
			growing.Add(millrace.Partition(q))
		}
	}
	return growing
}

// takes returns the refusal of an order that the last plan cannot be given, else nil.
func (s *Steered) takes(o Order) error {
	p := s.Plan
	if p == nil {
		return &millrace.Error{Reason: millrace.ReasonNotFound, Field: "plan", Detail: "there is no plan", WayOut: "make one: millrace cluster apply"}
	}
	allowed := map[Order][]Status{
		Pause: {Running, Cancelling, RollingBack}, Resume: {Paused}, Cancel: {Running, Paused, RollingBack},
		Rollback: {Running, Paused, Cancelling, Done, Cancelled},
	}
	ok := false
	for _, st := range allowed[o] {
		ok = ok || st == p.Status
	}
	if !ok {
		return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "plan", Detail: fmt.Sprintf("plan %s is %s, and there is nothing to %s", p.ID, p.Status.words(), o), WayOut: "see: millrace cluster status"}
	}
	return nil
}

// order gives the last plan an order and notes who gave it. The caller writes s to etcd.
func (s *Steered) order(o Order, e *evidence, by string) error {
	if err := s.takes(o); err != nil {
		return err
	}
	p := s.Plan
	act := audit.Entry{Who: by, Act: string(o), On: "plan " + p.ID, Before: string(p.Status)}
	if o != Pause {
		p.Since = e.now.UTC().Truncate(time.Millisecond)
	}
	switch o {
	case Pause:
		p.Held, p.Status = p.Status, Paused
	case Resume:
		p.Status, p.Held = p.Held, ""
	case Cancel:
		if p.Wanted > p.BaseWanted || p.removes() { // else every partition has the lower number of replicas already
			p.Wanted = p.BaseWanted
		}
		goal := p.cancelled(&s.Assignment, e)
		s.unmark(p, &goal)
		p.Status, p.Held = Cancelling, ""
		p.retarget(&s.Assignment, &goal, e)
	case Rollback:
		s.unmark(p, nil)
		p.Status, p.Held, p.Wanted, p.Ended = RollingBack, "", p.BaseWanted, time.Time{}
		p.retarget(&s.Assignment, &p.Base, e)
	}
	p.note(e.now, "%s, by %s: %d moves are left", o, by, p.left())
	act.After = string(p.Status)
	s.Acts = append(s.Acts, act)
	return nil
}

// unmark restores the marks of nodes that a plan has changed, such as that a node is
// drained. With a nil goal, of a rollback, it restores all. Else, of a cancelled plan, it
// restores the marks that the goal contradicts: a drained node that hosts something in the
// goal, or the other way round. A node that is marked as lost stays so.
func (s *Steered) unmark(p *Plan, goal *Layout) {
	for id, was := range p.Marks {
		is := s.Intent.Nodes[id]
		if goal != nil && is.Draining != goal.hosts(id) {
			continue
		}
		if was.Lost = is.Lost; is.Lost {
			was.By, was.Since = is.By, is.Since
		}
		if s.Intent.Nodes[id] = was; was == (Mark{}) {
			delete(s.Intent.Nodes, id)
		}
	}
	if p.Marks != nil {
		return
	}
	for id, m := range s.Intent.Nodes { // an old plan that noted no marks: nodes that host again are not drained
		if m.Draining && cmp.Or(goal, &p.Base).hosts(id) {
			m.Draining = false
			s.Intent.Nodes[id] = m
		}
	}
}
