package coordinator

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator/plan"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Progress is how far a plan is.
type Progress struct {
	Moves    map[MoveState]int `json:"moves"`
	Bytes    int64             `json:"bytes"`     // of all moves
	Done     int64             `json:"done"`      // bytes of the moves that are done
	Seconds  float64           `json:"seconds"`   // since the plan began, or from its beginning to its end
	Rate     float64           `json:"rate"`      // bytes of moves done a second, since Plan.Since
	Left     float64           `json:"left"`      // an estimate of the seconds that are left; -1: not known
	UnderWay []MoveProgress    `json:"under_way"` // moves that are Building
	Nodes    []NodeProgress    `json:"nodes"`
	// Before counts, in a rollback, the moves that were done before it was ordered. They do
	// not count for how far the rollback is.
	Before int `json:"before,omitempty"`
	// Undone counts, in a cancelled plan, the moves that were done since and removed a new
	// replica that was not ready.
	Undone int `json:"undone,omitempty"`
	// Holding has, by the node that they wait for, the moves whose new replica is ready and
	// whose old one must stay, because that node does not serve the partition, or soon will
	// not.
	Holding map[millrace.NodeID]Held `json:"holding,omitempty"`
	// Quarantined counts, by node, the moves whose new replica is in quarantine. They wait
	// until a person releases the replica, or the cause ends.
	Quarantined map[millrace.NodeID]int `json:"quarantined,omitempty"`
}

// Held are moves that wait for a node.
type Held struct {
	Moves int    `json:"moves"`
	Why   string `json:"why"` // why the node does not serve the partitions
}

// Standstill says that the plan is paused, since when and by whom, so that nothing moves or
// is repaired; "" if it is not paused.
func (p *Plan) Standstill() string {
	if p == nil || p.Status != Paused {
		return ""
	}
	since := ""
	for _, e := range p.Log { // the last such event is of this pause
		if who, ok := strings.CutPrefix(e.What, string(Pause)+", by "); ok {
			since = " since " + e.When.Format(time.RFC3339) + ", by " + who[:max(0, strings.LastIndex(who, ": "))]
		}
	}
	return fmt.Sprintf("plan %s (%s) is paused%s: nothing moves or is repaired until millrace cluster resume", p.ID, p.Kind, since)
}

// MoveProgress is how far a move is, by what the node of the new replica reports.
type MoveProgress struct {
	Move
	Replica string  `json:"replica"`          // the state of the new replica: waiting before the move begins, then as its node reports, at last done
	Reason  string  `json:"reason,omitempty"` // a stable word
	Detail  string  `json:"detail,omitempty"` // a sentence
	Seconds float64 `json:"seconds"`          // since that state began
}

// Wait is something, other than their turn, that moves wait for.
type Wait struct {
	Moves int    `json:"moves"` // how many wait for it
	For   string `json:"for"`   // in words
}

// Waits returns what the moves of the last plan wait for that may not begin now, the most
// frequent first. Moves to a node that lacks room are one Wait, which describes the first
// of them, since each lacks another amount.
func (s *Steered) Waits(stats map[millrace.NodeID]members.NodeStats, now time.Time) (waits []Wait) {
	p := s.Plan
	if p == nil || p.Status.Ended() || p.Status == Paused {
		return nil
	}
	e := &evidence{now: now, nodes: s.Map, stats: stats}
	coming := map[millrace.NodeID]int64{}
	for _, m := range p.Moves {
		if m.State == Building {
			coming[m.To] += m.needs(e)
		}
	}
	at := map[string]int{}
	for i := range p.Moves {
		m := &p.Moves[i]
		if m.State != Waiting {
			continue
		}
		why := p.waitsFor(m, &s.Assignment, e, coming[m.To])
		kind, _, _ := strings.Cut(why, ":")
		if _, ok := at[kind]; why != "" && !ok {
			at[kind] = len(waits)
			waits = append(waits, Wait{For: why})
		}
		if why != "" {
			waits[at[kind]].Moves++
		}
	}
	slices.SortStableFunc(waits, func(a, b Wait) int { return cmp.Compare(b.Moves, a.Moves) })
	return waits
}

