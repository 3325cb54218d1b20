package coordinator

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
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

// A replica that is in quarantine holds up none of its node's other moves, and is told.
func TestQuarantinedReplicasHoldUpNoMoves(t *testing.T) {
	w := newWorld(rand.New(rand.NewPCG(1, 1)), 3, 2)
	w.add("n3")
	s := &Steered{State: &steering.State{Assignment: w.a}, Plan: w.to([]millrace.NodeID{"n0", "n1", "n2", "n3"}, 2)}
	p := s.Plan
	p.Limits.PerNode = 10
	building := func() (out topology.Set) {
		for _, m := range p.Moves {
			if m.State == Building && m.To == "n3" {
				out.Add(m.Partition)
			}
		}
		return out
	}
	p.advance(&s.Assignment, w.evidence(), &pace{})
	first := building()
	e := w.evidence()
	w.a = s.Assignment
	values := map[string]keyspace.Value{"state/n3": {Data: topology.EncodeReports([]topology.Report{{State: "quarantined", Reason: "log_shorter", Partitions: first}})}}
	for _, n := range w.evidence().nodes.Nodes() {
		body, err := json.Marshal(topology.Registration{Node: n})
		if err != nil {
			t.Fatal(err)
		}
		ready := w.ready[n.ID]
		values["nodes/"+string(n.ID)], values["ready/"+string(n.ID)] = keyspace.Value{Data: body}, keyspace.Value{Data: ready.Encode()}
	}
	s.Map, _ = w.evidence().nodes.Next(&keyspace.Snapshot{Values: values})
	e.nodes = s.Map
	p.advance(&s.Assignment, e, &pace{})
	if now := building(); first.Len() != 10 || now.Len() != 20 {
		t.Errorf("%d moves are under way beside %d that are quarantined, not 10", now.Len()-first.Len(), first.Len())
	}
	if pr := s.Progress(w.now); pr.Quarantined["n3"] != 10 {
		t.Errorf("%v are told to be quarantined, not 10 on n3", pr.Quarantined)
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
