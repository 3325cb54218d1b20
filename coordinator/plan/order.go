package plan

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// plan turns a settled layout into a goal and the moves that lead to it. Every move is
// judged by the state that the moves before it lead to, so none breaks a rule. A replica
// that the rules do not let move stays where it is, and a warning says so.
func (l *layout) plan() Plan {
	pl := Plan{Goal: l.problem.Now, Before: l.balance(&l.problem.Now)}
	now := newLayout(l.problem)
	queues, stuck := now.queues(l)
	pl.Moves = now.inTurn(queues)
	for _, m := range pl.Moves {
		pl.Goal.apply(m)
	}
	pl.After = l.balance(&pl.Goal)
	pl.Warnings, pl.Notes = now.warnings(&pl.Goal, stuck)
	return pl
}

// queues returns the moves of each partition in their order, and how many replicas each
// rule kept from being made. It makes the moves on now.
func (now *layout) queues(goal *layout) (queues [partition.Count][]Move, stuck map[Rule]int) {
	stuck = map[Rule]int{}
	for part := range queues {
		leave, come := now.difference(part, goal)
		living := now.living(part)
		var moves []Move
		for len(now.at[part]) > now.wanted && (len(come) > 0 || !now.problem.Limits.Surplus) {
			i := now.crowded(part, leave)
			moves = append(moves, now.move(part, leave[i], none, WhySurplus))
			leave = slices.Delete(leave, i, i+1)
		}
		for len(come) > 0 {
			i, k, rule := now.next(part, leave, come, living)
			if rule != "" {
				stuck[rule] += len(come)
				break
			}
			from := none
			if i != none {
				from = leave[i]
				leave = slices.Delete(leave, i, i+1)
			}
			moves = append(moves, now.move(part, from, come[k], now.why(part, from, living)))
			if from == none || !now.lives(from) {
				living++
			}
			come = slices.Delete(come, k, k+1)
		}
		queues[part] = append(moves, now.superfluous(part, leave)...)
	}
	return queues, stuck
}

// difference returns which of today's nodes lose a partition, and which other nodes get
// it. The nodes that lose it are in the order of rank.
func (now *layout) difference(part int, goal *layout) (leave, come []int) {
	for _, id := range now.problem.Now[part] {
		if n := now.index[id]; !goal.held[n][part] {
			leave = append(leave, n)
		}
	}
	slices.SortStableFunc(leave, func(a, b int) int { return cmp.Compare(now.rank(a), now.rank(b)) })
	for _, n := range goal.at[part] {
		if !now.home[n][part] {
			come = append(come, n)
		}
	}
	slices.Sort(come)
	return leave, come
}

// rank orders nodes by what a replica there is worth: 0 is worth least, and the first to
// leave; a usable node has 4.
func (now *layout) rank(n int) int {
	return slices.Index([]Rule{RuleUnknownNode, RuleGone, RuleBackupOnly, RuleDraining, ""}, now.standing(n))
}

// lives reports whether a node serves what it hosts, as a usable or a draining one does.
func (now *layout) lives(n int) bool { return now.rank(n) >= 3 }

// living returns how many of today's replicas of a partition are on nodes that live.
func (now *layout) living(part int) (n int) {
	for _, id := range now.problem.Now[part] {
		if now.lives(now.index[id]) {
			n++
		}
	}
	return n
}

// why returns the cause of a move to a new node; living is as [layout.living] has it.
func (now *layout) why(part, from, living int) Why {
	switch {
	case from == none, !now.lives(from), living < now.problem.Wanted:
		return WhyMissing
	case now.standing(from) != "":
		return WhyDrain
	}
	for _, n := range now.at[part] {
		if !now.zoneLegal(part, n) {
			return WhyZone
		}
	}
	return WhyBalance
}

// zoneLegal reports whether the zones would let a replica be where it is.
func (now *layout) zoneLegal(part, n int) bool { return now.zoneFits(part, n, now.zone[n]) }

// crowded returns the index in leave of the usable node whose zone has the most of the
// partition's replicas.
func (now *layout) crowded(part int, leave []int) int {
	best, most := none, -1
	for i, n := range leave {
		if !now.held[n][part] {
			continue
		}
		inside := 0
		for _, other := range now.at[part] {
			if now.zone[other] == now.zone[n] {
				inside++
			}
		}
		if inside > most {
			best, most = i, inside
		}
	}
	return best
}

