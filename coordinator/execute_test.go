package coordinator

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/coordinator/plan"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/partition"
)

// world is a cluster of nodes that do what the assignment says, in their own
// time, and that come and go.
type world struct {
	r     *rand.Rand
	now   time.Time
	a     topology.Assignment
	alive map[millrace.NodeID]bool
	ready map[millrace.NodeID]topology.Set // what each says that it serves
	disk  map[millrace.NodeID]topology.Set // what is whole on each node's disk
	// unheard is what each node was assigned, one set for each assignment that it has not
	// heard of yet; late is how many seconds one takes on average to be heard.
	unheard map[millrace.NodeID][]topology.Set
	late    int
}

func newWorld(r *rand.Rand, nodes, replicas int) *world {
	ids := make([]millrace.NodeID, nodes)
	for i := range ids {
		ids[i] = millrace.NodeID(fmt.Sprintf("n%d", i))
	}
	a, err := topology.Spread(ids, replicas)
	if err != nil {
		panic(err)
	}
	a.Wanted = replicas
	w := &world{
		r: r, now: time.Unix(1e9, 0), a: a, alive: map[millrace.NodeID]bool{}, ready: map[millrace.NodeID]topology.Set{},
		disk: map[millrace.NodeID]topology.Set{}, unheard: map[millrace.NodeID][]topology.Set{},
	}
	for _, id := range ids {
		w.alive[id], w.ready[id], w.disk[id] = true, a.Hosted(id), a.Hosted(id)
	}
	return w
}

// add starts a node that has nothing.
func (w *world) add(id millrace.NodeID) {
	w.alive[id], w.ready[id], w.disk[id] = true, topology.Set{}, topology.Set{}
}

// assign has an assignment made, of which nodes hear one after the other.
func (w *world) assign(a topology.Assignment) {
	for id := range w.alive {
		if hosted := a.Hosted(id); hosted != w.a.Hosted(id) {
			w.unheard[id] = append(w.unheard[id], hosted)
		}
	}
	w.a = a
}

// live lets some time pass: nodes hear of what they are assigned, build some of it, and
// serve what they have.
func (w *world) live() {
	w.now = w.now.Add(time.Second)
	for _, id := range slices.Sorted(maps.Keys(w.alive)) {
		if !w.alive[id] {
			w.ready[id], w.unheard[id] = topology.Set{}, nil // it hears of the newest alone when it is back
			continue
		}
		hosted, disk := w.a.Hosted(id), w.disk[id]
		for w.late > 0 && len(w.unheard[id]) > 0 && w.r.IntN(w.late) == 0 {
			ready := w.ready[id]
			w.ready[id], w.unheard[id] = ready.And(w.unheard[id][0]), w.unheard[id][1:]
		}
		if w.late > 0 && len(w.unheard[id]) > 0 {
			continue
		}
		w.unheard[id] = nil
		for p := range hosted.All() {
			if w.r.IntN(3) == 0 {
				disk.Add(p)
			}
		}
		drop := w.a.Drop[id]
		disk = disk.Minus(drop.Minus(hosted))
		w.disk[id], w.ready[id] = disk, disk.And(hosted)
	}
}

func (w *world) evidence() *evidence {
	var alive []topology.Node
	stats := map[millrace.NodeID]members.NodeStats{}
	for id, lives := range w.alive {
		if lives {
			alive = append(alive, topology.Node{ID: id, Addr: "a:1"})
			disk := w.disk[id]
			stats[id] = members.NodeStats{Held: disk.Minus(w.a.Hosted(id))}
		}
	}
	return &evidence{now: w.now, nodes: topology.NewMap(w.a, alive, maps.Clone(w.ready)), stats: stats, givenUp: map[millrace.NodeID]bool{}}
}

// counts returns how many ready replicas each partition has, but for those that are let
// go of when their node hears of what it was assigned.
func (w *world) counts() (n [partition.Count]int) {
	for id, ready := range w.ready {
		stay := ready.And(w.a.Hosted(id))
		for _, hosted := range w.unheard[id] {
			stay = stay.And(hosted)
		}
		if w.alive[id] {
			for p := range stay.All() {
				n[p]++
			}
		}
	}
	return n
}

// to returns a plan that leads from what there is to a spread over other nodes.
func (w *world) to(ids []millrace.NodeID, replicas int) *Plan {
	goal, err := topology.Spread(ids, replicas)
	if err != nil {
		panic(err)
	}
	base := Layout(w.a.Replicas)
	p := &Plan{ID: "p", Status: Running, Wanted: replicas, BaseWanted: w.a.Wanted, Base: base.clone(), Limits: Limits{PerNode: 1 + w.r.IntN(20)}}
	p.retarget(&w.a, (*Layout)(&goal.Replicas), w.evidence())
	return p
}

// step advances the plan once, and fails if anything was served less by it.
func (w *world) step(t *testing.T, p *Plan) {
	t.Helper()
	before := w.counts()
	floor := min(p.Wanted, w.a.Wanted)
	next := w.a
	next.Replicas = (*Layout)(&w.a.Replicas).clone()
	p.advance(&next, w.evidence(), &pace{})
	next.Epoch++
	if err := next.Validate(); err != nil {
		t.Fatal(err)
	}
	w.assign(next)
	for q, n := range w.counts() {
		least := floor
		if p.Status == RollingBack || p.Status == RolledBack {
			least = min(floor, len(p.Base[q]))
		}
		if n < before[q] && n < least {
			t.Fatalf("partition %d had %d ready replicas and has %d, of %d", q, before[q], n, least)
		}
	}
	per := map[millrace.NodeID]int{}
	for _, m := range p.Moves {
		if disk := w.disk[m.To]; m.State == Building && m.To != "" && !disk.Has(m.Partition) {
			per[m.To]++
		}
	}
	for id, n := range per {
		if n > p.Limits.PerNode {
			t.Fatalf("%d moves to %s at a time, of %d", n, id, p.Limits.PerNode)
		}
	}
}

// Plans end where they lead, whatever order they are given on the way and
// whoever goes and comes back meanwhile, and no partition is ever served by
// fewer because of them.
func TestPlansEnd(t *testing.T) {
	rounds := uint64(60)
	if testing.Short() {
		rounds = 6
	}
	for seed := range rounds {
		r := rand.New(rand.NewPCG(seed, 1))
		from, to := 3+r.IntN(4), 3+r.IntN(4)
		replicas := 2 + r.IntN(2)
		w := newWorld(r, from, 2)
		w.late = r.IntN(4)
		ids := make([]millrace.NodeID, to)
		for i := range ids {
			ids[i] = millrace.NodeID(fmt.Sprintf("n%d", i))
			if i >= from {
				w.add(ids[i])
			}
		}
		p := w.to(ids, replicas)
		goal := p.goal(&w.a)
		order := []Order{"", Cancel, Rollback, Pause}[r.IntN(4)]
		at := r.IntN(40)
		var away millrace.NodeID
		for n := 0; !p.Status.Ended(); n++ {
			if n > 5000 {
				t.Fatalf("seed %d: %s, %d moves are left", seed, p.Status, p.left())
			}
			if r.IntN(10) == 0 { // one node at a time
				if away == "" {
					away = ids[r.IntN(len(ids))]
					w.alive[away] = false
				} else {
					w.alive[away], away = true, ""
				}
			}
			w.live()
			if n == at && order != "" && !p.Status.Ended() {
				s := &Steered{State: &steering.State{Map: w.evidence().nodes, Assignment: w.a}, Plan: p, Intent: Intent{Nodes: map[millrace.NodeID]Mark{}}}
				if err := s.order(order, w.evidence(), "test"); err != nil {
					t.Fatal(err)
				}
				if order == Pause {
					was := w.a
					w.step(t, p)
					if was.Replicas[0] == nil || !slices.EqualFunc(was.Replicas[:], w.a.Replicas[:], slices.Equal[[]millrace.NodeID]) {
						t.Fatal("a paused plan moves")
					}
					if err := s.order(Resume, w.evidence(), "test"); err != nil {
						t.Fatal(err)
					}
				}
			}
			w.step(t, p)
		}
		got := Layout(w.a.Replicas)
		switch p.Status {
		case Done:
			if got.differs(&goal) {
				t.Fatalf("seed %d: done elsewhere", seed)
			}
		case RolledBack:
			if got.differs(&p.Base) || w.a.Wanted != p.BaseWanted {
				t.Fatalf("seed %d: rolled back to something else", seed)
			}
		case Cancelled:
			for q, owners := range got {
				if len(owners) < w.a.Wanted || len(owners) > max(replicas, len(p.Base[q])) {
					t.Fatalf("seed %d: cancelled with %v of partition %d", seed, owners, q)
				}
			}
		}
	}
}

