package plan

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// clusters is how many random clusters a test looks at: make plans has more.
var clusters = flag.Int("clusters", 300, "random clusters a test")

// randomProblem returns a cluster of up to 14 nodes in up to 5 zones, some of
// them gone or draining, with a random past: none, a plan for other nodes, that
// with some moves done, or chaos.
func randomProblem(r *rand.Rand) Problem {
	p := Problem{Wanted: 1 + r.IntN(4), Nodes: nodes(1+r.IntN(14), 0)}
	zones := r.IntN(6)
	for i := range p.Nodes {
		if zones > 0 {
			p.Nodes[i].Zone = string(rune('a' + r.IntN(zones)))
		}
	}
	if r.IntN(2) == 0 {
		for i := range p.Partitions {
			p.Partitions[i] = Partition{Bytes: 1 + r.Int64N(100), Load: r.Float64()}
		}
	}
	p.Now = randomPast(r, p)
	for i := range p.Nodes {
		n := &p.Nodes[i]
		n.Gone, n.Draining, n.BackupOnly = r.IntN(8) == 0, r.IntN(8) == 0, r.IntN(20) == 0
		if r.IntN(6) == 0 {
			n.Disk = 100_000
			n.Free = r.Int64N(30_000)
			n.Keeps = r.Int64N(2) * r.Int64N(20_000)
		}
		if r.IntN(12) == 0 {
			n.Weight = 0.5 + 2*r.Float64()
		}
	}
	n := &p.Nodes[r.IntN(len(p.Nodes))]
	n.Gone, n.Draining, n.BackupOnly = false, false, false
	p.Limits.MovesPerNode = r.IntN(4)
	if r.IntN(4) == 0 {
		p.Limits.Gain = r.Float64() / 2
	}
	return p
}

func randomPast(r *rand.Rand, p Problem) (now Assignment) {
	if r.IntN(8) == 0 {
		return now
	}
	if r.IntN(4) == 0 {
		for part := range now {
			for _, i := range r.Perm(len(p.Nodes))[:min(len(p.Nodes), r.IntN(p.Wanted+2))] {
				now[part] = append(now[part], p.Nodes[i].ID)
			}
		}
		return now
	}
	all := p.Nodes
	for range 1 + r.IntN(2) {
		p.Nodes = slices.Clone(all)
		r.Shuffle(len(all), func(i, j int) { p.Nodes[i], p.Nodes[j] = p.Nodes[j], p.Nodes[i] })
		p.Nodes = p.Nodes[:1+r.IntN(len(all))]
		if r.IntN(6) == 0 {
			p.Nodes = append(p.Nodes, Node{ID: "forgotten", Zone: "a"})
		}
		pl, err := Make(p)
		if err != nil {
			panic(err)
		}
		next := p.Now
		for _, m := range pl.Moves[:len(pl.Moves)-r.IntN(2)*r.IntN(len(pl.Moves)+1)] {
			next.apply(m)
		}
		p.Now = next
	}
	return p.Now
}

// view is what the tests know of a problem, worked out apart from the planner.
type view struct {
	*Problem
	node  map[millrace.NodeID]*Node
	zones map[string]int // usable nodes of a zone
	count int            // of usable nodes
	level int            // most replicas of a partition in a zone
	under map[string]int // least
}

func viewOf(p *Problem) view {
	v := view{Problem: p, node: map[millrace.NodeID]*Node{}, zones: map[string]int{}, under: map[string]int{}}
	for i := range p.Nodes {
		n := &p.Nodes[i]
		v.node[n.ID] = n
		if v.usable(n.ID) {
			v.zones[n.Zone]++
			v.count++
		}
	}
	for fit := 0; fit < v.wanted(); {
		v.level++
		fit = 0
		for z, n := range v.zones {
			fit += min(n, v.level)
			v.under[z] = min(n, v.level-1)
		}
	}
	return v
}

func (v view) usable(id millrace.NodeID) bool {
	n := v.node[id]
	return n != nil && !n.Gone && !n.Draining && !n.BackupOnly
}

func (v view) lives(id millrace.NodeID) bool {
	n := v.node[id]
	return n != nil && !n.Gone && !n.BackupOnly
}

func (v view) wanted() int { return min(v.Wanted, v.count) }

