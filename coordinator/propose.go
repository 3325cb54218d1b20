package coordinator

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator/plan"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// Request is what somebody wants of a cluster.
type Request struct {
	Kind     Kind
	Replicas int               // of each partition; 0: as many as now
	Nodes    []millrace.NodeID // to add, drain or give up; of [Replace]: the one to replace and the one that replaces it
	Limits   Limits            // zero: the coordinator's
	// Gain is the least gain in balance for which the plan moves replicas that no rule
	// requires to move: a share of the mean, see [plan.Limits]. Only for [Rebalance] and
	// [Resize].
	Gain float64
	By   string // who wants it
	// Lossy allows a plan with which partitions have fewer replicas than are wanted, or one
	// replica instead of more, and a plan while nodes are gone.
	Lossy bool
}

// The gravity of a [Check].
const (
	Pass  = "pass"
	Warn  = "warn"
	Fault = "error" // the plan may not begin
)

// Check is the result of one check of a plan before it begins.
type Check struct {
	Gravity string `json:"gravity"`
	What    string `json:"what"` // a sentence
}

// Proposal is a plan that is proposed, and not begun.
type Proposal struct {
	Plan          *Plan  // the new plan; for a repair that changes the plan under way, a copy of that with the change
	Why           string // what is wanted
	Before, After plan.Balance
	Checks        []Check
	Goal          Layout                         // to which the plan leads
	intent        Intent                         // the intent after the plan begins
	marks         bool                           // the request marks nodes, for example as drained
	lossy         bool                           // Request.Lossy would turn one of the faults into a warning
	now           Layout                         // who hosts what before the plan
	bytes         func(millrace.Partition) int64 // the size of a replica
}

// Err returns the error that keeps the plan from being begun; nil if no check is a Fault.
func (p *Proposal) Err() error {
	var faults []string
	for _, c := range p.Checks {
		if c.Gravity == Fault {
			faults = append(faults, c.What)
		}
	}
	if len(faults) == 0 {
		return nil
	}
	wayOut := "see to what the checks say, and plan again"
	if p.lossy {
		wayOut += ", or have it done all the same: --override with the cluster's name"
	}
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "plan", Detail: strings.Join(faults, "; "), WayOut: wayOut}
}

// Changes reports whether the plan changes anything. Marks of nodes and another number of
// wanted replicas are changes, even if nothing moves.
func (p *Proposal) Changes() bool {
	return p.marks || len(p.Plan.Moves) > 0 || p.Plan.Wanted != p.Plan.BaseWanted
}

// Look reads from etcd how a cluster is steered, and the statistics that its nodes report.
func Look(ctx context.Context, cl *cluster.Client) (*Steered, map[millrace.NodeID]members.NodeStats, error) {
	raw, err := steering.Read(ctx, cl)
	if err != nil {
		return nil, nil, err
	}
	s, err := read(raw)
	if err != nil {
		return nil, nil, err
	}
	stats, err := members.Stats(ctx, cl)
	return s, stats, err
}

// Surplus returns the partitions that have more replicas than are wanted while no plan is
// under way that could remove them, as when etcd has lost a plan.
func (s *Steered) Surplus() topology.Set {
	if s.Plan != nil && !s.Plan.Status.Ended() {
		return topology.Set{}
	}
	return s.Map.Surplus()
}

// Start proposes a plan and, if confirm returns nil, begins it. It returns the plan's id. If
// the cluster changes before the plan is written, so that the goal differs, it proposes and
// calls confirm again: it begins only what confirm has seen.
func Start(ctx context.Context, cl *cluster.Client, r Request, confirm func(*Proposal) error) (id string, err error) {
	stats, err := members.Stats(ctx, cl)
	if err != nil {
		return "", err
	}
	var shown *Proposal
	for {
		s, _, err := Look(ctx, cl)
		if err != nil {
			return "", err
		}
		if shown, err = Propose(s, stats, r, time.Now()); err != nil {
			return "", err
		}
		if err := confirm(shown); err != nil {
			return "", err
		}
		err = change(ctx, cl, func(now *Steered) error {
			again, err := Propose(now, stats, r, time.Now())
			if err != nil {
				return err
			}
			if again.Goal.differs(&shown.Goal) {
				return steering.ErrRaced
			}
			if err := again.Err(); err != nil {
				return err
			}
			now.Plan, now.Intent, id = again.Plan, again.intent, again.Plan.ID
			now.begins(again.Plan, r)
			return nil
		})
		if !errors.Is(err, steering.ErrRaced) {
			return id, err
		}
	}
}