// Plans from nine replicas to fifteen others end, though a partition may never have
// all of them at a time, and so do those that are taken back half way.
func TestPlansOfManyReplicasEnd(t *testing.T) {
	for _, order := range []Order{"", Cancel, Rollback} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 9, 9)
		ids := make([]millrace.NodeID, 15)
		for i := range ids {
			ids[i] = millrace.NodeID(fmt.Sprintf("n%d", 9+i))
			w.add(ids[i])
		}
		p := w.to(ids, 15)
		p.Limits.PerNode = partition.Count
		full := 0
		for n := 0; !p.Status.Ended(); n++ {
			if n > 500 {
				t.Fatalf("%s %s: %d moves are left", order, p.Status, p.left())
			}
			w.live()
			if n == 10 && order != "" {
				s := &Steered{State: &steering.State{Map: w.evidence().nodes, Assignment: w.a}, Plan: p, Intent: Intent{Nodes: map[millrace.NodeID]Mark{}}}
				if err := s.order(order, w.evidence(), "test"); err != nil {
					t.Fatal(err)
				}
			}
			w.step(t, p)
			for q := range w.a.Replicas {
				full = max(full, len(w.a.Replicas[q]))
			}
		}
		if got := Layout(w.a.Replicas); full != topology.MaxOwners || order == Rollback && got.differs(&p.Base) || order == "" && len(got[0]) != 15 {
			t.Errorf("%s %s: partition 0 is on %v, and %d is the most that one had", order, p.Status, got[0], full)
		}
	}
}

// A resize that is rolled back at any step, and after its end, returns to who
// hosted what before, also where what moved away has been deleted meanwhile, and where
// partitions had fewer replicas than are wanted.
func TestRollsBackFromEveryStep(t *testing.T) {
	every := 1
	if testing.Short() {
		every = 7
	}
	rollsBack(t, 2, every, false)
	rollsBack(t, 3, 7, true)
}

// rollsBack rolls a plan for another node back from each step, or from one of so many.
// With fewer, half of the partitions have one replica less than is wanted.
func rollsBack(t *testing.T, replicas, every int, fewer bool) {
	ended := false
	for at := 0; !ended; at += every {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, replicas)
		for q := 0; fewer && q < partition.Count; q += 2 {
			w.a.Replicas[q] = w.a.Replicas[q][:replicas-1]
		}
		w.live()
		w.add("n3")
		p := w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, replicas)
		p.Limits.PerNode = 120
		c := &Coordinator{cfg: Config{DropAfter: 5 * time.Second}}
		second := func() {
			w.live()
			w.step(t, p)
			e := w.evidence()
			s := &Steered{State: &steering.State{Map: e.nodes, Assignment: w.a}, Plan: p}
			c.drop(s, e)
			w.a = s.Assignment
		}
		for range at {
			second()
		}
		if ended = p.Status.Ended(); ended {
			for range 10 { // until what moved away is deleted
				second()
			}
		}
		s := &Steered{State: &steering.State{Map: w.evidence().nodes, Assignment: w.a}, Plan: p, Intent: Intent{Nodes: map[millrace.NodeID]Mark{}}}
		if err := s.order(Rollback, w.evidence(), "test"); err != nil {
			t.Fatal(err)
		}
		for n := 0; !p.Status.Ended(); n++ {
			if n > 1000 {
				t.Fatalf("from step %d: %s, %d moves are left", at, p.Status, p.left())
			}
			second()
		}
		if got := Layout(w.a.Replicas); got.differs(&p.Base) || p.Status != RolledBack || w.a.Wanted != p.BaseWanted {
			t.Fatalf("from step %d: %s, and something else is hosted", at, p.Status)
		}
		for q, ready := range w.counts() {
			if ready < min(replicas, len(p.Base[q])) {
				t.Fatalf("from step %d: partition %d has %d ready replicas", at, q, ready)
			}
		}
	}
}

// A rollback takes nothing away that is behind while nobody else is there: it may be
// all that there is. It ends when somebody is back.
func TestARollbackKeepsWhatServedLast(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 2, 2)
	w.add("n2")
	p := w.to([]millrace.NodeID{"n0", "n1", "n2"}, 3)
	p.Limits.PerNode = partition.Count
	w.step(t, p)
	w.ready["n2"] = topology.All() // and then behind
	s := &Steered{State: &steering.State{Map: w.evidence().nodes, Assignment: w.a}, Plan: p, Intent: Intent{Nodes: map[millrace.NodeID]Mark{}}}
	if err := s.order(Rollback, w.evidence(), "test"); err != nil {
		t.Fatal(err)
	}
	w.alive["n0"], w.alive["n1"], w.ready["n2"] = false, false, topology.Set{}
	for range 2 {
		w.step(t, p)
	}
	if hosted := w.a.Hosted("n2"); hosted.Len() != partition.Count || p.Status.Ended() {
		t.Errorf("%s: n2 hosts %d partitions, and nobody else is there", p.Status, hosted.Len())
	}
	w.alive["n1"] = true
	w.step(t, p)
	if p.Status != RolledBack {
		t.Errorf("n1 is back: %s, %d moves are left", p.Status, p.left())
	}
}

// What a plan is to give back to a node that still has it is not deleted there, also
// where it was ordered before the plan began; what it gives to others is.
func TestWhatComesBackIsNotDeleted(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	w.disk["n3"] = topology.All() // as after a drain
	c := &Coordinator{cfg: Config{DropAfter: 5 * time.Second}}
	drop := func(p *Plan) topology.Set {
		e := w.evidence()
		s := &Steered{State: &steering.State{Map: e.nodes, Assignment: w.a}, Plan: p}
		c.drop(s, e)
		w.a = s.Assignment
		return w.a.Drop["n3"]
	}
	drop(nil)
	w.now = w.now.Add(time.Minute)
	if ordered := drop(nil); ordered != topology.All() {
		t.Fatalf("without a plan %d partitions are to be deleted", ordered.Len())
	}
	p := &Plan{ID: "p", Status: Running, Wanted: 2, Base: Layout(w.a.Replicas), Moves: []Move{{Partition: 7, From: w.a.Replicas[7][0], To: "n3", State: Waiting}}}
	for _, status := range []Status{Running, Paused} {
		p.Status = status
		if ordered := drop(p); ordered.Len() != partition.Count-1 || ordered.Has(7) {
			t.Errorf("%s: %d partitions are to be deleted, 7 among them: %t", status, ordered.Len(), ordered.Has(7))
		}
	}
	p.Status = Cancelled
	if ordered := drop(p); !ordered.Has(7) {
		t.Error("what an ended plan was to bring stays for ever")
	}
}

// A plan that gets another end keeps what is under way and leads there: a
// replica that is being built is waited for, though nothing goes for it.
func TestAnotherEndKeepsWhatLeadsThere(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	p := w.to([]millrace.NodeID{"n0", "n1", "n2"}, 3)
	p.Limits.PerNode = 10
	w.step(t, p)
	building := func() (n int) {
		for _, m := range p.Moves {
			if m.State == Building {
				n++
			}
		}
		return n
	}
	before := building()
	goal := p.goal(&w.a)
	p.retarget(&w.a, &goal, w.evidence())
	if before == 0 || building() != before || len(p.Moves) != partition.Count {
		t.Errorf("%d moves were under way, and %d of %d are", before, building(), len(p.Moves))
	}
}

