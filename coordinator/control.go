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

// Order is what people tell a plan that is under way.
type Order string

// The orders.
const (
	Pause    Order = "pause"    // nothing further is begun, and no replica goes
	Resume   Order = "resume"   // it goes on
	Cancel   Order = "cancel"   // what is ready stays, and what is not is not begun
	Rollback Order = "rollback" // all is as it was before
)

// Command gives the last plan an order, if confirm agrees to it. A rollback of
// one that has ended leads back to what there was before it. A plan that became
// another, or came to another state, while confirm was thought over is not given it.
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

// Assign replaces the assignment past all plans, as [steering.AssignIf] does, unless
// one is under way.
func Assign(ctx context.Context, cl *cluster.Client, a topology.Assignment, lost bool) error {
	return steering.AssignIf(ctx, cl, a, lost, func(raw *steering.State) error {
		s, err := read(raw)
		if err != nil {
			return err
		}
		return s.Idle()
	})
}

// Idle refuses what may not be done while a plan is under way: an assignment past it.
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

// Missing returns the nodes that hosted something before the last plan and are not
// there: a rollback gives them nothing until they are back, or are given up.
func (s *Steered) Missing() (ids []millrace.NodeID) {
	for _, id := range s.Plan.Base.nodes() {
		if !s.Map.Alive(id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Fewer returns the partitions that a rollback leaves with fewer replicas than are wanted, and
// than there are: that many hosted them before.
func (s *Steered) Fewer() (fewer topology.Set) {
	for q, before := range s.Plan.Base {
		if len(before) < min(s.Plan.BaseWanted, len(s.Assignment.Replicas[q])) {
			fewer.Add(millrace.Partition(q))
		}
	}
	return fewer
}

// Growing returns the partitions that a plan under way is yet to give more replicas than were
// wanted before, and of which as many are ready as were.
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

// takes refuses an order that the last plan cannot be given.
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
		if p.Wanted > p.BaseWanted || p.removes() { // else all partitions have fewer already
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

// unmark takes back what a plan that is rolled back has said of nodes, but for those
// that are lost: they still are. Of one that is cancelled, what goal does not make
// true: a node that was to host nothing and hosts some, or the other way round.
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
	for id, m := range s.Intent.Nodes { // it did not note what there was: they host again
		if m.Draining && cmp.Or(goal, &p.Base).hosts(id) {
			m.Draining = false
			s.Intent.Nodes[id] = m
		}
	}
}
