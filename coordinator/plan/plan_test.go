package plan

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/partition"
)

// nodes returns n nodes, in zones by turns if there are any.
func nodes(n, zones int) []Node {
	all := make([]Node, n)
	for i := range all {
		all[i].ID = millrace.NodeID(fmt.Sprintf("n%03d", i))
		if zones > 0 {
			all[i].Zone = string(rune('a' + i%zones))
		}
	}
	return all
}

func mustMake(t testing.TB, p Problem) Plan {
	t.Helper()
	pl, err := Make(p)
	if err != nil {
		t.Fatal(err)
	}
	return pl
}

// resized returns the plan from the assignment of before to other nodes.
func resized(t testing.TB, p Problem, to []Node) Plan {
	t.Helper()
	p.Now = mustMake(t, p).Goal
	p.Nodes = to
	return mustMake(t, p)
}

// Resizing moves as many replicas as the new nodes are to have, or the old ones
// had, and none more. 720 partitions with two replicas are 32 a node on 45 nodes
// and 24 on 60, so that 15 new nodes get 360; with three it is 540.
func TestResizingMovesTheMinimum(t *testing.T) {
	draining := func(all []Node, which ...int) []Node {
		all = slices.Clone(all)
		for _, i := range which {
			all[i].Draining = true
		}
		return all
	}
	for _, c := range []struct {
		name     string
		wanted   int
		from, to []Node
		moves    int
	}{
		{"45 to 60", 2, nodes(45, 0), nodes(60, 0), 360},
		{"45 to 60 with three replicas", 3, nodes(45, 0), nodes(60, 0), 540},
		{"45 to 60 in three zones", 3, nodes(45, 3), nodes(60, 3), 540},
		{"45 to 60 in five zones", 2, nodes(45, 5), nodes(60, 5), 360},
		{"60 to 45", 2, nodes(60, 0), draining(nodes(60, 0), 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59), 360},
		{"3 to 4", 2, nodes(3, 0), nodes(4, 0), 360},
		{"4 to 5", 2, nodes(4, 0), nodes(5, 0), 288},
		{"5 to 3", 2, nodes(5, 0), draining(nodes(5, 0), 0, 3), 576},
		{"one of 5 replaced", 2, nodes(5, 0), draining(nodes(6, 0), 2), 288},
		{"nothing", 3, nodes(6, 3), nodes(6, 3), 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			pl := resized(t, Problem{Nodes: c.from, Wanted: c.wanted}, c.to)
			if len(pl.Moves) != c.moves {
				t.Errorf("%d moves, want %d", len(pl.Moves), c.moves)
			}
			if pl.After.Imbalance > 1 || pl.After.Below > 0 {
				t.Errorf("imbalance %v, %d below what is wanted", pl.After.Imbalance, pl.After.Below)
			}
		})
	}
}

// A cluster that goes 3, 4, 5, 3 again and again moves the minimum each time.
func TestResizingAgainAndAgainMovesTheMinimum(t *testing.T) {
	p := Problem{Nodes: nodes(3, 0), Wanted: 2}
	p.Now = mustMake(t, p).Goal
	for range 3 {
		for _, c := range []struct{ nodes, moves int }{{4, 360}, {5, 288}, {3, 576}} {
			p.Nodes = nodes(5, 0)
			for i := c.nodes; i < 5; i++ {
				p.Nodes[i].Draining = true
			}
			pl := mustMake(t, p)
			if len(pl.Moves) != c.moves || pl.After.Imbalance > 1 {
				t.Errorf("to %d nodes: %d moves, want %d; imbalance %v", c.nodes, len(pl.Moves), c.moves, pl.After.Imbalance)
			}
			p.Now = pl.Goal
		}
	}
}

// A first assignment is even in counts, zones and pairs.
func TestAFirstAssignmentIsEven(t *testing.T) {
	for _, c := range []struct{ nodes, zones, wanted, pairs int }{{3, 0, 2, 240}, {10, 0, 2, 17}, {12, 3, 3, 46}, {200, 3, 3, 2}, {2, 2, 3, 720}, {1, 0, 1, 0}} {
		p := Problem{Nodes: nodes(c.nodes, c.zones), Wanted: c.wanted}
		pl := mustMake(t, p)
		if err := hardRules(&p, &pl.Goal); err != nil {
			t.Errorf("%+v: %v", c, err)
		}
		if pl.After.Imbalance > 1 || pl.After.PairMost > c.pairs {
			t.Errorf("%+v: imbalance %v, two nodes share %d", c, pl.After.Imbalance, pl.After.PairMost)
		}
	}
}