// A repair gives no node more than it has room for beside what the plan under way is
// to bring there, begun or not: what others have room for they take.
func TestARepairKeepsTheRoomThatIsSpokenFor(t *testing.T) {
	for _, begun := range []bool{false, true} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
		w.add("n4")
		evidence := func() *evidence {
			e := w.evidence()
			for id, st := range e.stats {
				st.Partitions = map[millrace.Partition]members.PartitionStats{}
				has := w.ready[id]
				for p := range has.All() {
					st.Partitions[p] = members.PartitionStats{Bytes: 1 << 20}
				}
				if st.DiskBytes, st.FreeBytes = 2000<<20, 1000<<20; id == "n4" {
					st.FreeBytes = 400 << 20
				}
				e.stats[id] = st
			}
			return e
		}
		e := evidence()
		s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}}
		pr, err := Propose(s, e.stats, Request{Kind: Rebalance, By: "me", Limits: Limits{PerNode: 50}}, w.now)
		if err != nil {
			t.Fatal(err)
		}
		if s.Plan, s.Intent = pr.Plan, pr.intent; begun {
			w.step(t, s.Plan)
		}
		delete(w.alive, "n0")
		e = evidence()
		e.givenUp["n0"] = true
		s.Assignment, s.Map = w.a, e.nodes
		for range 2 { // the planner may leave some for the next look
			if err := (&Coordinator{}).repair(s, e); err != nil {
				t.Fatal(err)
			}
		}
		comes := 0
		for _, m := range s.Plan.Moves {
			if m.To == "n4" {
				comes++
			}
		}
		if now := s.Plan.goal(&w.a); comes > 200 || now.hosts("n0") {
			t.Errorf("begun: %t: %d partitions are to come to n4, which has room for 200; all of the lost node's are made elsewhere: %t", begun, comes, !now.hosts("n0"))
		}
	}
}

// Where more replicas go than come, what comes is in place of those that are lost, and
// begins at once: that others go besides may wait.
func TestWhatIsLostIsMadeBeforeAnythingGoes(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 3)
	w.add("n3")
	p := &Plan{ID: "p", Kind: Drain, Status: Running, Wanted: 2, BaseWanted: 2, Base: Layout(w.a.Replicas), Limits: Limits{PerNode: partition.Count, PerSecond: 1}}
	delete(w.alive, "n2")
	e := w.evidence()
	e.givenUp["n2"] = true
	goal := Layout{}
	for q := range goal {
		goal[q] = []millrace.NodeID{"n0", "n3"}
	}
	p.retarget(&w.a, &goal, e)
	p.advance(&w.a, e, &pace{limits: Limits{PerNode: partition.Count}})
	n := 0
	for _, m := range p.Moves {
		if m.To != "" && m.State == Building {
			n++
		}
	}
	if n != partition.Count {
		t.Errorf("%d of %d replicas that are lost are being made", n, partition.Count)
	}
}

// A plan that does not say what it may do at a time does as much as its
// coordinator may.
func TestPlansKeepToTheirCoordinatorsLimits(t *testing.T) {
	for _, c := range []struct{ plan, coordinator, want int }{{0, 7, 7}, {3, 7, 3}} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
		w.add("n3")
		p := w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, 2)
		p.Limits.PerNode = c.plan
		p.advance(&w.a, w.evidence(), &pace{limits: Limits{PerNode: c.coordinator}})
		building := map[millrace.NodeID]int{}
		for _, m := range p.Moves {
			if m.State == Building {
				building[m.To]++
			}
		}
		if building["n3"] != c.want {
			t.Errorf("%d moves are begun to a new node, not %d", building["n3"], c.want)
		}
	}
}

// Moves of a plan begin by and by, as many a second as are allowed however
// often its coordinator looks; those of what is lost begin at once.
func TestMovesBeginByAndBy(t *testing.T) {
	for _, c := range []struct {
		name              string
		kind              Kind
		plan, coordinator Limits
		most              int // that may be begun in ten seconds
	}{
		{"by number", Resize, Limits{}, Limits{PerSecond: 5}, 55},
		{"as the plan says", Resize, Limits{PerSecond: 8}, Limits{PerSecond: 5}, 88},
		{"by bytes", Resize, Limits{BytesPerSecond: 10 << 20}, Limits{}, 110},
		{"by what is less", Resize, Limits{BytesPerSecond: 10 << 20}, Limits{PerSecond: 5}, 55},
		{"what is lost", Repair, Limits{}, Limits{PerSecond: 5}, 600},
		{"what is lost, as the plan says", Repair, Limits{PerSecond: 5}, Limits{}, 55},
		{"what a repair takes from nodes that are there", Repair, Limits{}, Limits{PerSecond: 5}, 55},
	} {
		for _, looks := range []int{1, 10} { // a second
			w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
			w.add("n3")
			p := w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, 2)
			c.plan.PerNode = partition.Count
			p.Kind, p.Limits = c.kind, c.plan
			for i := range p.Moves {
				p.Moves[i].Bytes = 1 << 20
			}
			at := pace{limits: c.coordinator}
			for range 10 * looks {
				e := w.evidence()
				for _, m := range p.Moves {
					e.givenUp[m.From] = strings.HasPrefix(c.name, "what is lost")
				}
				p.advance(&w.a, e, &at)
				w.now = w.now.Add(time.Second / time.Duration(looks))
			}
			begun := 0
			for _, m := range p.Moves {
				if m.State != Waiting {
					begun++
				}
			}
			if least := c.most * 9 / 11; begun > c.most || begun < least {
				t.Errorf("%s, looked at %d times a second: %d moves are begun in ten seconds, not %d to %d", c.name, looks, begun, least, c.most)
			}
		}
	}
}

// What is lost while a plan is under way is made elsewhere at once, whatever the
// limits of the plan are.
func TestRepairsOfPlansBeginAtOnce(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	w.add("n4")
	p := w.to([]millrace.NodeID{"n1", "n2", "n3", "n4"}, 2)
	p.Kind, p.Limits = Replace, Limits{PerNode: 1, PerSecond: 1, BytesPerSecond: 1}
	lost, ofLost, others := millrace.NodeID("n0"), 0, 0
	delete(w.alive, lost)
	e := w.evidence()
	e.givenUp[lost] = true
	p.advance(&w.a, e, &pace{limits: Limits{PerNode: partition.Count, PerSecond: 1}})
	waits := 0
	for _, m := range p.Moves {
		switch {
		case m.From == lost && m.State == Waiting:
			waits++
		case m.From == lost:
			ofLost++
		case m.State != Waiting:
			others++
		}
	}
	if waits > 0 || ofLost == 0 || others > 2 {
		t.Errorf("%d moves from the lost node are begun and %d wait, and %d others are begun", ofLost, waits, others)
	}
}

// A repair takes from a node that is drained besides what the rules demand: by the
// pace of what somebody planned, and also when the node is back that was given up. A
// drain that gets another end by a repair goes on in the same way. What is not begun
// of what was lost is not needed then; but of a node that is drained, it is.
func TestARepairGoesOnWithADrain(t *testing.T) {
	for _, c := range []struct {
		name  string
		drain bool // is under way when nodes are gone
		gone  []millrace.NodeID
	}{
		{"a repair", false, []millrace.NodeID{"n0"}},
		{"a drain", true, []millrace.NodeID{"n0"}},
		{"a repair, the drained node gone too", false, []millrace.NodeID{"n0", "n1"}},
		{"a drain, the drained node gone too", true, []millrace.NodeID{"n0", "n1"}},
	} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 5, 2)
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Intent: Intent{Nodes: map[millrace.NodeID]Mark{"n1": {Draining: true}}}}
		kind := Repair
		if c.drain {
			pr, err := Propose(s, nil, Request{Kind: Drain, Nodes: []millrace.NodeID{"n1"}, By: "me"}, w.now)
			if err != nil {
				t.Fatal(err)
			}
			s.Plan, s.Intent, kind = pr.Plan, pr.intent, Drain
		}
		at := &Coordinator{cfg: Config{}.withDefaults(), pace: pace{limits: Limits{PerNode: 20, PerSecond: 1}}}
		look := func(givenUp bool) {
			t.Helper()
			for _, id := range c.gone {
				w.alive[id] = !givenUp
			}
			e := w.evidence()
			for _, id := range c.gone {
				if givenUp {
					e.givenUp[id] = true
				}
			}
			s.Assignment, s.Map = w.a, e.nodes
			if err := at.repair(s, e); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			s.Plan.advance(&s.Assignment, e, &at.pace)
			w.a = s.Assignment
		}
		count := func(from millrace.NodeID, state MoveState) (n int) {
			for _, m := range s.Plan.Moves {
				if m.From == from && m.State == state {
					n++
				}
			}
			return n
		}
		look(true)
		drained, begun, lost := count("n1", Waiting)+count("n1", Building), count("n1", Building), count("n0", Building)
		if s.Plan.Kind != kind || drained == 0 || len(c.gone) == 1 && (lost < 3*20-2 || begun > 2) {
			t.Fatalf("%s: %s: %d moves from the lost node are begun, and %d of %d from the drained one", c.name, s.Plan.Kind, lost, begun, drained)
		}
		look(false)
		if n := count("n1", Waiting) + count("n1", Building); n != drained || count("n0", Waiting) != 0 {
			t.Errorf("%s: who was lost is back: %d moves from the drained one are left of %d, and %d from the lost one wait", c.name, n, drained, count("n0", Waiting))
		}
	}
}