// NodeProgress is how many partitions a node hosts before, now and after the plan.
type NodeProgress struct {
	ID     millrace.NodeID `json:"id"`
	Before int             `json:"before"`
	Now    int             `json:"now"`
	After  int             `json:"after"`
}

// Progress returns how far the last plan is.
func (s *Steered) Progress(now time.Time) (pr Progress) {
	p := s.Plan
	if p == nil {
		return pr
	}
	pr.Moves = map[MoveState]int{}
	count := map[millrace.NodeID]*NodeProgress{}
	of := func(id millrace.NodeID) *NodeProgress {
		if count[id] == nil {
			count[id] = &NodeProgress{ID: id}
		}
		return count[id]
	}
	after := p.goal(&s.Assignment)
	if p.Status.Ended() {
		after = Layout(s.Assignment.Replicas)
	}
	for q := range after {
		for _, id := range p.Base[q] {
			of(id).Before++
		}
		for _, id := range s.Assignment.Replicas[q] {
			of(id).Now++
		}
		for _, id := range after[q] {
			of(id).After++
		}
	}
	for _, id := range slices.Sorted(maps.Keys(count)) {
		pr.Nodes = append(pr.Nodes, *count[id])
	}
	var lately []Move // those done since the last order
	bytes, full := int64(0), false
	pr.Holding, pr.Quarantined = map[millrace.NodeID]Held{}, map[millrace.NodeID]int{}
	for _, m := range p.Moves {
		pr.Moves[m.State]++
		pr.Bytes += m.Bytes
		switch m.State {
		case Moved:
			pr.Done += m.Bytes
			if m.Since.Before(p.Since) && (p.Status == RollingBack || p.Status == RolledBack) {
				pr.Before++
			}
			if m.To == "" && !m.Since.Before(p.Since) && (p.Status == Cancelling || p.Status == Cancelled) {
				pr.Undone++
			}
			if !m.Since.Before(p.Since) {
				lately, bytes = append(lately, m), bytes+m.Bytes
			}
		case Building:
			mp := s.underWay(m, now)
			if out := s.Map.Quarantined(m.To); out.Has(m.Partition) {
				pr.Quarantined[m.To]++
			}
			if mp.Replica == readyReplica {
				if held := s.holding(m); len(held) > 0 {
					pr.Holding[held[0]] = Held{pr.Holding[held[0]].Moves + 1, s.unserving(held[0])}
				}
			}
			full = full || mp.Reason == topology.DiskFullReason
			pr.UnderWay = append(pr.UnderWay, mp)
		}
	}
	end := now
	if p.Status.Ended() {
		end = p.Ended
	}
	pr.Seconds, pr.Left = end.Sub(p.Created).Seconds(), -1
	running := end.Sub(p.Since).Seconds()
	if running > 0 {
		pr.Rate = float64(bytes) / running
	}
	switch {
	case p.Status.Ended():
		pr.Left = 0
	case p.Status == Paused || full || len(pr.Holding)+len(pr.Quarantined) > 0 || s.gone(): // not known: the plan waits for something
	default:
		pr.Left = p.remains(lately, pr.Bytes-pr.Done, now)
	}
	return pr
}

// remains estimates how many seconds the moves left, of so many bytes, still take; -1: not
// known. It takes the rate of moves, and of bytes, that were done lately, and returns the
// longer of the two estimates. The first of those moves only begins the time that is
// measured: others were built while it was.
func (p *Plan) remains(lately []Move, bytes int64, now time.Time) float64 {
	if len(lately) == 0 {
		return -1
	}
	minute := func(m Move) bool { return now.Sub(m.Since) < time.Minute }
	if slices.ContainsFunc(lately, minute) { // only the last minute counts: what slowed earlier moves may be over
		lately = slices.DeleteFunc(slices.Clone(lately), func(m Move) bool { return !minute(m) })
	}
	first := slices.MinFunc(lately, func(a, b Move) int { return a.Since.Compare(b.Since) }).Since
	moved, ended := int64(0), 0 // bytes and moves, after the first
	for _, m := range lately {
		if m.Since.After(first) {
			moved, ended = moved+m.Bytes, ended+1
		}
	}
	if ended == 0 {
		return -1
	}
	seconds := now.Sub(first).Seconds()
	left := seconds / float64(ended) * float64(p.left()) // by the rate of moves
	if moved > 0 {
		left = max(left, seconds/float64(moved)*float64(bytes))
	}
	return left
}