// begins adds to the cluster's history who begins a plan.
func (s *Steered) begins(p *Plan, r Request) {
	on := "all partitions"
	if len(r.Nodes) > 0 {
		on = fmt.Sprint(r.Nodes)
	}
	s.Acts = append(s.Acts, audit.Entry{Who: r.By, Act: string(r.Kind), On: on, Before: fmt.Sprintf("epoch %d", s.Assignment.Epoch), After: fmt.Sprintf("plan %s: %d moves", p.ID, len(p.Moves))})
}

// change changes the steering documents by a function, in one transaction. If somebody else
// has changed them meanwhile, it tries again, up to 20 times; then it returns
// [steering.ErrRaced].
func change(ctx context.Context, cl *cluster.Client, by func(*Steered) error) error {
	for range 20 {
		var bad error
		err := steering.Change(ctx, cl, nil, func(raw *steering.State) error {
			s, err := read(raw)
			if err == nil {
				err = by(s)
			}
			if bad = err; err != nil {
				return err
			}
			return s.write()
		})
		if bad != nil || !errors.Is(err, steering.ErrRaced) {
			return err
		}
	}
	return steering.ErrRaced
}

// lost returns the refusal of any change while etcd has lost state, and so does not say how
// the cluster is; else nil.
func (s *Steered) lost() error {
	lost := s.Map.Lost()
	if lost == "" {
		return nil
	}
	return &millrace.Error{Reason: millrace.ReasonUnavailable, Field: "etcd", Detail: "etcd has lost state: " + lost, WayOut: cluster.RestoreWayOut}
}

// Propose makes the plan for a request, and checks it. It changes nothing of s. The error
// says that there can be no such plan; what speaks against it is in Checks.
func Propose(s *Steered, stats map[millrace.NodeID]members.NodeStats, r Request, now time.Time) (*Proposal, error) {
	if err := r.Limits.validate(); err != nil {
		return nil, err
	}
	e := &evidence{now: now, nodes: s.Map, stats: stats, givenUp: s.givenUp()}
	if err := s.lost(); err != nil {
		return nil, err
	}
	if s.Assignment.Epoch == 0 {
		return nil, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "cluster", Detail: "the cluster has no assignment yet", WayOut: "make the first one: millrace cluster assign"}
	}
	pr := &Proposal{Why: r.why(), intent: s.Intent.clone(), now: Layout(s.Assignment.Replicas), bytes: bytesOf(stats)}
	wanted := cmp.Or(r.Replicas, s.Map.Wanted())
	from := Layout(s.Assignment.Replicas)
	if s.joins(r) {
		wanted, from = s.Plan.Wanted, s.Plan.goal(&s.Assignment)
	}
	var made plan.Plan
	var err error
	switch r.Kind {
	case Drain, Repair:
		if err := pr.mark(s, r, now); err != nil {
			return nil, err
		}
		marked := *s
		marked.Intent = pr.intent
		if r.Kind == Repair {
			for _, id := range r.Nodes {
				e.givenUp[id] = true
			}
		}
		if s.joins(r) {
			made, err = marked.repaired(e, wanted, from)
		} else {
			made, err = marked.solve(e, wanted, from, assignedOrAdded, noGain)
		}
	case Add:
		if err := pr.mark(s, r, now); err != nil {
			return nil, err
		}
		marked := *s
		marked.Intent = pr.intent
		made, err = marked.solve(e, wanted, Layout(s.Assignment.Replicas), assignedOrAdded, 0)
	case Replace:
		if made, err = s.replaced(e, wanted, r.Nodes); err == nil {
			err = pr.mark(s, r, now)
		}
	default:
		made, err = s.solve(e, wanted, Layout(s.Assignment.Replicas), everybody, r.Gain)
	}
	if err != nil {
		return nil, err
	}
	pr.Before, pr.After, pr.Goal = made.Before, made.After, Layout(made.Goal)
	if s.joins(r) {
		p := *s.Plan
		p.Log = slices.Clone(p.Log)
		if p.Status == Cancelling {
			marked := Steered{Intent: pr.intent}
			marked.unmark(&p, &pr.Goal)
		}
		p.retarget(&s.Assignment, &pr.Goal, e)
		p.note(now, "%s, by %s: %d moves are left", r.why(), r.By, p.left())
		pr.Plan = &p
	} else {
		pr.Plan = newPlan(s, r.Kind, r.why(), r.By, r.Limits, now)
		pr.Plan.Wanted = wanted
		for _, id := range r.Nodes {
			pr.Plan.Marks[id] = s.Intent.Nodes[id]
		}
		for _, m := range made.Moves {
			pr.Plan.Moves = append(pr.Plan.Moves, Move{Partition: m.Partition, From: m.From, To: m.To, Lost: m.To != "" && e.givenUp[m.From] && r.Kind != Replace && !pr.intent.Nodes[m.From].Draining, State: Waiting, Bytes: m.Bytes})
		}
	}
	pr.check(s, e, r, &made)
	return pr, nil
}