// What a plan was to move from a node anyway it moves though the node was given up
// and is back meanwhile.
func TestWhoIsBackGivesAwayWhatWasPlanned(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	p := w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, 2)
	planned := slices.DeleteFunc(slices.Clone(p.Moves), func(m Move) bool { return m.From != "n0" })
	s := &Steered{State: &steering.State{Assignment: w.a}, Plan: p}
	for _, alive := range []bool{false, true} {
		w.alive["n0"] = alive
		e := w.evidence()
		if s.Map = e.nodes; !alive {
			e.givenUp["n0"] = true
		}
		if err := (&Coordinator{}).repair(s, e); err != nil {
			t.Fatal(err)
		}
		if now := p.goal(&w.a); now.hosts("n0") != alive {
			t.Errorf("n0 is there: %t: it is to host something: %t", alive, now.hosts("n0"))
		}
	}
	if len(planned) == 0 {
		t.Error("nothing is planned")
	}
	for _, m := range planned {
		if !slices.Contains(p.Moves, m) {
			t.Errorf("%s is not to be moved any more", m)
		}
	}
}

// What people's plans move from a node because it is given up is not needed any more when
// that is back; but what it was to lose anyway is.
func TestWhoIsBackKeepsWhatNobodyTook(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		nodes []millrace.NodeID
		keeps bool
	}{{Rebalance, nil, true}, {Add, []millrace.NodeID{"n4"}, true}, {Drain, []millrace.NodeID{"n0"}, false}, {Replace, []millrace.NodeID{"n0", "n4"}, false}} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
		w.add("n4")
		w.alive["n0"] = false
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Notes: Notes{GivenUp: []millrace.NodeID{"n0"}}}
		pr, err := Propose(s, nil, Request{Kind: c.kind, Nodes: c.nodes, Gain: 1, By: "me", Lossy: true}, w.now)
		if err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		s.Plan, s.Intent, w.alive["n0"] = pr.Plan, pr.intent, true
		from := func() (n int) {
			for _, m := range s.Plan.Moves {
				if m.From == "n0" {
					n++
				}
			}
			return n
		}
		before := from()
		s.Plan.spare(w.evidence(), &s.Intent)
		if after := from(); before == 0 || c.keeps != (after == 0) {
			t.Errorf("%s: of %d moves from n0 %d are left", c.kind, before, after)
		}
	}
}

// Who is given up stays so while it is gone, also when others are away for a moment, by
// whom too many are gone to give up more. Only nodes that are gone for longer than the
// grace raise the alarm, and it names all that are gone: to give up but some is refused.
func TestWhoIsGivenUpStaysSo(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 5, 2)
	s := &Steered{State: &steering.State{Assignment: w.a}}
	at := &Coordinator{cfg: Config{}.withDefaults(), since: map[string]time.Time{}}
	look := func(after time.Duration) (givenUp, alarms string) {
		w.now = w.now.Add(after)
		e := w.evidence()
		s.Map = e.nodes
		at.look(s, e)
		for _, a := range s.Notes.Alarms {
			alarms += a.What + ": " + a.Detail
		}
		return fmt.Sprint(slices.Sorted(maps.Keys(e.givenUp))), alarms
	}
	w.alive["n0"] = false
	look(0)
	if givenUp, alarms := look(DefaultGrace); givenUp != "[n0]" || alarms != "" {
		t.Fatalf("given up: %s; %s", givenUp, alarms)
	}
	w.alive["n1"] = false
	for range 2 {
		if givenUp, alarms := look(5 * time.Second); givenUp != "[n0]" || alarms != "" {
			t.Errorf("n1 is away for seconds: given up: %s; %s", givenUp, alarms)
		}
	}
	w.alive["n2"] = false
	if givenUp, alarms := look(DefaultGrace - 2*time.Second); givenUp != "[n0]" || !strings.Contains(alarms, "mass_loss: 3 nodes are gone at once, of 5 that host something") || !strings.Contains(alarms, "node remove n0 n1 n2 --apply") {
		t.Errorf("n1 is gone for good, and n2 away: given up: %s; %s", givenUp, alarms)
	}
	w.alive["n1"], w.alive["n2"] = true, true
	if givenUp, alarms := look(time.Second); givenUp != "[n0]" || alarms != "" {
		t.Errorf("n1 and n2 are back: given up: %s; %s", givenUp, alarms)
	}
	w.alive["n0"] = true
	if givenUp, _ := look(time.Second); givenUp != "[]" {
		t.Errorf("n0 is back: given up: %s", givenUp)
	}
}

// A proposal tells how many partitions nodes have now, also where it gives a plan another
// end that began with others.
func TestAProposalCountsWhatIsHostedNow(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	p := w.to([]millrace.NodeID{"n0", "n1", "n2"}, 2)
	for n := 0; p.left() > 100; n++ {
		w.live()
		w.step(t, p)
	}
	w.alive["n1"] = false
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p}
	pr, err := Propose(s, nil, Request{Kind: Repair, Nodes: []millrace.NodeID{"n1"}, By: "me", Lossy: true}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range pr.Nodes() {
		if hosted := w.a.Hosted(n.ID); n.Before != hosted.Len() {
			t.Errorf("%s has %d partitions, and is said to have %d", n.ID, hosted.Len(), n.Before)
		}
	}
}

// What a plan did before it was told to go back says nothing of how long that
// takes.
func TestProgressIsOfTheLastOrder(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	p := w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, 2)
	began := time.Unix(1_800_000_000, 0).UTC()
	p.Created, p.Since = began, began.Add(time.Hour)
	for i := range p.Moves {
		m := &p.Moves[i]
		m.Bytes = 1 << 20
		switch {
		case i < 100:
			m.State, m.Since = Moved, began.Add(time.Minute)
		case i < 110:
			m.State, m.Since = Moved, p.Since.Add(time.Duration(i-99)*time.Second)
		}
	}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: topology.NewMap(w.a, nil, nil)}, Plan: p}
	pr := s.Progress(p.Since.Add(10 * time.Second))
	if left := float64(len(p.Moves) - 110); pr.Rate != 1<<20 || pr.Left != left || pr.Done != 110<<20 {
		t.Errorf("%d bytes are done, at %.0f a second, %.0f s are left, not %.0f", pr.Done, pr.Rate, pr.Left, left)
	}
	p.Since = p.Since.Add(-10 * time.Minute) // so the first took long
	now, left := p.Moves[109].Since, float64(len(p.Moves)-110)
	if pr := s.Progress(now); pr.Left != left {
		t.Errorf("%.0f s are left, not %.0f", pr.Left, left)
	}
	p.Moves[150].State, p.Moves[150].Since = Building, now
	full := topology.EncodeReports([]topology.Report{{State: "assigned", Reason: topology.DiskFullReason, Partitions: topology.All()}})
	s.Map, _ = s.Map.Next(&keyspace.Snapshot{Values: map[string]keyspace.Value{"state/" + string(p.Moves[150].To): {Data: full}}})
	if pr := s.Progress(now); pr.Left != -1 {
		t.Errorf("%.0f s are left while a disk is full", pr.Left)
	}
	for i := 101; i < 110; i++ {
		p.Moves[i].State = Waiting
	}
	p.Moves[150].State = Waiting
	if pr := s.Progress(now); pr.Left != -1 {
		t.Errorf("%.0f s are left after one move", pr.Left)
	}
}

// What a node keeps free of its disk is not given to it.
func TestWhatNodesKeepFreeIsNotGiven(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	e := w.evidence()
	e.stats["n3"] = members.NodeStats{DiskBytes: 100 << 20, FreeBytes: 40 << 20, KeptBytes: 64 << 20}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}}
	s.Intent.Nodes = map[millrace.NodeID]Mark{"n3": {Added: true}}
	x, err := s.Explain(e.stats, 0, "n3", w.now)
	if err != nil || len(x.Elsewhere) != 1 || x.Elsewhere[0].Rule != "no_room" {
		t.Errorf("%+v, %v", x.Elsewhere, err)
	}
	made, err := s.replaced(e, 2, []millrace.NodeID{"n0", "n3"})
	if want := "n3 has 40 MiB free, of which 64 stay so, and would take 0"; err != nil || len(made.Warnings) != 1 || made.Warnings[0] != want {
		t.Errorf("%q, %v; want %q", made.Warnings, err, want)
	}
}