// readyReplica is MoveProgress.Replica of a new replica that is ready.
const readyReplica = "ready"

// underWay returns how far a move is that has begun and is not done.
func (s *Steered) underWay(m Move, now time.Time) MoveProgress {
	mp := MoveProgress{Move: m, Replica: "assigned", Seconds: now.Sub(m.Since).Seconds()}
	ready := s.Map.Ready(m.To)
	switch {
	case m.To == "":
		mp.Replica, mp.Detail = "waits", s.goes(m)
	case !s.Map.Alive(m.To):
		mp.Replica, mp.Detail = "gone", fmt.Sprintf("%s is not there", m.To)
	case ready.Has(m.Partition):
		mp.Replica, mp.Detail = readyReplica, s.goes(m)
	}
	for _, r := range s.Map.Reports(m.To) {
		if r.Partitions.Has(m.Partition) && !r.Warning {
			mp.Replica, mp.Reason, mp.Detail, mp.Seconds = r.State, r.Reason, r.Detail, now.Sub(r.Since).Seconds()
		}
	}
	return mp
}

// goes says when the old replica of a move is removed.
func (s *Steered) goes(m Move) string {
	switch {
	case m.From == "":
		return ""
	case s.Plan.Status == Paused:
		return fmt.Sprintf("%s stays while the plan is paused", m.From)
	}
	text := fmt.Sprintf("%s goes when as many serve as are wanted", m.From)
	for _, id := range s.holding(m) {
		text += fmt.Sprintf(", and %s %s", id, s.unserving(id))
	}
	return text
}

// holding returns the nodes for which the old replica of a move has to stay: owners of the
// partition, perhaps the new one too, that are not ready for it. nil if the old replica may
// be removed.
func (s *Steered) holding(m Move) (ids []millrace.NodeID) {
	e := &evidence{nodes: s.Map, givenUp: s.givenUp()}
	if s.Plan.mayEnd(&m, &s.Assignment, e) {
		return nil
	}
	for _, id := range s.Assignment.Replicas[m.Partition] {
		if id != m.From && !e.ready(id, m.Partition) {
			ids = append(ids, id)
		}
	}
	return ids
}

// unserving says why a node does not serve a partition that it hosts.
func (s *Steered) unserving(id millrace.NodeID) string {
	switch halted := s.Map.Halted(id); {
	case !s.Map.Alive(id):
		return "is gone"
	case halted != "":
		return "takes in nothing new: " + halted
	}
	return "does not serve it yet"
}

// gone reports whether a node to which the plan still has to give something is not alive.
func (s *Steered) gone() bool {
	for id := range s.Plan.takers() {
		if !s.Map.Alive(id) {
			return true
		}
	}
	return false
}

// moved returns how far the i-th move of the plan is, in whatever state it is.
func (s *Steered) moved(i int, e *evidence) MoveProgress {
	p, m := s.Plan, s.Plan.Moves[i]
	switch m.State {
	case Moved:
		return MoveProgress{Move: m, Replica: string(Moved), Seconds: e.now.Sub(m.Since).Seconds()}
	case Building:
		return s.underWay(m, e.now)
	}
	building, before, coming := 0, 0, int64(0)
	for j, other := range p.Moves {
		if other.To == m.To && other.builds(e) {
			building++
		}
		switch {
		case other.State == Building && other.To == m.To:
			coming += other.needs(e)
		case other.State == Waiting && j < i:
			before++
		}
	}
	why := p.waitsFor(&m, &s.Assignment, e, coming)
	switch {
	case p.Status == Paused:
		why = "the plan is paused"
	case why == "" && m.To == "":
		why = fmt.Sprintf("its turn: %d others wait before it", before)
	case why == "":
		why = fmt.Sprintf("its turn: %d moves to %s are under way, and %d others wait before it", building, m.To, before)
	}
	return MoveProgress{Move: m, Replica: string(Waiting), Detail: why, Seconds: e.now.Sub(p.Since).Seconds()}
}