// joins reports whether a request changes the goal of the plan under way, instead of making
// a new plan. A repair does, as a coordinator's own repair does: the plan may wait for
// the very nodes that are given up.
func (s *Steered) joins(r Request) bool {
	return r.Kind == Repair && s.Plan != nil && !s.Plan.Status.Ended() && s.Plan.Status != Paused
}

// why says in words what a request is for.
func (r Request) why() string {
	names := make([]string, len(r.Nodes))
	for i, id := range r.Nodes {
		names[i] = string(id)
	}
	switch r.Kind {
	case Add:
		return strings.Join(names, ", ") + " is to host its share"
	case Drain:
		return strings.Join(names, ", ") + " is to host nothing"
	case Replace:
		return strings.Join(names, " gives way to ")
	case Resize:
		return fmt.Sprintf("%d replicas are wanted of each partition", r.Replicas)
	case Repair:
		return strings.Join(names, ", ") + " is given up"
	}
	return "to spread the partitions over the nodes"
}

// mark sets in the proposal's intent the marks of the nodes that the request names. The
// error refuses a node that is not known, or cannot be marked so.
func (pr *Proposal) mark(s *Steered, r Request, now time.Time) error {
	for i, id := range r.Nodes {
		if _, ok := s.Map.Node(id); !ok && !(*Layout)(&s.Assignment.Replicas).hosts(id) && !(r.Kind == Repair && s.Plan.takers()[id]) {
			return unknownNode(s, id)
		}
		if r.Kind == Repair && s.Map.Alive(id) {
			return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "node", Detail: fmt.Sprintf("%s is there, and is not given up", id), WayOut: "drain it: millrace node drain"}
		}
		leaves := r.Kind == Drain || r.Kind == Replace && i == 0
		hosts := r.Kind == Add || r.Kind == Replace && i == 1
		if n, _ := s.Map.Node(id); hosts && n.Keeps != "" {
			return servesNobody(id)
		}
		m := pr.intent.Nodes[id]
		m.Draining, m.Lost, m.Added = (m.Draining || leaves) && !hosts, m.Lost || r.Kind == Repair, (m.Added || hosts) && !leaves
		m.By, m.Since = r.By, now.UTC().Truncate(time.Second)
		pr.intent.Nodes[id] = m
		pr.marks = true
	}
	return nil
}

// servesNobody returns the refusal of a node that only backs up.
func servesNobody(id millrace.NodeID) error {
	return &millrace.Error{Reason: millrace.ReasonInvalid, Field: "nodes", Detail: fmt.Sprintf("%s backs up and does not serve", id), WayOut: "name a node that serves"}
}

func unknownNode(s *Steered, id millrace.NodeID) error {
	return &millrace.Error{Reason: millrace.ReasonNotFound, Field: "node", Detail: fmt.Sprintf("no node %q is registered, and none of that name hosts anything", id), WayOut: "see: millrace node list"}
}