// A move back to a node that has the data takes no room: it begins though the disk is
// nearly full, and keeps no room from others. One that is larger meanwhile, or of which
// the node tells nothing, has to fit.
func TestWhatANodeHasTakesNoRoom(t *testing.T) {
	for _, c := range []struct {
		name  string
		has   int64 // MiB of partition 0 that n3 has; -1: it is not there
		free  int64 // MiB besides what is kept free
		bytes int64 // of each move
		begin int   // moves
	}{
		{"all of it", 5, 1, 5 << 20, 1},
		{"all of it, less than is kept free", 5, -1, 5 << 20, 1},
		{"all of it, and the others fit", 5, 5, 5 << 20, 2},
		{"some of it", 2, 1, 5 << 20, 0},
		{"some of it, the rest fits", 2, 3, 5 << 20, 1},
		{"nothing", -1, 1, 5 << 20, 0},
		{"nobody knows how large it is", -1, -1, 0, 0},
	} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
		w.add("n3")
		e := w.evidence()
		st := members.NodeStats{DiskBytes: 100 << 20, FreeBytes: (10 + c.free) << 20, KeptBytes: 10 << 20, Partitions: map[millrace.Partition]members.PartitionStats{}}
		if c.has >= 0 {
			st.Partitions[0] = members.PartitionStats{Bytes: c.has << 20}
		}
		e.stats["n3"] = st
		p := &Plan{ID: "p", Status: RollingBack, Wanted: 2, BaseWanted: 2, Base: Layout(w.a.Replicas), Limits: Limits{PerNode: 20}}
		for q := range millrace.Partition(3) {
			p.Moves = append(p.Moves, Move{Partition: q, From: w.a.Replicas[q][0], To: "n3", State: Waiting, Bytes: c.bytes})
		}
		for range 2 { // what is begun is counted anew
			p.advance(&w.a, e, &pace{})
		}
		begun := 0
		for _, m := range p.Moves {
			if m.State == Building {
				begun++
			}
		}
		if begun != c.begin {
			t.Errorf("%s: %d moves are begun, want %d", c.name, begun, c.begin)
		}
	}
}

// Explain says of each move of a partition where it is, for how long, and what it
// waits for.
func TestExplainSaysWhatMovesWaitFor(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	p := &Plan{ID: "p", Status: Running, Wanted: 2, BaseWanted: 2, Base: Layout(w.a.Replicas), Since: w.now}
	for q := range millrace.Partition(20) {
		p.Moves = append(p.Moves, Move{Partition: q, From: w.a.Replicas[q][0], To: "n3", State: Waiting})
	}
	w.now = w.now.Add(time.Minute)
	p.begin(&p.Moves[0], &w.a, w.now)
	p.begin(&p.Moves[1], &w.a, w.now)
	p.end(&p.Moves[1], &w.a, w.now)
	p.Moves[3].Bytes = 5 << 20
	w.now = w.now.Add(time.Second)
	for name, c := range map[string]struct {
		move    int
		change  func(*evidence, *Plan)
		replica string
		detail  string
		seconds float64
	}{
		"it is begun":      {0, nil, "assigned", "", 1},
		"its node is gone": {0, func(e *evidence, _ *Plan) { delete(w.alive, "n3") }, "gone", "n3 is not there", 1},
		"it is ready":      {0, func(*evidence, *Plan) { w.ready["n3"] = topology.All() }, "ready", string(p.Moves[0].From) + " goes when as many serve as are wanted", 1},
		"another is not": {0, func(*evidence, *Plan) {
			w.ready["n3"], w.ready[w.a.Replicas[0][1]] = topology.All(), topology.Set{}
		}, "ready", string(p.Moves[0].From) + " goes when as many serve as are wanted, and " + string(w.a.Replicas[0][1]) + " does not", 1},
		"it is ready, paused": {0, func(_ *evidence, p *Plan) { w.ready["n3"], p.Status = topology.All(), Paused }, "ready", string(p.Moves[0].From) + " stays while the plan is paused", 1},
		"it is done":          {1, nil, "done", "", 1},
		"its turn":            {2, nil, "waiting", "its turn: 1 moves to n3 are under way, and 0 others wait before it", 61},
		"its turn, later":     {12, nil, "waiting", "its turn: 1 moves to n3 are under way, and 10 others wait before it", 61},
		"the plan is paused":  {2, func(_ *evidence, p *Plan) { p.Status = Paused }, "waiting", "the plan is paused", 61},
		"nobody is there":     {2, func(*evidence, *Plan) { delete(w.alive, "n3") }, "waiting", "n3 is not there", 61},
		"no room": {3, func(e *evidence, p *Plan) {
			e.stats["n3"] = members.NodeStats{DiskBytes: 100 << 20, FreeBytes: 9 << 20, KeptBytes: 2 << 20}
			p.Moves[0].Bytes = 3 << 20
		}, "waiting", "n3 has no room: 9 MiB are free, of which 2 stay so and 3 are for moves under way, and it takes 5", 61},
	} {
		plan := *p
		plan.Moves = slices.Clone(p.Moves)
		for _, id := range []millrace.NodeID{"n0", "n1", "n2"} {
			w.ready[id] = w.a.Hosted(id)
		}
		w.alive["n3"], w.ready["n3"] = true, topology.Set{}
		e := w.evidence()
		if c.change != nil {
			c.change(e, &plan)
		}
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: &plan}
		x, err := s.Explain(e.stats, plan.Moves[c.move].Partition, "n3", w.now)
		if err != nil || len(x.Moves) != 1 || x.Moves[0].Replica != c.replica || x.Moves[0].Detail != c.detail || x.Moves[0].Seconds != c.seconds {
			t.Errorf("%s: %+v, %v; want %s for %.0f s: %s", name, x.Moves, err, c.replica, c.seconds, c.detail)
		}
	}
}

// What moves wait for that cannot begin is counted, the most frequent first; not what only
// waits for its turn, nor what a paused plan would wait for.
func TestWaitsAreCounted(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n4")
	p := &Plan{ID: "p", Status: Running, Wanted: 2, BaseWanted: 2, Base: Layout(w.a.Replicas), Since: w.now}
	for q := range millrace.Partition(20) {
		to, bytes := millrace.NodeID("n3"), int64(0) // nobody
		if q%3 == 0 {
			to, bytes = "n4", int64(q)<<20
		}
		p.Moves = append(p.Moves, Move{Partition: q, From: w.a.Replicas[q][0], To: to, State: Waiting, Bytes: bytes})
	}
	e := w.evidence()
	e.stats["n4"] = members.NodeStats{DiskBytes: 100 << 20, FreeBytes: 9 << 20, KeptBytes: 2 << 20}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}, Plan: p}
	want := []Wait{{13, "n3 is not there"}, {4, "n4 has no room: 9 MiB are free, of which 2 stay so and 0 are for moves under way, and it takes 9"}}
	if got := s.Waits(e.stats, w.now); !slices.Equal(got, want) {
		t.Errorf("%+v", got)
	}
	for _, status := range []Status{Paused, Done} {
		if p.Status = status; len(s.Waits(e.stats, w.now)) != 0 {
			t.Errorf("%s: %+v", status, s.Waits(e.stats, w.now))
		}
	}
}

// A node that a plan leads to and that is gone is given up by hand, too, though it
// hosts nothing; one that nobody has heard of is not.
func TestWhoAPlanLeadsToIsGivenUpByHand(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	p := w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, 2)
	delete(w.alive, "n3")
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p}
	pr, err := Propose(s, nil, Request{Kind: Repair, Nodes: []millrace.NodeID{"n3"}, By: "me"}, w.now)
	if err != nil || pr.Err() != nil || pr.Goal.hosts("n3") {
		t.Errorf("n3 is not given up: %v", err)
	}
	if _, err := Propose(s, nil, Request{Kind: Repair, Nodes: []millrace.NodeID{"n4"}, By: "me"}, w.now); err == nil {
		t.Error("a node is given up that is not heard of")
	}
}