// placed reports what is wrong with where a partition's replicas are.
func (v view) placed(owners []millrace.NodeID) error {
	if twice(owners) {
		return fmt.Errorf("%q: a node twice", owners)
	}
	in, usable := map[string]int{}, 0
	for _, id := range owners {
		if v.usable(id) {
			usable++
			in[v.node[id].Zone]++
		}
	}
	if usable != v.wanted() {
		return fmt.Errorf("%q: %d replicas on usable nodes, want %d", owners, usable, v.wanted())
	}
	for z, n := range v.zones {
		if in[z] > min(n, v.level) || in[z] < v.under[z] {
			return fmt.Errorf("%q: zone %q has %d of them, want %d to %d", owners, z, in[z], v.under[z], min(n, v.level))
		}
	}
	return nil
}

// hardRules reports the first rule that an assignment breaks.
func hardRules(p *Problem, a *Assignment) error {
	v := viewOf(p)
	for part := range a {
		if err := v.placed(a[part]); err != nil {
			return fmt.Errorf("partition %d: %w", part, err)
		}
	}
	return nil
}

// steps does the moves of a plan one by one, as an executor does them: the new
// replica is added, is ready, and the old one removed. It reports the first rule
// that breaks on the way.
func steps(p *Problem, pl *Plan) error {
	v := viewOf(p)
	now, room := p.Now, map[millrace.NodeID]int64{}
	for id, n := range v.node {
		room[id] = n.Free - max(n.Disk/10, n.Keeps)
	}
	for i, m := range pl.Moves {
		err := func() error {
			owners := now[m.Partition]
			before := v.ready(owners)
			if m.From != "" && !slices.Contains(owners, m.From) {
				return fmt.Errorf("%q does not have it", m.From)
			}
			fits := v.placed(owners) == nil
			if m.To != "" {
				if !v.usable(m.To) || slices.Contains(owners, m.To) {
					return fmt.Errorf("%q may not host it", m.To)
				}
				room[m.To] -= p.Partitions[m.Partition].Bytes
				if v.node[m.To].Disk > 0 && room[m.To] < 0 && !slices.Contains(p.Now[m.Partition], m.To) {
					return fmt.Errorf("no room on %s", m.To)
				}
			}
			now.apply(m)
			owners = now[m.Partition]
			if after := v.ready(owners); after < min(before, p.Wanted) {
				return fmt.Errorf("%d ready replicas, before %d", after, before)
			}
			if err := v.placed(owners); fits && err != nil {
				return err
			}
			return nil
		}()
		if err != nil {
			return fmt.Errorf("move %d, %+v: %w", i, m, err)
		}
	}
	for part := range now {
		if !slices.Equal(now[part], pl.Goal[part]) {
			return fmt.Errorf("partition %d: the moves lead to %q, the goal is %q", part, now[part], pl.Goal[part])
		}
	}
	return nil
}

func (v view) ready(owners []millrace.NodeID) (n int) {
	for _, id := range owners {
		if v.lives(id) {
			n++
		}
	}
	return n
}