// check fills in Checks: what speaks for the plan and against it.
func (pr *Proposal) check(s *Steered, e *evidence, r Request, made *plan.Plan) {
	const unlessMeant = "fault unless it is meant"
	say := func(gravity, format string, args ...any) {
		if gravity == unlessMeant {
			gravity, pr.lossy = Fault, true
		}
		pr.Checks = append(pr.Checks, Check{gravity, fmt.Sprintf(format, args...)})
	}
	lossy := unlessMeant
	if r.Lossy || r.Kind == Add { // adding nodes removes nothing
		lossy = Warn
	}
	if p := s.Plan; s.joins(r) {
		say(Warn, "plan %s (%s) is %s, and goes on to another end, without them", p.ID, p.Kind, p.Status.words())
	} else if p != nil && p.Status == Paused {
		say(Fault, "plan %s (%s) is paused: resume it, cancel it or roll it back", p.ID, p.Kind)
	} else if p != nil && !p.Status.Ended() {
		say(Fault, "plan %s (%s) is %s: wait for its end%s", p.ID, p.Kind, p.Status.words(), s.ways())
	} else {
		say(Pass, "no other plan is under way")
	}
	var away []string
	for _, id := range s.Assignment.Nodes() {
		if !s.Map.Alive(id) && !e.givenUp[id] {
			away = append(away, string(id))
		}
	}
	if len(away) > 0 {
		say(lossy, "nodes are gone: %s: bring them back, wait until they are repaired, or give them up: millrace node remove", strings.Join(away, ", "))
	} else {
		say(Pass, "all nodes that host anything are there%s", e.lost(s))
	}
	switch was, will := s.Map.Wanted(), pr.Plan.Wanted; {
	case will >= was:
	case will == 1:
		say(lossy, "partitions are to have one replica instead of %d: whatever befalls a node, what it hosts is not answered, and on its disk alone", was)
	default:
		say(Warn, "partitions are to have %d replicas instead of %d", will, was)
	}
	low, none := 0, 0
	for p := range partition.All() {
		n := e.serving(p, s.Assignment.Replicas[p], "")
		if n < min(s.Map.Wanted(), pr.Plan.Wanted) {
			low++
		}
		if n == 0 {
			none++
		}
	}
	if none > 0 {
		say(Warn, "%d partitions have no ready replica: what comes in place of theirs is from backups and the log alone", none)
	}
	if low > 0 {
		say(Warn, "%d partitions have fewer ready replicas than wanted: each waits until it has them, before one goes", low)
	} else {
		say(Pass, "every partition has the ready replicas that are wanted")
	}
	for _, m := range pr.Plan.Moves {
		if m.State != Moved && m.To != "" && !s.Map.Alive(m.To) && !s.joins(r) { // a plan under way waits for such nodes
			say(Fault, "%s, which is to take replicas, is not there", m.To)
			break
		}
	}
	for _, id := range r.Nodes {
		if r.Kind == Drain && pr.Goal.hosts(id) {
			say(Fault, "no other node may take all that %s hosts: add one, or want fewer replicas (millrace cluster apply --replicas)", id)
		}
	}
	if made.Spared > 0 && r.Gain > 0 {
		say(Pass, "nothing moves for balance alone: it would bring the fullest and the emptiest node nearer by %.1f%% of the mean, and %.1f%% are wanted", 100*made.Spared, 100*r.Gain)
	}
	unknown := 0
	for _, n := range s.Map.Nodes() {
		if _, ok := e.stats[n.ID]; !ok && n.Keeps == "" {
			unknown++
		}
	}
	if unknown > 0 {
		say(Warn, "%d nodes do not tell their room on disk: it is not checked", unknown)
	}
	for _, w := range made.Warnings {
		say(lossy, "%s", w)
	}
	for _, id := range slices.Sorted(maps.Keys(pr.intent.Nodes)) {
		if len(made.Warnings) > 0 && pr.intent.Nodes[id].Draining && s.Map.Alive(id) && !(r.Kind == Drain && slices.Contains(r.Nodes, id)) {
			say(Warn, "%s is drained, and takes nothing: millrace cluster cancel ends a drain that is under way, and millrace node add one that is done", id)
		}
	}
	for _, n := range made.Notes {
		say(Warn, "%s", n)
	}
}