// What a lost node had falls on all others.
func TestALostNodeFallsOnAllOthers(t *testing.T) {
	p := Problem{Nodes: nodes(10, 0), Wanted: 2}
	p.Now = mustMake(t, p).Goal
	p.Nodes[4].Gone = true
	pl := mustMake(t, p)
	if len(pl.Moves) != 144 || pl.After.Imbalance > 1 {
		t.Errorf("%d moves, want 144; imbalance %v", len(pl.Moves), pl.After.Imbalance)
	}
	for _, m := range pl.Moves {
		if m.From != "n004" || m.Why != WhyMissing {
			t.Fatalf("%+v: want moves off the lost node alone", m)
		}
	}
	if pl.After.PairMost > 22 { // of a mean of 20
		t.Errorf("two nodes share %d partitions; the mean is %v", pl.After.PairMost, pl.After.PairMean)
	}
}

// Bytes and load get even by the choice of what moves, not by more moves.
func TestSizesChooseWhatMoves(t *testing.T) {
	p := Problem{Nodes: nodes(9, 3), Wanted: 2}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range p.Partitions {
		p.Partitions[i] = Partition{Bytes: 1<<20 + r.Int64N(64<<20), Load: r.ExpFloat64()}
	}
	pl := resized(t, p, nodes(12, 3))
	if len(pl.Moves) != 360 {
		t.Errorf("%d moves, want 360", len(pl.Moves))
	}
	if pl.After.Bytes > 1.02 || pl.After.Load > 1.05 {
		t.Errorf("the fullest node has %.3f of its bytes, %.3f of its load", pl.After.Bytes, pl.After.Load)
	}
}

// A node with twice the weight has twice the replicas.
func TestWeightsShare(t *testing.T) {
	p := Problem{Nodes: nodes(4, 0), Wanted: 2}
	p.Nodes[1].Weight = 2
	for _, n := range mustMake(t, p).After.Nodes {
		want := 288
		if n.ID == "n001" {
			want = 576
		}
		if n.Replicas != want {
			t.Errorf("%s has %d, want %d", n.ID, n.Replicas, want)
		}
	}
	p.Now = mustMake(t, p).Goal
	p.Nodes[1].Draining = true
	p.Now = mustMake(t, p).Goal
	p.Nodes[1].Draining = false
	part := slices.IndexFunc(p.Now[:], func(of []millrace.NodeID) bool { return len(of) == 2 })
	if v, err := p.Explain(millrace.Partition(part), "n001"); err != nil || !v.OK || !strings.Contains(v.Detail, "hosts 0, and its share is 576.0 by its weight of 2") {
		t.Errorf("explained as %+v, %v", v, err)
	}
}

// Nothing moves for less than the stated gain, but for a hard rule.
func TestNothingMovesForLittle(t *testing.T) {
	p := Problem{Nodes: nodes(6, 0), Wanted: 2}
	p.Now = mustMake(t, p).Goal
	moved := 0
	for part := range p.Now { // n000 has 10 more, n001 10 fewer: a twelfth of 240
		if i := slices.Index(p.Now[part], "n001"); i >= 0 && !slices.Contains(p.Now[part], "n000") && moved < 10 {
			p.Now[part][i] = "n000"
			moved++
		}
	}
	if n := len(mustMake(t, p).Moves); n != 10 {
		t.Errorf("%d moves for any gain, want 10", n)
	}
	p.Limits.Gain = 0.1
	if n := len(mustMake(t, p).Moves); n != 0 {
		t.Errorf("%d moves for less than the gain", n)
	}
	p.Nodes[5].Gone = true
	for _, m := range mustMake(t, p).Moves {
		if m.From != "n005" {
			t.Fatalf("%+v: only what the lost node had is to move", m)
		}
	}
	p.Nodes = nodes(7, 0)
	if n := len(mustMake(t, p).Moves); n < 205 {
		t.Errorf("%d moves to a new node, which is worth them", n)
	}
}