// A rollback to a node that is gone for good ends: what it cannot be given back stays
// where it is.
func TestARollbackEndsWithoutWhoIsGone(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 2, 2)
	base := Layout(w.a.Replicas)
	base = base.clone()
	w.add("n2")
	goal, err := topology.Spread([]millrace.NodeID{"n0", "n2"}, 2)
	if err != nil {
		t.Fatal(err)
	}
	w.a.Replicas = goal.Replicas
	delete(w.alive, "n1")
	w.ready["n2"], w.disk["n2"] = topology.All(), topology.All()
	p := &Plan{ID: "p", Kind: Add, Status: Done, Wanted: 2, BaseWanted: 2, Base: base, Marks: map[millrace.NodeID]Mark{"n2": {}}}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p, Intent: Intent{Nodes: map[millrace.NodeID]Mark{"n2": {Added: true}}}}
	if err := s.order(Rollback, w.evidence(), "me"); err != nil || p.left() != 720 {
		t.Fatalf("%d moves are left: %v", p.left(), err)
	}
	pr, err := Propose(s, nil, Request{Kind: Repair, Nodes: []millrace.NodeID{"n1"}, By: "me"}, w.now)
	if err != nil || pr.Err() != nil || pr.Goal.hosts("n1") || !pr.Goal.hosts("n2") || pr.Why != "n1 is given up" || !slices.ContainsFunc(pr.After.Nodes, func(n plan.NodeBalance) bool { return n.ID == "n2" && n.Replicas == 720 }) {
		t.Errorf("n1 is not given up: %v, %+v", err, pr)
	}
	pr, err = Propose(s, nil, Request{Kind: Add, Nodes: []millrace.NodeID{"n2"}, By: "me"}, w.now)
	if err == nil {
		err = pr.Err()
	}
	if err == nil || !strings.Contains(err.Error(), "plan p (add) is rolling back: wait for its end, or cancel it;") {
		t.Errorf("another plan: %v", err)
	}
	e := w.evidence()
	e.givenUp["n1"] = true
	c := &Coordinator{}
	if err := c.repair(s, e); err != nil {
		t.Fatal(err)
	}
	p.advance(&w.a, e, &pace{})
	if p.Status != RolledBack || w.a.Hosted("n2") != topology.All() || w.a.Hosted("n0") != topology.All() {
		t.Errorf("%s, %d moves are left", p.Status, p.left())
	}
}

// A rollback takes back what its plan has said of nodes, and nothing that was said
// of others, or before.
func TestRollbacksTakeBackTheirOwnMarks(t *testing.T) {
	drains := Mark{Draining: true, By: "ann", Since: time.Unix(1e9, 0).UTC()}
	for _, c := range []struct {
		kind  Kind
		nodes []millrace.NodeID
	}{{Add, []millrace.NodeID{"n4"}}, {Replace, []millrace.NodeID{"n0", "n3"}}, {Drain, []millrace.NodeID{"n0"}}, {Rebalance, nil}} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
		w.add("n3")
		w.add("n4")
		before := Intent{Nodes: map[millrace.NodeID]Mark{"n1": drains, "n3": drains}} // n1 hosts something yet
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Intent: before.clone()}
		pr, err := Propose(s, nil, Request{Kind: c.kind, Nodes: c.nodes, By: "me", Lossy: true}, w.now)
		if err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		s.Plan, s.Intent = pr.Plan, pr.intent
		if err := s.order(Rollback, w.evidence(), "me"); err != nil || !maps.Equal(s.Intent.Nodes, before.Nodes) {
			t.Errorf("%s: %+v, %v", c.kind, s.Intent.Nodes, err)
		}
	}
}

// What was cancelled no repair carries out or takes back: a node that was drained keeps
// what has not moved, one that was added and got nothing gets nothing, and no partition
// loses the replica that it was to lose, or that it got.
func TestNoRepairDoesWhatWasCancelled(t *testing.T) {
	for _, c := range []struct {
		kind             Kind
		nodes            []millrace.NodeID
		replicas, wanted int
		seconds          int // until it is cancelled
		undone           func(Move) bool
	}{
		{Drain, []millrace.NodeID{"n1"}, 2, 0, 5, func(m Move) bool { return m.From == "n1" }},
		{Add, []millrace.NodeID{"n4"}, 2, 0, 0, func(m Move) bool { return m.To == "n4" }},
		{Resize, nil, 3, 2, 5, func(m Move) bool { return m.To == "" }},
		{Resize, nil, 2, 3, 5, func(m Move) bool { return m.To == "" && m.From != "n0" }},
	} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, c.replicas)
		if c.kind == Add {
			w.add("n4")
		}
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}}
		pr, err := Propose(s, nil, Request{Kind: c.kind, Nodes: c.nodes, Replicas: c.wanted, By: "me", Limits: Limits{PerNode: 20, PerSecond: 20}}, w.now)
		if err != nil {
			t.Fatalf("%s: %v", c.kind, err)
		}
		s.Plan, s.Intent = pr.Plan, pr.intent
		for n := 0; !s.Plan.Status.Ended(); n++ {
			if n > 1000 {
				t.Fatalf("%s: %s, %d moves are left", c.kind, s.Plan.Status, s.Plan.left())
			}
			if s.Assignment, s.Map = w.a, w.evidence().nodes; n == c.seconds {
				if err := s.order(Cancel, w.evidence(), "me"); err != nil {
					t.Fatal(err)
				}
			}
			w.step(t, s.Plan)
			w.live()
		}
		delete(w.alive, "n0")
		e := w.evidence()
		e.givenUp["n0"] = true
		s.Assignment, s.Map = w.a, e.nodes
		if err := (&Coordinator{}).repair(s, e); err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, m := range s.Plan.Moves {
			if c.undone(m) {
				n++
			}
		}
		if s.Plan.Kind != Repair || n > 0 {
			t.Errorf("%s: %d of %d moves of the %s do what was cancelled", c.kind, n, len(s.Plan.Moves), s.Plan.Kind)
		}
	}
}

// After a shrink that was cancelled a repair brings back what went: at once where a
// partition has lost a node, too, and else by the pace of what somebody planned.
func TestARepairBringsByAndByWhatNobodyLost(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 6, 3)
	for q := 0; q < partition.Count; q += 2 { // these are shrunk
		w.a.Replicas[q] = w.a.Replicas[q][:2]
	}
	w.live()
	delete(w.alive, "n0")
	e := w.evidence()
	e.givenUp["n0"] = true
	s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}}
	at := &Coordinator{cfg: Config{}.withDefaults(), pace: pace{limits: Limits{PerNode: partition.Count, PerSecond: 5}}}
	if err := at.repair(s, e); err != nil {
		t.Fatal(err)
	}
	s.Plan.advance(&s.Assignment, e, &at.pace)
	begun, waits, lost := 0, 0, 0
	for _, m := range s.Plan.Moves {
		switch {
		case slices.Contains(s.Plan.Base[m.Partition], "n0"):
			if m.State == Waiting {
				lost++
			}
		case m.State == Waiting:
			waits++
		default:
			begun++
		}
	}
	if lost > 0 || begun > 6 || waits < 100 {
		t.Errorf("%d moves of partitions that lost a node wait; of the others %d are begun and %d wait", lost, begun, waits)
	}
}

// Of several nodes that are gone one is given up by hand: what it hosted is made on those
// that are there, and the others keep what they have and get nothing more, also of a plan
// under way that waits for them.
func TestOneOfSeveralLostNodesIsGivenUp(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 10, 2)
	for _, id := range []millrace.NodeID{"n0", "n1", "n2", "n3"} {
		delete(w.alive, id)
	}
	e := w.evidence()
	s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}}
	pr, err := Propose(s, e.stats, Request{Kind: Repair, Nodes: []millrace.NodeID{"n0"}, By: "me", Lossy: true}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if err := pr.Err(); err != nil {
		t.Error(err)
	}
	if pr.Goal.hosts("n0") || len(pr.Plan.Moves) != 144 {
		t.Errorf("n0 hosts something: %t; %d moves, want 144", pr.Goal.hosts("n0"), len(pr.Plan.Moves))
	}
	for _, m := range pr.Plan.Moves {
		if m.From != "n0" || !w.alive[m.To] {
			t.Fatalf("%s is to be moved", m)
		}
	}
	s.Plan = &Plan{ID: "p", Kind: Add, Status: Running, Wanted: 2, BaseWanted: 2, Base: pr.Plan.Base, Moves: []Move{{Partition: 7, From: w.a.Replicas[7][0], To: "n10", State: Waiting}}}
	pr, err = Propose(s, e.stats, Request{Kind: Repair, Nodes: []millrace.NodeID{"n0"}, By: "me", Lossy: true}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if err := pr.Err(); err != nil || pr.Goal.hosts("n0") {
		t.Errorf("a plan waits for n10: n0 hosts something: %t; %v", pr.Goal.hosts("n0"), err)
	}
	for _, m := range pr.Plan.Moves {
		if m.Partition != 7 && !w.alive[m.To] {
			t.Fatalf("a plan waits for n10: %s is to be moved", m)
		}
	}
}

// A cancelled plan ends also where partitions have lost the replica already that they
// were to lose, and one that replaces another is under way, ready or not.
func TestACancelledShrinkEnds(t *testing.T) {
	for _, ready := range []bool{false, true} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 3)
		w.add("n3")
		p := &Plan{ID: "p", Kind: Resize, Status: Running, Wanted: 2, BaseWanted: 3, Base: Layout(w.a.Replicas), Limits: Limits{PerNode: 720}, Marks: map[millrace.NodeID]Mark{}}
		p.Base = p.Base.clone()
		p.Moves = []Move{{Partition: 0, From: "n0", State: Waiting}, {Partition: 0, From: "n1", To: "n3", State: Waiting}}
		w.step(t, p)
		w.step(t, p)
		p.Moves = append(p.Moves, Move{Partition: 1, From: "n0", State: Waiting})
		if ready {
			w.ready["n3"] = w.a.Hosted("n3")
		}
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}, Plan: p}
		if err := s.order(Cancel, w.evidence(), "me"); err != nil {
			t.Fatal(err)
		}
		w.ready["n3"] = w.a.Hosted("n3")
		w.step(t, p)
		if !p.Status.Ended() || len(w.a.Replicas[0]) != 3 || w.a.Wanted != 3 {
			t.Errorf("ready: %t: %s, %v, of %d that are wanted", ready, p.Status, w.a.Replicas[0], w.a.Wanted)
		}
	}
}