// ways says which orders the plan under way takes now, as alternatives to waiting for its
// end.
func (s *Steered) ways() string {
	ways := ""
	for _, o := range []struct {
		order Order
		words string
	}{{Cancel, "cancel it"}, {Rollback, "roll it back"}} {
		if s.takes(o.order) == nil {
			ways += ", or " + o.words
		}
	}
	return ways
}

// lost says which nodes that host anything are given up; "" if none is.
func (e *evidence) lost(s *Steered) string {
	var ids []string
	replicas := 0
	for _, id := range s.Assignment.Nodes() {
		if e.givenUp[id] {
			hosted := s.Assignment.Hosted(id)
			ids, replicas = append(ids, string(id)), replicas+hosted.Len()
		}
	}
	if len(ids) == 0 {
		return ""
	}
	return fmt.Sprintf(", but for those that are given up: %s, with %d replicas", strings.Join(ids, ", "), replicas)
}

// whom says which nodes may be given replicas.
type whom int

const (
	assignedOrAdded whom = iota // those that host something or were added
	everybody                   // all that are registered
)

// noGain is a gain that no plan reaches: only replicas move that a rule requires to move, and
// replicas beyond the wanted number (as after a cancelled growth) stay. Drains and repairs
// are planned with it, also the repairs that a coordinator makes by itself.
const noGain = math.MaxFloat64

// solve has the planner make a plan of moves that leads from the layout now to wanted
// replicas of each partition.
func (s *Steered) solve(e *evidence, wanted int, now Layout, who whom, gain float64) (plan.Plan, error) {
	pr := s.problem(e, wanted, now, who)
	pr.Limits.Gain, pr.Limits.Surplus = gain, gain == noGain
	return plan.Make(pr)
}

// problem returns the planner's input.
func (s *Steered) problem(e *evidence, wanted int, now Layout, who whom) plan.Problem {
	pr := plan.Problem{Wanted: wanted, Now: plan.Assignment(now)}
	seen, spoken := map[millrace.NodeID]bool{}, s.spoken(e, &now)
	for _, n := range s.Map.Nodes() {
		m := s.Intent.Nodes[n.ID]
		if who != everybody && !m.Added && !now.hosts(n.ID) {
			continue
		}
		st := e.stats[n.ID]
		seen[n.ID] = true
		pr.Nodes = append(pr.Nodes, plan.Node{ID: n.ID, Zone: n.Zone, Weight: n.Weight, Gone: e.givenUp[n.ID], Away: !s.Map.Alive(n.ID), Draining: m.Draining, BackupOnly: n.Keeps != "", Disk: st.DiskBytes, Free: max(0, freeOf(st)-spoken[n.ID]), Keeps: st.KeptBytes})
	}
	for p := range partition.Count {
		for _, id := range now[p] {
			if !seen[id] { // it is not in the map
				seen[id] = true
				n, _ := s.Map.Past(id)
				pr.Nodes = append(pr.Nodes, plan.Node{ID: id, Zone: n.Zone, Weight: n.Weight, Gone: e.givenUp[id], Away: true, Draining: s.Intent.Nodes[id].Draining})
			}
		}
	}
	bytes := bytesOf(e.stats)
	for p := range partition.All() {
		pr.Partitions[p] = plan.Partition{Bytes: bytes(p), Load: loadOf(e.stats, p)}
	}
	return pr
}

// spoken returns how many bytes each node must still write for what it hosts in the layout
// now: for replicas that are not assigned to it yet, or are being built.
func (s *Steered) spoken(e *evidence, now *Layout) map[millrace.NodeID]int64 {
	yet, bytes := map[millrace.NodeID]int64{}, bytesOf(e.stats)
	add := func(id millrace.NodeID, p millrace.Partition) {
		yet[id] += max(0, bytes(p)-e.stats[id].Partitions[p].Bytes)
	}
	for p := range partition.All() {
		for _, id := range now[p] {
			if !slices.Contains(s.Assignment.Replicas[p], id) {
				add(id, p)
			}
		}
	}
	if s.Plan != nil && !s.Plan.Status.Ended() {
		for _, m := range s.Plan.Moves {
			if m.State == Building && slices.Contains(now[m.Partition], m.To) && slices.Contains(s.Assignment.Replicas[m.Partition], m.To) {
				add(m.To, m.Partition)
			}
		}
	}
	return yet
}