// Where too few nodes are left, those that drain or are gone keep what they
// have: there are never fewer replicas than before.
func TestTheLastReplicasStay(t *testing.T) {
	p := Problem{Nodes: nodes(3, 0), Wanted: 3}
	p.Now = mustMake(t, p).Goal
	for name, change := range map[string]func(*Node){
		"draining": func(n *Node) { n.Draining = true },
		"gone":     func(n *Node) { n.Gone = true },
	} {
		t.Run(name, func(t *testing.T) {
			p := p
			p.Nodes = nodes(3, 0)
			change(&p.Nodes[0])
			if pl := mustMake(t, p); len(pl.Moves) != 0 || len(pl.Warnings) != 2 {
				t.Errorf("%d moves, warnings %q", len(pl.Moves), pl.Warnings)
			}
			for i := range p.Nodes {
				change(&p.Nodes[i])
			}
			if pl := mustMake(t, p); len(pl.Moves) != 0 || !reflect.DeepEqual(pl.Goal, p.Now) {
				t.Errorf("%d moves with no node left", len(pl.Moves))
			}
		})
	}
}

// Three replicas in two zones are no reason against any plan: that is as it was. It is
// one only against the plan that leaves a zone with nothing.
func TestFewZonesAreNoted(t *testing.T) {
	p := Problem{Nodes: nodes(6, 2), Wanted: 3}
	p.Now = mustMake(t, p).Goal
	p.Nodes[0].Draining = true
	if pl := mustMake(t, p); len(pl.Warnings) != 0 || len(pl.Notes) != 1 {
		t.Errorf("two zones as before: warnings %q, notes %q", pl.Warnings, pl.Notes)
	}
	p = Problem{Nodes: nodes(5, 2), Wanted: 3}
	p.Nodes[4].Zone = "c"
	p.Now = mustMake(t, p).Goal
	p.Nodes[4].Draining = true
	if pl := mustMake(t, p); len(pl.Warnings) != 1 || len(pl.Notes) != 0 {
		t.Errorf("two zones of three: warnings %q, notes %q", pl.Warnings, pl.Notes)
	}
}

// What does not fit on the disks stays where it is, and nothing is removed for
// it.
func TestWhatHasNoRoomStays(t *testing.T) {
	p := Problem{Nodes: nodes(4, 0), Wanted: 2}
	for i := range p.Partitions {
		p.Partitions[i].Bytes = 10
	}
	p.Now = mustMake(t, p).Goal
	p.Nodes[0].Draining = true
	for i := 1; i < 4; i++ {
		p.Nodes[i].Disk, p.Nodes[i].Free = 10_000, 1000+int64(i)*100 // 10, 20, 30 fit
	}
	pl := mustMake(t, p)
	if len(pl.Moves) != 60 || len(pl.Warnings) == 0 {
		t.Errorf("%d moves, want 60; warnings %q", len(pl.Moves), pl.Warnings)
	}
	if err := steps(&p, &pl); err != nil {
		t.Error(err)
	}
	if pl.After.Below != 300 {
		t.Errorf("%d partitions hang on the node that drains, want 300", pl.After.Below)
	}
}

// A move that is under way has one replica more: the plan ends with as many as
// are wanted, and moves nothing else.
func TestAMoveUnderWayIsFinished(t *testing.T) {
	p := Problem{Nodes: nodes(4, 0), Wanted: 2}
	first := resized(t, Problem{Nodes: nodes(3, 0), Wanted: 2}, nodes(4, 0))
	p.Now = first.Goal
	m := first.Moves[0]
	p.Now[m.Partition] = append(slices.Clone(p.Now[m.Partition]), m.From)
	pl := mustMake(t, p)
	if len(pl.Moves) != 1 || pl.Moves[0].To != "" || pl.Moves[0].Partition != m.Partition || pl.After.Imbalance > 1 {
		t.Errorf("%+v", pl.Moves)
	}
}