// next returns the first pair that the rules allow: leave[i], which loses the partition,
// and come[k], which gets it. i is none if the new replica comes beside those that are
// there. While fewer replicas live than are wanted, none leaves a draining node. If there
// is no pair, it returns the rule that refused. The rules of the zones alone never refuse
// all pairs: the placements that they allow are the bases of a matroid, so the replicas of
// one placement can be exchanged one by one for those of another. Only a lack of room, or a
// node that is away, leaves no pair.
func (now *layout) next(part int, leave, come []int, living int) (i, k int, refused Rule) {
	try := func(from int) (k int, ok bool) {
		for k, to := range come {
			rule := now.judge(part, from, to)
			if rule == "" {
				return k, true
			}
			if refused == "" || rule == RuleNoRoom {
				refused = rule
			}
		}
		return none, false
	}
	beside := true
	for i, from := range leave {
		if living < now.problem.Wanted && now.standing(from) == RuleDraining {
			continue
		}
		beside = false
		if k, ok := try(from); ok {
			return i, k, ""
		}
	}
	if beside {
		if k, ok := try(none); ok {
			return none, k, ""
		}
	}
	return none, none, refused
}

// move makes a move on now.
func (now *layout) move(part, from, to int, why Why) Move {
	m := Move{Partition: millrace.Partition(part), Why: why}
	if from != none {
		m.From = now.nodes[from].ID
		if now.held[from][part] {
			now.take(part, from)
		}
	}
	if to != none {
		m.To, m.Bytes = now.nodes[to].ID, now.problem.Partitions[part].Bytes
		now.put(part, to)
	}
	return m
}

// superfluous removes the replicas that are left in leave, as long as the wanted number
// stays: if there are too few nodes, those that are gone or draining keep what they have.
func (now *layout) superfluous(part int, leave []int) (moves []Move) {
	// A replica on a usable node stays in place of one that the rules do not let come.
	leave = slices.DeleteFunc(leave, func(n int) bool { return now.held[n][part] })
	spare := len(now.at[part]) + len(leave) - now.problem.Wanted
	for _, n := range leave {
		if spare > 0 {
			spare--
			moves = append(moves, now.move(part, n, none, WhySurplus))
		}
	}
	return moves
}

// inTurn puts the moves in an order, the most urgent partitions first. It makes the order
// in rounds, so that the moves under way are spread over the nodes: a round has at most one
// move of each partition, and at most the limit of moves to or from a node. A partition's
// next move begins when the one before it is done.
func (now *layout) inTurn(queues [partition.Count][]Move) (all []Move) {
	order := make([]int, 0, partition.Count)
	for part, q := range queues {
		if len(q) > 0 {
			order = append(order, part)
		}
	}
	urgent := []Why{WhyMissing, WhyDrain, WhyZone, WhySurplus, WhyBalance}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Compare(slices.Index(urgent, queues[a][0].Why), slices.Index(urgent, queues[b][0].Why))
	})
	for len(order) > 0 {
		busy, later := map[millrace.NodeID]int{}, order[:0]
		for _, part := range order {
			m := queues[part][0]
			limit := now.problem.Limits.MovesPerNode
			if m.To == "" || limit == 0 || busy[m.From] < limit && busy[m.To] < limit {
				all = append(all, m)
				queues[part] = queues[part][1:]
				if m.To != "" {
					busy[m.To]++
				}
				if m.To != "" && m.From != "" && now.lives(now.index[m.From]) {
					busy[m.From]++
				}
			}
			if len(queues[part]) > 0 {
				later = append(later, part)
			}
		}
		order = later
	}
	return all
}

// warnings returns what the goal lacks and why: as warnings, or as notes for what any goal
// of this cluster would lack, as today's assignment does.
func (now *layout) warnings(goal *Assignment, stuck map[Rule]int) (w, notes []string) {
	if n := stuck[RuleNoRoom]; n > 0 {
		w = append(w, fmt.Sprintf("%d replicas have no room on any disk where they should be, and are not made", n))
	}
	if n := stuck[RuleAway]; n > 0 {
		w = append(w, fmt.Sprintf("%d replicas have no place but on nodes that are away, and are not made", n))
	}
	if now.usable < now.problem.Wanted {
		w = append(w, fmt.Sprintf("%d replicas are wanted, and %d nodes may host any", now.problem.Wanted, now.usable))
	}
	if zones := now.usableZones(); zones > 1 && zones < now.wanted {
		note := fmt.Sprintf("%d replicas go to %d zones: some zones have two of a partition or more", now.wanted, zones)
		if now.hostingZones() > zones {
			w = append(w, note)
		} else {
			notes = append(notes, note)
		}
	}
	stay := make([]int, len(now.nodes))
	for _, owners := range goal {
		for _, id := range owners {
			stay[now.index[id]]++
		}
	}
	for i, n := range now.nodes {
		if r := now.standing(i); r != "" && stay[i] > 0 {
			w = append(w, fmt.Sprintf("%s (%s) keeps %d replicas, for which there is no other place", n.ID, r, stay[i]))
		}
	}
	return w, notes
}