// freeOf returns the bytes that a node has free, at most the size of its disk: a node that
// reports more must not make planning fail.
func freeOf(s members.NodeStats) int64 { return min(s.FreeBytes, s.DiskBytes) }

// bytesOf returns a function that tells the size of a replica of a partition in bytes: the
// largest that any node reports.
func bytesOf(stats map[millrace.NodeID]members.NodeStats) func(millrace.Partition) int64 {
	return func(p millrace.Partition) (most int64) {
		for _, s := range stats {
			most = max(most, s.Partitions[p].Bytes)
		}
		return most
	}
}

// loadOf returns the load of a partition: the largest that any node reports.
func loadOf(stats map[millrace.NodeID]members.NodeStats, p millrace.Partition) (most float64) {
	for _, s := range stats {
		most = max(most, s.Partitions[p].Load)
	}
	return most
}

// replaced returns the plan by which nodes[1] takes over all that nodes[0] hosts.
func (s *Steered) replaced(e *evidence, wanted int, nodes []millrace.NodeID) (made plan.Plan, err error) {
	if len(nodes) != 2 || nodes[0] == nodes[1] {
		return made, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "nodes", Detail: "a node is replaced by one other", WayOut: "name the node, and the one that takes over"}
	}
	old, fresh := nodes[0], nodes[1]
	n, ok := s.Map.Node(fresh)
	switch {
	case !ok || !s.Map.Alive(fresh):
		return made, unknownNode(s, fresh)
	case n.Keeps != "":
		return made, servesNobody(fresh)
	}
	made.Goal = plan.Assignment(s.Assignment.Replicas)
	goal := Layout(made.Goal)
	goal = goal.clone()
	bytes, total := bytesOf(e.stats), int64(0)
	both, first := 0, millrace.Partition(0) // how many partitions both host, and the first of them
	for p := range partition.All() {
		i := slices.Index(goal[p], old)
		if i < 0 {
			continue
		}
		if slices.Contains(goal[p], fresh) {
			if both++; both == 1 {
				first = p
			}
			continue
		}
		m := plan.Move{Partition: p, From: old, To: fresh, Bytes: bytes(p)}
		goal[p][i] = fresh
		total += max(0, m.Bytes-e.stats[fresh].Partitions[p].Bytes)
		made.Moves = append(made.Moves, m)
	}
	if both > 0 { // they would have one replica fewer, and the plan would wait for another for ever
		return made, &millrace.Error{
			Reason: millrace.ReasonInvalid, Field: "nodes", Detail: fmt.Sprintf("%s hosts %d of these partitions already, such as %d, and none twice", fresh, both, first),
			WayOut: fmt.Sprintf("name a node that hosts none of them, or spread them over all others: millrace node drain %s", old),
		}
	}
	if len(made.Moves) == 0 {
		return made, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "nodes", Detail: fmt.Sprintf("%s hosts nothing", old), WayOut: "see: millrace node list"}
	}
	st := e.stats[fresh]
	if to := (plan.Node{Disk: st.DiskBytes, Free: st.FreeBytes, Keeps: st.KeptBytes}); to.Disk > 0 && to.Room() < total {
		made.Warnings = append(made.Warnings, fmt.Sprintf("%s has %d MiB free, of which %d stay so, and would take %d", fresh, to.Free>>20, (to.Free-to.Room())>>20, total>>20))
	}
	made.Goal = plan.Assignment(goal)
	return made, nil
}

// newPlan returns a running plan without moves.
func newPlan(s *Steered, kind Kind, why, by string, limits Limits, now time.Time) *Plan {
	base := Layout(s.Assignment.Replicas)
	p := &Plan{
		ID: now.UTC().Format("20060102T150405") + "-" + strings.ToLower(rand.Text()[:4]), Kind: kind, Why: why, By: by, Created: now.UTC().Truncate(time.Millisecond), Since: now.UTC().Truncate(time.Millisecond),
		Status: Running, Wanted: s.Map.Wanted(), BaseWanted: s.Map.Wanted(), Base: base.clone(), Limits: limits,
		Marks: map[millrace.NodeID]Mark{},
	}
	p.note(now, "begun by %s: %s", by, why)
	return p
}