// Moves are in an order in which the nodes are busy: taken as they come, 360
// moves to one node, two at a time, take 180 rounds.
func TestMovesAreInTurn(t *testing.T) {
	p := Problem{Nodes: nodes(3, 0), Wanted: 2, Limits: Limits{MovesPerNode: 2}}
	left := resized(t, p, nodes(4, 0)).Moves
	rounds := 0
	for ; len(left) > 0; rounds++ {
		busy := map[millrace.NodeID]int{}
		for len(left) > 0 && busy[left[0].From] < 2 && busy[left[0].To] < 2 {
			busy[left[0].From]++
			busy[left[0].To]++
			left = left[1:]
		}
	}
	if rounds != 180 {
		t.Errorf("%d rounds, want 180", rounds)
	}
}

// Equal problems have equal plans, in whatever order the nodes come.
func TestPlansDependOnNothingElse(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		p := randomProblem(r)
		first := mustMake(t, p)
		p.Nodes = slices.Clone(p.Nodes)
		r.Shuffle(len(p.Nodes), func(i, j int) { p.Nodes[i], p.Nodes[j] = p.Nodes[j], p.Nodes[i] })
		if second := mustMake(t, p); !reflect.DeepEqual(first, second) {
			t.Fatal("two plans of one problem differ")
		}
	}
}

// A plan that is made again from its goal has nothing to do.
func TestAGoalIsTheEnd(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 50 {
		p := randomProblem(r)
		for k := range p.Nodes {
			p.Nodes[k].Disk, p.Nodes[k].Free = 0, 0
		}
		p.Now = mustMake(t, p).Goal
		if again := mustMake(t, p); len(again.Moves) != 0 {
			t.Fatalf("problem %d: %d moves from the goal, such as %+v; warnings %q", i, len(again.Moves), again.Moves[0], again.Warnings)
		}
	}
}

func TestBadProblemsAreRefused(t *testing.T) {
	for field, spoil := range map[string][]func(*Problem){
		"wanted":         {func(p *Problem) { p.Wanted = 0 }, func(p *Problem) { p.Wanted = 17 }},
		"moves_per_node": {func(p *Problem) { p.Limits.MovesPerNode = -1 }},
		"gain":           {func(p *Problem) { p.Limits.Gain = -1 }},
		"partitions":     {func(p *Problem) { p.Partitions[3].Bytes = -1 }, func(p *Problem) { p.Partitions[3].Load = -1 }},
		"now":            {func(p *Problem) { p.Now[9] = []millrace.NodeID{"n000", "n000"} }},
		"nodes": {
			func(p *Problem) { p.Nodes = nil },
			func(p *Problem) { p.Nodes = nodes(maxNodes+1, 0) },
			func(p *Problem) { p.Nodes[0].ID = "" },
			func(p *Problem) { p.Nodes[0].ID = "n001" },
			func(p *Problem) { p.Nodes[0].Free = 1 },
			func(p *Problem) { p.Nodes[0].Disk = -1 },
			func(p *Problem) { p.Nodes[0].Weight = -1 },
			func(p *Problem) { p.Nodes[0].Gone, p.Nodes[1].Draining, p.Nodes[2].BackupOnly = true, true, true },
		},
	} {
		for i, spoil := range spoil {
			p := Problem{Nodes: nodes(3, 0), Wanted: 2}
			spoil(&p)
			_, err := Make(p)
			var refused *millrace.Error
			if !errors.As(err, &refused) || refused.Field != field || refused.WayOut == "" {
				t.Errorf("%s, %d: %v", field, i, err)
			}
		}
	}
}