// Explanation says why a partition is where it is, and where else it might be.
type Explanation struct {
	Partition millrace.Partition `json:"partition"`
	Wanted    int                `json:"wanted"`
	Replicas  []Replica          `json:"replicas"`
	Elsewhere []Verdict          `json:"elsewhere"` // every other node
	Moves     []MoveProgress     `json:"moves,omitempty"`
}

// Replica is one of a partition's replicas.
type Replica struct {
	Node   millrace.NodeID `json:"node"`
	Zone   string          `json:"zone,omitempty"`
	State  string          `json:"state"`
	Reason string          `json:"reason,omitempty"`
	Detail string          `json:"detail,omitempty"`
	Since  time.Time       `json:"since,omitzero"`
	Why    string          `json:"why"` // why the replica is on this node
}

// Verdict says whether a node may host a partition, and by which rule not.
type Verdict struct {
	Node   millrace.NodeID `json:"node"`
	OK     bool            `json:"ok"`
	Rule   string          `json:"rule,omitempty"` // a stable word
	Detail string          `json:"detail"`         // for people
}

// Explain says why each replica of a partition is where it is, and for every other node
// whether it may host the partition by the planner's rules. If only is not empty, it looks
// at that node alone.
func (s *Steered) Explain(stats map[millrace.NodeID]members.NodeStats, p millrace.Partition, only millrace.NodeID, now time.Time) (x Explanation, err error) {
	e := &evidence{now: now, nodes: s.Map, stats: stats, givenUp: s.givenUp()}
	x.Partition, x.Wanted = p, s.Map.Wanted()
	problem := s.problem(e, x.Wanted, Layout(s.Assignment.Replicas), everybody)
	for _, id := range s.Assignment.Replicas[p] {
		if only == "" || only == id {
			x.Replicas = append(x.Replicas, s.replicaOf(id, p))
		}
	}
	if only != "" && !slices.ContainsFunc(problem.Nodes, func(n plan.Node) bool { return n.ID == only }) {
		return x, unknownNode(s, only)
	}
	for _, n := range problem.Nodes {
		if slices.Contains(s.Assignment.Replicas[p], n.ID) || only != "" && n.ID != only {
			continue
		}
		v, err := problem.Explain(p, n.ID)
		if err != nil {
			return x, err
		}
		if hosted := s.Map.Hosted(n.ID); v.OK && hosted.Len() == 0 && !s.Intent.Nodes[n.ID].Added {
			v.Detail += "; it hosts nothing, and is given nothing until millrace node add"
		}
		x.Elsewhere = append(x.Elsewhere, Verdict{n.ID, v.OK, string(v.Rule), v.Detail})
	}
	if s.Plan != nil {
		for i, m := range s.Plan.Moves {
			if m.Partition == p && (only == "" || m.From == only || m.To == only) {
				x.Moves = append(x.Moves, s.moved(i, e))
			}
		}
	}
	return x, nil
}

func (s *Steered) replicaOf(id millrace.NodeID, p millrace.Partition) Replica {
	n, _ := s.Map.Node(id)
	r := Replica{Node: id, Zone: n.Zone, State: "not ready", Why: fmt.Sprintf("assigned by epoch %d", s.Assignment.Epoch)}
	if ready := s.Map.Ready(id); ready.Has(p) {
		r.State = "ready"
	}
	if !s.Map.Alive(id) {
		r.State = "gone"
		r.Since = s.Notes.Gone[id]
	}
	for _, told := range s.Map.Reports(id) {
		if told.Partitions.Has(p) {
			r.State, r.Reason, r.Detail, r.Since = told.State, told.Reason, told.Detail, told.Since
		}
	}
	if s.Plan != nil {
		if slices.Contains(s.Plan.Base[p], id) { // earlier plans brought it, and their times are not kept
			r.Why = fmt.Sprintf("it was here before %s, when plan %s (%s) began", s.Plan.Created.Format(time.RFC3339), s.Plan.ID, s.Plan.Kind)
		}
		for _, m := range s.Plan.Moves {
			if m.Partition == p && m.To == id && m.State != Waiting {
				r.Why = fmt.Sprintf("plan %s (%s) brought it %s: %s", s.Plan.ID, s.Plan.Kind, m.Since.Format(time.RFC3339), s.Plan.Why)
			}
		}
	}
	return r
}