// differs reports whether some partition has other hosts in o. Their order does not count.
func (l *Layout) differs(o *Layout) bool {
	for p := range l {
		if !slices.Equal(slices.Sorted(slices.Values(l[p])), slices.Sorted(slices.Values(o[p]))) {
			return true
		}
	}
	return false
}

func (i Intent) clone() Intent {
	c := Intent{Nodes: map[millrace.NodeID]Mark{}}
	for id, m := range i.Nodes {
		c.Nodes[id] = m
	}
	return c
}

// NodeChange is what a proposal changes of a node.
type NodeChange struct {
	ID          millrace.NodeID `json:"id"`
	Before      int             `json:"before"` // how many partitions it hosts
	After       int             `json:"after"`
	BytesBefore int64           `json:"bytes_before"`
	BytesAfter  int64           `json:"bytes_after"`
}

// Nodes returns, for each node that hosts something before or after the plan, how much.
func (p *Proposal) Nodes() []NodeChange {
	count := map[millrace.NodeID]*NodeChange{}
	of := func(id millrace.NodeID) *NodeChange {
		if count[id] == nil {
			count[id] = &NodeChange{ID: id}
		}
		return count[id]
	}
	for q := range p.Goal {
		for _, id := range p.now[q] {
			of(id).Before++
			of(id).BytesBefore += p.bytes(millrace.Partition(q))
		}
		for _, id := range p.Goal[q] {
			of(id).After++
			of(id).BytesAfter += p.bytes(millrace.Partition(q))
		}
	}
	var out []NodeChange
	for _, id := range slices.Sorted(maps.Keys(count)) {
		out = append(out, *count[id])
	}
	return out
}

// noRoom returns the refusal of a first assignment by which few partitions would have fewer
// replicas than wanted, because of the planner's reasons.
func noRoom(nodes []plan.Node, wanted, few int, reasons []string) error {
	var disks []string
	for _, n := range nodes {
		if n.Disk > 0 {
			disks = append(disks, fmt.Sprintf("%s has %d of %d MiB free", n.ID, n.Free>>20, n.Disk>>20))
		}
	}
	return &millrace.Error{
		Reason: millrace.ReasonInvalid, Field: "nodes", Detail: fmt.Sprintf("%d partitions would have fewer than %d replicas: %s; a tenth of each disk stays free, or its min_free_mib if that is more: %s", few, wanted, strings.Join(reasons, "; "), strings.Join(disks, ", ")),
		WayOut: "make space, give the nodes other disks (data), name more nodes, or want fewer replicas (--replicas)",
	}
}

// First returns a cluster's first assignment, of epoch 1. It spreads all partitions over the
// nodes by the same rules as later plans. A node that is not registered counts as in no
// zone. The error refuses a node that only backs up, and more replicas than there are
// nodes or there is room for.
func First(s *Steered, stats map[millrace.NodeID]members.NodeStats, nodes []millrace.NodeID, replicas int) (a topology.Assignment, err error) {
	pr := plan.Problem{Wanted: replicas}
	for _, id := range slices.Compact(slices.Sorted(slices.Values(nodes))) {
		n, _ := s.Map.Node(id)
		if n.Keeps != "" {
			return a, servesNobody(id)
		}
		pr.Nodes = append(pr.Nodes, plan.Node{ID: id, Zone: n.Zone, Weight: n.Weight, Disk: stats[id].DiskBytes, Free: freeOf(stats[id]), Keeps: stats[id].KeptBytes})
	}
	if n := len(pr.Nodes); replicas > n {
		return a, &millrace.Error{Reason: millrace.ReasonInvalid, Field: "replicas", Detail: fmt.Sprintf("%d replicas of each partition are wanted, and %d nodes may host any", replicas, n), WayOut: "name more nodes, or want fewer replicas (--replicas)"}
	}
	made, err := plan.Make(pr)
	if err != nil {
		return a, err
	}
	few := 0
	for _, of := range made.Goal {
		if len(of) < replicas {
			few++
		}
	}
	if few > 0 { // no plan would make the missing replicas later
		return a, noRoom(pr.Nodes, replicas, few, made.Warnings)
	}
	a = topology.Assignment{Epoch: 1, Wanted: replicas, Replicas: made.Goal}
	return a, a.Validate()
}