// Every rule that refuses says its figures, and what Explain refuses cannot be
// forced.
func TestExplainNamesTheRule(t *testing.T) {
	p := Problem{Nodes: nodes(7, 3), Wanted: 2}
	for part := range p.Now {
		p.Now[part] = []millrace.NodeID{"n000", "n001"} // zones a and b
		p.Partitions[part].Bytes = 12 << 30
	}
	p.Nodes[2].Gone = true
	p.Nodes[3].Draining = true
	p.Nodes[5].Disk, p.Nodes[5].Free = 20<<30, 3<<30
	p.Nodes = append(p.Nodes, Node{ID: "keeper", BackupOnly: true}, Node{ID: "c1", Zone: "c"}, Node{ID: "c2", Zone: "c", Disk: 20 << 30, Free: 15 << 30, Keeps: 4 << 30})
	p.Now[9] = []millrace.NodeID{"n000"}
	for _, c := range []struct {
		place Placement
		want  string
		rule  Rule
	}{
		{Placement{720, "", "n000"}, "unknown_partition: there are partitions 0 to 719", RuleUnknownPartition},
		{Placement{7, "", "nobody"}, `unknown_node: no node of 10 is called "nobody"`, RuleUnknownNode},
		{Placement{7, "", "n002"}, "gone: n002 is away for longer than the grace", RuleGone},
		{Placement{7, "", "keeper"}, "backup_only: keeper reads and backs up, and serves nobody", RuleBackupOnly},
		{Placement{7, "", "n003"}, "draining: n003 is to host nothing", RuleDraining},
		{Placement{7, "", "n000"}, "already: n000 hosts it", RuleAlready},
		{Placement{7, "c1", "n004"}, `not_there: "c1" does not host it; ["n000" "n001"] do`, RuleNotThere},
		{Placement{7, "n000", "n004"}, `zone_taken: n001 in zone "b" has it; 2 replicas go to 3 zones`, RuleZoneTaken},
		{Placement{9, "", "n006"}, `zone_taken: n000 in zone "a" has it; 2 replicas go to 3 zones`, RuleZoneTaken},
		{Placement{7, "", "n005"}, "no_room: 12.0 GiB wanted; n005 has 3.0 GiB free, of which 2.0 GiB stay free", RuleNoRoom},
		{Placement{7, "", "c2"}, "no_room: 12.0 GiB wanted; c2 has 15.0 GiB free, of which 4.0 GiB stay free", RuleNoRoom},
		{Placement{7, "", "n004"}, "no rule refuses it: n004 hosts 0, and its share is 205.7; it takes the place of n001", ""},
	} {
		v, err := p.ExplainMove(c.place)
		if err != nil || v.String() != c.want || v.Rule != c.rule || v.OK != (c.rule == "") {
			t.Errorf("%+v: %v, %v; want %s", c.place, v, err, c.want)
		}
		forced := p
		forced.Force = &c.place
		if _, err := Make(forced); (err == nil) != v.OK {
			t.Errorf("%+v forced: %v", c.place, err)
		}
	}
	for part := range p.Now {
		p.Now[part] = []millrace.NodeID{"n000", "n001", "c1"}
	}
	if v, _ := p.Explain(7, "n004"); v.Rule != RuleEnough {
		t.Errorf("a replica beyond those wanted: %v", v)
	}
	if _, err := (Problem{}).Explain(0, "n000"); err == nil {
		t.Error("a problem without a number of replicas is explained")
	}
	_ = partition.Count
}

// What is more than is wanted stays, if that is asked for, on nodes that may host it; a
// lost one is not made again where enough live. Zones come first.
func TestSurplusStays(t *testing.T) {
	p := Problem{Nodes: nodes(9, 3), Wanted: 2, Limits: Limits{Gain: 1 << 20, Surplus: true}}
	p.Nodes[5].Gone = true
	for part := range p.Now {
		p.Now[part] = []millrace.NodeID{"n000", "n001", "n002"} // each in its zone
	}
	p.Now[0] = []millrace.NodeID{"n000", "n001", "n005"}
	p.Now[1] = []millrace.NodeID{"n000", "n005"}
	p.Now[2] = []millrace.NodeID{"n000", "n003", "n005"} // of one zone, and gone
	p.Now[3] = []millrace.NodeID{"n000", "n003", "n006"} // all of one zone
	pl := mustMake(t, p)
	if len(pl.Moves) != 6 {
		t.Errorf("%d moves: %+v", len(pl.Moves), pl.Moves[:min(9, len(pl.Moves))])
	}
	for part, n := range []int{2, 2, 2, 2, 3} {
		if got := pl.Goal[part]; len(got) != n || slices.Contains(got, "n005") {
			t.Errorf("partition %d is to be on %q", part, got)
		}
	}
	if err := steps(&p, &pl); err != nil {
		t.Error(err)
	}
	p.Limits.Surplus = false
	if pl := mustMake(t, p); len(pl.Moves) != 6+partition.Count-4 {
		t.Errorf("%d moves where it goes", len(pl.Moves))
	}
}