// A replacement in which another node is lost for good, and nobody can take what that
// hosted, ends when it is cancelled, before or after that node is given up: who was to give
// way serves in place of the lost one, and is not to host nothing any more. A node that
// comes then can be added.
func TestACancelledReplacementEndsWithoutWhoIsGone(t *testing.T) {
	for _, c := range []struct {
		name           string
		early, byHands bool // the node is given up after the plan is cancelled; by a person
	}{{"given up before", false, false}, {"given up after", true, false}, {"given up by hand", true, true}} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 3)
		w.add("n3")
		s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}}
		pr, err := Propose(s, nil, Request{Kind: Replace, Nodes: []millrace.NodeID{"n0", "n3"}, By: "me", Limits: Limits{PerNode: 720}}, w.now)
		if err != nil {
			t.Fatal(err)
		}
		s.Plan, s.Intent = pr.Plan, pr.intent
		at := &Coordinator{cfg: Config{}.withDefaults(), since: map[string]time.Time{}}
		look := func(givenUp bool) {
			w.live()
			e := w.evidence()
			e.givenUp["n1"] = givenUp
			if !givenUp {
				delete(e.givenUp, "n1")
			}
			s.Assignment, s.Map, s.Notes = w.a, e.nodes, Notes{GivenUp: slices.Collect(maps.Keys(e.givenUp))}
			at.do(s, e)
			w.a = s.Assignment
			s.Map = w.evidence().nodes
		}
		w.alive["n1"] = false
		for range 60 {
			look(!c.early)
		}
		if err := s.order(Cancel, w.evidence(), "me"); err != nil {
			t.Fatal(err)
		}
		if look(!c.early); c.byHands {
			pr, err := Propose(s, nil, Request{Kind: Repair, Nodes: []millrace.NodeID{"n1"}, By: "me", Lossy: true}, w.now)
			if err != nil || pr.Err() != nil || pr.intent.Nodes["n0"].Draining {
				t.Fatalf("%s: %v, %v, %+v", c.name, err, pr.Err(), pr.intent)
			}
			s.Plan, s.Intent = pr.Plan, pr.intent
		}
		for range 5 {
			look(true)
		}
		if s.Plan.Status != Cancelled {
			t.Fatalf("%s: %s, %d moves are left: %+v", c.name, s.Plan.Status, s.Plan.left(), s.Notes.Alarms)
		}
		for q, n := range w.counts() {
			if n != 3 || len(w.a.Replicas[q]) != 3 {
				t.Fatalf("%s: partition %d is on %v, of which %d serve", c.name, q, w.a.Replicas[q], n)
			}
		}
		if s.Intent.Nodes["n0"].Draining {
			t.Errorf("%s: n0 is to host nothing", c.name)
		}
		w.add("n4")
		s.Map = w.evidence().nodes
		pr, err = Propose(s, nil, Request{Kind: Add, Nodes: []millrace.NodeID{"n4"}, By: "me"}, w.now)
		if err != nil || pr.Err() != nil || !pr.Goal.hosts("n4") {
			t.Errorf("%s: n4 is not added: %v, %v", c.name, err, pr.Err())
		}
	}
}

// A plan ends also if a node is lost by whose death the first of its moves cannot end:
// replicas that are ready leave the room to build those that they wait for.
func TestWhatWaitsForOthersLeavesThemRoom(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}}
	pr, err := Propose(s, nil, Request{Kind: Drain, Nodes: []millrace.NodeID{"n0"}, By: "me", Limits: Limits{PerNode: 20}}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	s.Plan, s.Intent = pr.Plan, pr.intent
	w.step(t, s.Plan)
	delete(w.alive, "n1")
	for range 60 {
		w.live()
		w.step(t, s.Plan)
	}
	at := &Coordinator{cfg: Config{}.withDefaults(), pace: pace{limits: Limits{PerNode: 20}}}
	for n := 0; !s.Plan.Status.Ended(); n++ {
		if n > 1000 {
			t.Fatalf("%s, %d moves are left", s.Plan.Status, s.Plan.left())
		}
		w.live()
		e := w.evidence()
		e.givenUp["n1"] = true
		s.Assignment, s.Map = w.a, e.nodes
		if err := at.repair(s, e); err != nil {
			t.Fatal(err)
		}
		s.Plan.advance(&s.Assignment, e, &at.pace)
		w.a = s.Assignment
	}
	if now := Layout(w.a.Replicas); now.hosts("n0") || now.hosts("n1") {
		t.Errorf("%s: n0 hosts something: %t, n1: %t", s.Plan.Status, now.hosts("n0"), now.hosts("n1"))
	}
}

// What a coordinator does is told of the plan that it is of, also of a repair after
// another plan, and of a plan to which more happened than its log keeps.
func TestWhatIsDoneIsTold(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	delete(w.alive, "n0")
	e := w.evidence()
	e.givenUp["n0"] = true
	at := &Coordinator{cfg: Config{}.withDefaults(), pace: pace{limits: Limits{PerNode: 20}}}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: e.nodes}, Plan: &Plan{ID: "p", Status: Done}}
	s.Plan.note(w.now, "begun by me: to see")
	s.Plan.note(w.now, "done")
	did := at.do(s, e)
	if len(did) != 2 || !strings.Contains(did[0], s.Plan.ID+": begun by coordinator") || !strings.Contains(did[1], "its replicas are made elsewhere") {
		t.Errorf("of a repair: %q", did)
	}
	for n := range maxEvents {
		s.Plan.note(w.now, "%d", n)
	}
	if did = at.do(s, e); len(did) != 0 {
		t.Errorf("nothing happened: %q", did)
	}
	delete(w.alive, "n1")
	e = w.evidence()
	e.givenUp["n0"], e.givenUp["n1"] = true, true
	s.Map = e.nodes
	if did = at.do(s, e); len(did) != 1 || !strings.Contains(did[0], "its replicas are made elsewhere") {
		t.Errorf("of a second node: %q", did)
	}
}

// Explain says since when a replica is where it is, as far as the last plan knows.
func TestExplainSaysSinceWhen(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	s := &Steered{State: &steering.State{Assignment: w.a, Map: w.evidence().nodes}}
	why := func(p millrace.Partition, id millrace.NodeID) string {
		t.Helper()
		x, err := s.Explain(nil, p, id, w.now)
		if err != nil || len(x.Replicas) != 1 {
			t.Fatalf("%+v, %v", x, err)
		}
		return x.Replicas[0].Why
	}
	stays, goes := w.a.Replicas[0][0], w.a.Replicas[0][1]
	if got := why(0, stays); got != fmt.Sprintf("assigned by epoch %d", w.a.Epoch) {
		t.Errorf("without a plan: %s", got)
	}
	p := &Plan{ID: "p", Kind: Add, Why: "n3 is to host its share", Status: Running, Wanted: 2, Base: Layout(w.a.Replicas), Created: w.now.UTC()}
	p.Moves = []Move{{From: goes, To: "n3", State: Waiting}}
	w.now = w.now.Add(time.Minute)
	p.begin(&p.Moves[0], &w.a, w.now)
	p.end(&p.Moves[0], &w.a, w.now)
	s.Plan, s.Assignment = p, w.a
	if got, want := why(0, stays), "it was here before 2001-09-09T01:46:40Z, when plan p (add) began"; got != want {
		t.Errorf("what stays: %s, want %s", got, want)
	}
	if got, want := why(0, "n3"), "plan p (add) brought it 2001-09-09T01:47:40Z: n3 is to host its share"; got != want {
		t.Errorf("what came: %s, want %s", got, want)
	}
}

