package coordinator

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator/plan"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// repair plans to make the replicas of given-up nodes elsewhere: by a new plan or, while a
// plan is under way, by giving that plan another goal. Moves away from a node that is back
// are dropped if they have not begun. The error says why replicas cannot be made elsewhere.
func (c *Coordinator) repair(s *Steered, e *evidence) error {
	under := s.Plan != nil && !s.Plan.Status.Ended()
	if under && s.Plan.Status != Paused {
		s.Plan.spare(e, &s.Intent)
	}
	if under && s.Plan.heirless(e) { // the old node's replicas are safe, and no person chose another node for them
		by := "coordinator " + c.cfg.Name + ", since the node that was to take over is gone for good"
		if err := s.order(Cancel, e, by); err != nil {
			return err
		}
	}
	now := Layout(s.Assignment.Replicas)
	if under {
		now = s.Plan.goal(&s.Assignment)
	}
	var dead []string
	var lost []millrace.NodeID
	for _, id := range slices.Sorted(maps.Keys(e.givenUp)) {
		if e.givenUp[id] && now.hosts(id) {
			dead, lost = append(dead, string(id)), append(lost, id)
		}
	}
	switch {
	case len(dead) == 0:
		return nil
	case under && s.Plan.Status == Paused:
		return fmt.Errorf("%s is gone for good, and its replicas are not made elsewhere while plan %s is paused: resume it, or cancel it", strings.Join(dead, ", "), s.Plan.ID)
	}
	wanted := s.Map.Wanted()
	if under {
		wanted = s.Plan.Wanted
	}
	made, err := s.repaired(e, wanted, now)
	if err != nil {
		return err
	}
	goal := Layout(made.Goal)
	if !goal.differs(&now) {
		wayOut := ""
		if under {
			end := "add a node once it is cancelled (millrace cluster cancel)"
			if s.Plan.Status == Cancelling {
				end = "roll it back (millrace cluster rollback)"
			}
			wayOut = fmt.Sprintf("; plan %s (%s) waits for that: %s, or bring the lost one back", s.Plan.ID, s.Plan.Kind, end)
		}
		return fmt.Errorf("%s is gone for good, and no other node can take what it hosted: %s%s", strings.Join(dead, ", "), strings.Join(made.Warnings, "; "), wayOut)
	}
	why := fmt.Sprintf("%s gone for longer than %s", strings.Join(dead, ", "), c.cfg.Grace)
	if !under {
		s.Plan = newPlan(s, Repair, why, "coordinator "+c.cfg.Name, Limits{}, e.now)
		defer func() { s.begins(s.Plan, Request{Kind: Repair, By: s.Plan.By, Nodes: lost}) }()
	}
	if s.Plan.Status == Cancelling {
		s.unmark(s.Plan, &goal)
	}
	s.Plan.retarget(&s.Assignment, &goal, e)
	s.Plan.note(e.now, "%s: its replicas are made elsewhere, %d moves are left", why, s.Plan.left())
	return nil
}

// repaired makes the plan that gives to other nodes what the layout now gives to given-up
// nodes. While a plan is rolled back or cancelled, a replica for which no other node can be
// found stays on an alive node that hosts the partition, even if it was to be removed from
// there: otherwise the plan would wait for ever for the wanted number of replicas. A
// rollback keeps none on a drained node.
func (s *Steered) repaired(e *evidence, wanted int, now Layout) (plan.Plan, error) {
	made, err := s.solve(e, wanted, now, assignedOrAdded, noGain)
	if err != nil || s.Plan == nil || s.Plan.Status != RollingBack && s.Plan.Status != Cancelling {
		return made, err
	}
	cancels := s.Plan.Status == Cancelling
	goal, stays := Layout(made.Goal), false
	goal = goal.clone()
	for p := range partition.Count {
		for i, lost := range goal[p] {
			if !e.givenUp[lost] {
				continue
			}
			for _, id := range s.Assignment.Replicas[p] {
				if s.Map.Alive(id) && (cancels || !s.Intent.Nodes[id].Draining) && !slices.Contains(goal[p], id) {
					goal[p][i], stays = id, true
					break
				}
			}
		}
	}
	if !stays {
		return made, nil
	}
	kept := *s
	if cancels { // a node that was drained and keeps replicas is not drained any more
		kept.Intent = s.Intent.clone()
		kept.unmark(s.Plan, &goal)
	}
	return kept.solve(e, wanted, goal, assignedOrAdded, noGain)
}

// givenUp returns the nodes that are not alive and are not waited for: a person gave them
// up, or the leading coordinator did after the grace. Other nodes may be in the map with
// the value false.
func (s *Steered) givenUp() map[millrace.NodeID]bool {
	ids := map[millrace.NodeID]bool{}
	for id, m := range s.Intent.Nodes {
		ids[id] = m.Lost && !s.Map.Alive(id)
	}
	for _, id := range s.Notes.GivenUp {
		ids[id] = !s.Map.Alive(id)
	}
	return ids
}

// spare drops the moves that replace replicas of given-up nodes, if the node is back and the
// move has not begun. Moves away from a drained node stay.
func (p *Plan) spare(e *evidence, intent *Intent) {
	before := len(p.Moves)
	p.Moves = slices.DeleteFunc(p.Moves, func(m Move) bool {
		return m.State == Waiting && m.Lost && e.nodes.Alive(m.From) && !intent.Nodes[m.From].Draining
	})
	if n := before - len(p.Moves); n > 0 {
		p.note(e.now, "%d moves are not needed: the nodes are back", n)
	}
}

// heirless reports whether a running plan replaces a node, and the node that was to take over
// is given up.
func (p *Plan) heirless(e *evidence) bool {
	if p.Kind != Replace || p.Status != Running {
		return false
	}
	takers := p.takers()
	for id := range takers {
		if !e.givenUp[id] {
			return false
		}
	}
	return len(takers) > 0
}

// left counts the moves that are not done.
func (p *Plan) left() (n int) {
	for _, m := range p.Moves {
		if m.State != Moved {
			n++
		}
	}
	return n
}

// nodes returns the nodes that host anything, sorted.
func (l *Layout) nodes() []millrace.NodeID {
	a := topology.Assignment{Replicas: *l}
	return a.Nodes()
}

// hosts reports whether a node hosts anything.
func (l *Layout) hosts(id millrace.NodeID) bool {
	for p := range partition.Count {
		if slices.Contains(l[p], id) {
			return true
		}
	}
	return false
}