// On ten thousand random clusters no step breaks a rule, the goal keeps all of
// them, and no other goal has evener counts, or as even ones with fewer moves.
func TestRandomClusters(t *testing.T) {
	proved := 0
	for seed := range uint64(*clusters) {
		p := randomProblem(rand.New(rand.NewPCG(seed, 14)))
		pl := mustMake(t, p)
		if err := sound(&p, &pl); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		if unbounded(&p) {
			proved++
			if err := optimal(&p, &pl.Goal); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
	if proved < *clusters/10 {
		t.Errorf("only %d clusters were without limits of room and gain", proved)
	}
}

// On random clusters of which some nodes are away nothing goes to these, and all rules are
// kept as if they were there, unless nobody else can.
func TestNodesThatAreAwayGetNothing(t *testing.T) {
	kept := 0
	for seed := range uint64(*clusters) {
		r := rand.New(rand.NewPCG(seed, 23))
		p := randomProblem(r)
		away := map[millrace.NodeID]bool{}
		for i := range p.Nodes {
			n := &p.Nodes[i]
			if n.Away = r.IntN(3) == 0; n.Away {
				away[n.ID] = true
			}
		}
		pl := mustMake(t, p)
		for _, m := range pl.Moves {
			if away[m.To] {
				t.Fatalf("seed %d: %+v", seed, m)
			}
		}
		if slices.ContainsFunc(pl.Warnings, func(w string) bool { return strings.Contains(w, "are away") }) {
			if err := steps(&p, &pl); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			continue
		}
		if err := sound(&p, &pl); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		kept++
	}
	if kept < *clusters/4 {
		t.Errorf("on %d clusters only somebody else could", kept)
	}
}

// On random clusters whose nodes all have other weights, each node has what the
// divisor method of Webster gives it, and only what is above that moves.
func TestRandomWeights(t *testing.T) {
	for seed := range uint64(*clusters / 3) {
		r := rand.New(rand.NewPCG(seed, 5))
		p := Problem{Nodes: nodes(2+r.IntN(11), 0)}
		p.Wanted = 1 + r.IntN(min(3, len(p.Nodes)))
		weigh := func() {
			for i := range p.Nodes {
				p.Nodes[i].Weight = 0.25 + 4*r.Float64()
			}
		}
		weigh()
		before := mustMake(t, p)
		p.Now = before.Goal
		weigh()
		pl := mustMake(t, p)
		if err := errors.Join(sound(&p, &pl), optimal(&p, &pl.Goal)); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		least := 0
		for i, want := range webster(p.Nodes, partition.Count*p.Wanted) {
			is, was := pl.After.Nodes[i].Replicas, before.After.Nodes[i].Replicas
			if is != want {
				t.Fatalf("seed %d: %s of weight %v has %d, want %d", seed, p.Nodes[i].ID, p.Nodes[i].Weight, is, want)
			}
			least += max(0, was-want)
		}
		if len(pl.Moves) != least {
			t.Errorf("seed %d: %d moves, and %d are above what the nodes are to have", seed, len(pl.Moves), least)
		}
	}
}

// webster gives out replicas one by one, each to the node that has the fewest
// for its weight, a half more counted; a node takes each partition once.
func webster(of []Node, replicas int) []int {
	has := make([]int, len(of))
	for range replicas {
		next := -1
		for i, n := range of {
			if has[i] < partition.Count && (next < 0 || (float64(has[i])+0.5)/n.Weight < (float64(has[next])+0.5)/of[next].Weight) {
				next = i
			}
		}
		has[next]++
	}
	return has
}

// sound reports the first rule that a plan breaks, on the way or in the end.
func sound(p *Problem, pl *Plan) error {
	if err := steps(p, pl); err != nil {
		return err
	}
	if slices.ContainsFunc(pl.Warnings, func(w string) bool { return strings.Contains(w, "no room") }) {
		return nil
	}
	return hardRules(p, &pl.Goal)
}

// unbounded reports whether neither room nor gain keep a plan from the best.
func unbounded(p *Problem) bool {
	return p.Limits.Gain == 0 && !slices.ContainsFunc(p.Nodes, func(n Node) bool { return n.Disk > 0 })
}

// optimal proves that no goal is evener, or as even with fewer moves: goals are
// flows of replicas from partitions by zones to nodes, and one is the cheapest
// if and only if its residual graph has no cycle of negative cost. The graph here
// is the whole one, with a vertex for each partition and zone; the planner's
// has only nodes.
func optimal(p *Problem, goal *Assignment) error {
	v := viewOf(p)
	g := &residual{}
	sink := g.vertex()
	at, zone := map[millrace.NodeID]int{}, map[millrace.NodeID]string{}
	var ids []millrace.NodeID
	for _, n := range p.Nodes {
		if v.usable(n.ID) {
			at[n.ID], zone[n.ID] = g.vertex(), n.Zone
			ids = append(ids, n.ID)
		}
	}
	load := map[millrace.NodeID]int{}
	spare := v.wanted()
	for _, n := range v.under {
		spare -= n
	}
	for part := range partition.Count {
		extra, gate, in := g.vertex(), map[string]int{}, map[string]int{}
		for _, id := range goal[part] {
			if v.usable(id) {
				in[zone[id]]++
				load[id]++
			}
		}
		for z, n := range v.zones {
			gate[z] = g.vertex()
			// What a zone has beyond its least comes through extra.
			if used := in[z] - v.under[z]; used > 0 {
				g.arc(gate[z], extra, 0)
			}
			if in[z] < min(n, v.level) {
				g.arc(extra, gate[z], 0)
			}
		}
		for _, id := range ids {
			cost := int64(1)
			if slices.Contains(p.Now[part], id) {
				cost = 0
			}
			if slices.Contains(goal[part], id) {
				g.arc(at[id], gate[zone[id]], -cost)
			} else {
				g.arc(gate[zone[id]], at[id], cost)
			}
		}
	}
	for _, id := range ids {
		w := v.node[id].Weight
		if w == 0 {
			w = 1
		}
		g.arc(sink, at[id], -unevenCost(load[id], w))
		g.arc(at[id], sink, unevenCost(load[id]+1, w))
	}
	if g.hasNegativeCycle() {
		return fmt.Errorf("there is a better goal")
	}
	return nil
}

// unevenCost is what the n-th replica of a node adds to the sum of n²/w.
func unevenCost(n int, w float64) int64 {
	return int64(float64(2*n-1)*costScale/w+0.5) * 10_000
}

// residual is a graph in which to look for cycles of negative cost.
type residual struct {
	vertices int
	arcs     []residualArc
}

type residualArc struct {
	from, to int
	cost     int64
}

func (g *residual) vertex() int { g.vertices++; return g.vertices - 1 }

func (g *residual) arc(from, to int, cost int64) {
	g.arcs = append(g.arcs, residualArc{from, to, cost})
}

func (g *residual) hasNegativeCycle() bool {
	far := make([]int64, g.vertices)
	for range g.vertices {
		changed := false
		for _, a := range g.arcs {
			if c := far[a.from] + a.cost; c < far[a.to] {
				far[a.to], changed = c, true
			}
		}
		if !changed {
			return false
		}
		if slices.Min(far) < -1<<40*int64(g.vertices) {
			return true
		}
	}
	return true
}

// Ten thousand random placements are forced. Each is made or refused as Explain
// says, and by the rules as the tests know them: what is made breaks none, what
// is refused would break the one that is named.
func TestForcedPlacementsGoByTheRuleThatExplainNames(t *testing.T) {
	rules := map[Rule]int{}
	for seed := range uint64(*clusters) {
		v, err := forcedAt(seed)
		if err != nil {
			t.Fatalf("seed %d: %v: %v", seed, v, err)
		}
		rules[v.Rule]++
	}
	for _, r := range []Rule{"", RuleUnknownNode, RuleGone, RuleBackupOnly, RuleDraining, RuleAlready, RuleEnough, RuleZoneTaken, RuleNoRoom} {
		if rules[r] == 0 {
			t.Errorf("nothing was decided by rule %q", r)
		}
	}
}

// forcedAt forces a random placement, and reports what is wrong with its verdict.
func forcedAt(seed uint64) (Verdict, error) {
	r := rand.New(rand.NewPCG(seed, 41))
	p := randomProblem(r)
	if r.IntN(2) == 0 { // else most have what is wrong with their zones
		pl, err := Make(p)
		if err != nil {
			return Verdict{}, err
		}
		p.Now = pl.Goal
	}
	if r.IntN(5) == 0 { // fewer are wanted than there are
		p.Wanted = max(1, p.Wanted-1)
	}
	f := Placement{Partition: millrace.Partition(r.IntN(partition.Count)), To: p.Nodes[r.IntN(len(p.Nodes))].ID}
	if owners := p.Now[f.Partition]; len(owners) > 0 && r.IntN(2) == 0 {
		f.From = owners[r.IntN(len(owners))]
	}
	if r.IntN(50) == 0 {
		f.To = "nobody"
	}
	v, err := p.ExplainMove(f)
	if err != nil {
		return v, err
	}
	p.Force = &f
	pl, err := Make(p)
	if v.OK != (err == nil) || err != nil && !strings.Contains(err.Error(), v.String()) {
		return v, fmt.Errorf("the planner says %v", err)
	}
	return v, judged(&p, v, &pl)
}

// judged reports whether a verdict is not what the rules say.
func judged(p *Problem, v Verdict, pl *Plan) error {
	w := viewOf(p)
	n, owners := w.node[v.Node], p.Now[v.Partition]
	if v.OK {
		if len(pl.Moves) != 1 {
			return fmt.Errorf("%d moves", len(pl.Moves))
		}
		if !slices.Contains(pl.Goal[v.Partition], v.Node) || slices.Contains(pl.Goal[v.Partition], v.From) {
			return fmt.Errorf("the goal is %q", pl.Goal[v.Partition])
		}
		return steps(p, pl)
	}
	in, usable := 0, 0 // but for the one whose place it takes
	for _, id := range owners {
		if id != v.From && w.usable(id) {
			usable++
			if n != nil && w.node[id].Zone == n.Zone {
				in++
			}
		}
	}
	holds := map[Rule]bool{
		RuleUnknownNode: n == nil,
		RuleGone:        n != nil && n.Gone,
		RuleBackupOnly:  n != nil && n.BackupOnly,
		RuleDraining:    n != nil && n.Draining,
		RuleAlready:     slices.Contains(owners, v.Node),
		RuleEnough:      usable >= w.wanted(),
	}
	if n != nil {
		holds[RuleZoneTaken] = in >= w.under[n.Zone] && in > 0
		holds[RuleNoRoom] = n.Disk > 0 && p.Partitions[v.Partition].Bytes > n.Free-max(n.Disk/10, n.Keeps)
	}
	if !holds[v.Rule] {
		return fmt.Errorf("the rule does not hold")
	}
	return nil
}