// A node's weight, as it is registered, is its share of what is planned, and
// nothing moves for less than the gain that is wanted.
func TestWeightsAndGains(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	alive := []topology.Node{{ID: "n0", Addr: "a:1"}, {ID: "n1", Addr: "a:1"}, {ID: "n2", Addr: "a:1", Weight: 1.1}}
	ready := map[millrace.NodeID]topology.Set{}
	for _, n := range alive {
		ready[n.ID] = w.a.Hosted(n.ID)
	}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: topology.NewMap(w.a, alive, ready)}}
	for _, c := range []struct {
		gain  float64
		moves int
		says  string
	}{
		{0, 31, ""}, // 1440 by 1, 1 and 1.1 are 465, 464 and 511, and it has 480
		{0.05, 31, ""},
		{0.1, 0, "it would bring the fullest and the emptiest node nearer by 9."},
	} {
		pr, err := Propose(s, nil, Request{Kind: Rebalance, By: "me", Gain: c.gain}, w.now)
		if err != nil {
			t.Fatal(err)
		}
		said := slices.ContainsFunc(pr.Checks, func(k Check) bool { return c.says != "" && strings.Contains(k.What, c.says) })
		if len(pr.Plan.Moves) != c.moves || said != (c.says != "") {
			t.Errorf("for a gain of %v: %d moves, want %d; %+v", c.gain, len(pr.Plan.Moves), c.moves, pr.Checks)
		}
	}
	wrong := map[millrace.NodeID]members.NodeStats{"n0": {DiskBytes: 1 << 30, FreeBytes: 1<<30 + 1}, "n1": {FreeBytes: 1}} // which counts as all of it, and as not known
	if pr, err := Propose(s, wrong, Request{Kind: Rebalance, By: "me"}, w.now); err != nil || len(pr.Plan.Moves) != 31 {
		t.Errorf("with more free than there is: %v", err)
	}
	first, err := First(s, wrong, []millrace.NodeID{"n0", "n1", "n2"}, 2)
	if n := first.Hosted("n2"); err != nil || n.Len() != 511 {
		t.Errorf("the first assignment gives n2 %d, %v", n.Len(), err)
	}
}

// A node that is away for less than the grace counts as it last registered: nothing
// moves since its zone or weight were forgotten.
func TestWhoIsAwayKeepsItsZoneAndWeight(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 4, 2)
	zones := map[millrace.NodeID]string{"n0": "x", "n1": "x", "n2": "y", "n3": "y"}
	found := &keyspace.Snapshot{Cluster: 1, Revision: 1, Count: "720", Values: map[string]keyspace.Value{}}
	for id, zone := range zones {
		body := keyspace.Value{Data: fmt.Appendf(nil, `{"id":%q,"addr":"a:1","zone":%q,"weight":2}`, id, zone)}
		if found.Values["known/"+string(id)] = body; id != "n3" {
			found.Values["nodes/"+string(id)] = body
		}
	}
	for p := range w.a.Replicas { // in both zones
		w.a.Replicas[p] = []millrace.NodeID{[]millrace.NodeID{"n0", "n1"}[p%2], []millrace.NodeID{"n2", "n3"}[p/2%2]}
	}
	m, _ := topology.NewMap(w.a, nil, nil).Next(found) // etcd has no assignment here
	s := &Steered{State: &steering.State{Assignment: w.a, Map: m}}
	e := &evidence{now: w.now, nodes: m}
	for _, n := range s.problem(e, 2, Layout(w.a.Replicas), assignedOrAdded).Nodes {
		if n.Zone != zones[n.ID] || n.Weight != 2 || n.Gone {
			t.Errorf("%+v", n)
		}
	}
	made, err := s.solve(e, 2, Layout(w.a.Replicas), assignedOrAdded, noGain)
	if err != nil || len(made.Moves) > 0 {
		t.Errorf("%d moves, and nothing is lost: %v", len(made.Moves), err)
	}
}

// Explain knows nodes that back up and nodes that are gone, by the rules of the
// planner.
func TestExplainKnowsNodesThatServeNobody(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	alive := []topology.Node{{ID: "n0", Addr: "a:1"}, {ID: "n1", Addr: "a:1"}, {ID: "keeper", Addr: "a:1", Keeps: "0-719"}}
	s := &Steered{State: &steering.State{Assignment: w.a, Map: topology.NewMap(w.a, alive, nil)}}
	p := millrace.Partition(0)
	for slices.Contains(w.a.Replicas[p], "n2") {
		p++
	}
	for node, want := range map[millrace.NodeID]string{"keeper": "backup_only: keeper reads and backs up", "n2": "away: n2 is not there, and gets nothing until it is back"} {
		x, err := s.Explain(nil, p, node, w.now)
		if err != nil || len(x.Elsewhere) != 1 || !strings.Contains(x.Elsewhere[0].Rule+": "+x.Elsewhere[0].Detail, want) {
			t.Errorf("%s: %+v, %v; want %q", node, x.Elsewhere, err, want)
		}
	}
	if made, err := s.solve(&evidence{now: w.now, nodes: s.Map}, 2, Layout(w.a.Replicas), everybody, 0); err != nil || (*Layout)(&made.Goal).hosts("keeper") {
		t.Errorf("a node that backs up is given replicas: %v", err)
	}
}

// A plan of an etcd that went back may be of another assignment than the one that was
// restored: it ends all the same, with as many replicas as are wanted, and says what it
// leaves. So it does if it is cancelled.
func TestAPlanOfAnotherAssignmentEnds(t *testing.T) {
	for _, order := range []Order{"", Cancel, Rollback} {
		w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
		for p := range w.a.Replicas {
			w.a.Replicas[p] = []millrace.NodeID{"n0", "n1"}
		}
		w.live()
		base := Layout(w.a.Replicas)
		p := &Plan{ID: "p", Status: Running, Wanted: 2, BaseWanted: 2, Base: base.clone(), Limits: Limits{PerNode: partition.Count}, Moves: []Move{
			{Partition: 3, From: "n0", To: "n1", State: Building},            // n1 was elsewhere when it was begun
			{Partition: 4, From: "n0", State: Building},                      // another one was to be there
			{Partition: 5, From: "n0", To: "n2", State: Building},            // n2 is not assigned it
			{Partition: 6, From: "n2", To: "n1", State: Waiting},             // it is done
			{Partition: 7, From: "n0", To: "n1", State: Building},            // with the one below it goes on
			{Partition: 7, To: "n2", State: Waiting, Since: time.Unix(1, 0)}, // n2 comes
		}}
		if order != "" {
			s := &Steered{State: &steering.State{Map: w.evidence().nodes, Assignment: w.a}, Plan: p, Intent: Intent{Nodes: map[millrace.NodeID]Mark{}}}
			if err := s.order(order, w.evidence(), "test"); err != nil {
				t.Fatal(err)
			}
		}
		for n := 0; !p.Status.Ended(); n++ {
			if n > 200 {
				t.Fatalf("%s: %s, %d moves are left: %v", order, p.Status, p.left(), p.Moves)
			}
			w.live()
			w.step(t, p)
		}
		for q, owners := range w.a.Replicas {
			if len(owners) != 2 {
				t.Errorf("%s: partition %d is on %v", order, q, owners)
			}
		}
		told := slices.ContainsFunc(p.Log, func(e Event) bool { return strings.HasPrefix(e.What, "2 moves are not needed: ") })
		switch {
		case order == "" && (!told || !slices.Equal(w.a.Replicas[5], []millrace.NodeID{"n1", "n2"}) || !slices.Equal(w.a.Replicas[7], []millrace.NodeID{"n1", "n2"})):
			t.Errorf("5 is on %v, and 7 on %v: %v", w.a.Replicas[5], w.a.Replicas[7], p.Log)
		case order == Rollback && (*Layout)(&w.a.Replicas).differs(&base):
			t.Error("it is rolled back to something else")
		}
	}
}
