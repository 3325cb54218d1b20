//go:build linux

package campaign

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/partition"
)

// moment is when, in the life of a plan, something breaks.
type moment struct {
	name string
	come func(planned) bool
}

// The moments of a plan. What is done of it is asked of the coordinator, so a
// moment is met a little late, never early.
var (
	begun    = moment{"begun", planned.under}
	building = moment{"building", func(p planned) bool { return p.under() && p.Progress.Moves["building"] > 0 }}
	quarter  = moment{"a quarter moved", func(p planned) bool { return p.under() && 4*p.Progress.Moves["done"] >= len(p.Plan.Moves) }}
	half     = moment{"half moved", func(p planned) bool { return p.under() && 2*p.Progress.Moves["done"] >= len(p.Plan.Moves) }}
	last     = moment{"the last moves", func(p planned) bool { return p.under() && 20*p.Progress.Moves["waiting"] <= len(p.Plan.Moves) }}
	done     = moment{"done", func(p planned) bool { return p.Plan.Status == "done" }}
)

// under reports whether the plan is under way.
func (p planned) under() bool {
	return slices.Contains([]string{"running", "paused", "cancelling", "rolling_back"}, p.Plan.Status)
}

// What breaks. The leader is whoever leads when the moment has come.
const (
	leader     = "the leader"
	follower   = "the follower"
	bothLeads  = "both coordinators"
	mover      = "node-4" // which an add gives to, and a drain takes from
	neighbour  = "node-1" // which an add takes from, and a drain gives to
	etcdItself = "etcd"
)

// way is how something breaks.
type way string

const (
	wayFrozen way = "frozen" // past its lease, etcd for a minute, and woken
	wayKilled way = "killed" // and started again after a second
)

// lasts is how long what breaks stays so. Leases of leaders and of nodes are ten
// seconds.
func (h way) lasts(who string) time.Duration {
	switch {
	case h == wayKilled:
		return time.Second
	case who == etcdItself:
		return time.Minute
	}
	return 14 * time.Second
}

// planStep is a named place to break a plan at.
type planStep struct {
	verb  string // add or drain node-4
	at    moment
	order string // what a person says at that moment, before it breaks
	who   string
	then  string // what a person says while it is broken
}

// breakage is a step, broken in one way.
type breakage struct {
	planStep
	how way
}

func (b breakage) String() string {
	return strings.Join(slices.DeleteFunc([]string{b.verb, b.at.name, b.order, b.who + " " + string(b.how), b.then}, func(part string) bool { return part == "" }), ", ")
}

// stepsToBreak are all named steps. Those of the short list come first.
var stepsToBreak = []planStep{
	{"add", half, "", leader, ""},
	{"drain", building, "", mover, ""},
	{"add", half, "rollback", leader, ""},
	{"add", building, "", leader, ""},
	{"drain", begun, "", leader, ""},
	{"add", begun, "", mover, ""},
	{"drain", half, "", etcdItself, ""},
	{"add", quarter, "", etcdItself, ""},
	{"drain", quarter, "", leader, ""},
	{"add", half, "", mover, ""},
	{"drain", half, "", mover, ""},
	{"add", half, "", neighbour, ""},
	{"drain", half, "", neighbour, ""},
	{"add", last, "", mover, ""},
	{"drain", last, "", leader, ""},
	{"add", quarter, "", follower, ""},
	{"drain", half, "", bothLeads, ""},
	{"add", half, "pause", leader, ""},
	{"drain", half, "", leader, "cancel"}, // before it breaks, a cancel is over at once
	{"drain", quarter, "rollback", mover, ""},
	{"drain", half, "rollback", etcdItself, ""},
	{"drain", done, "", leader, ""}, // what moved away is being deleted
	{"add", done, "rollback", neighbour, ""},
	{"add", half, "pause", etcdItself, ""},
}

// breakages are the steps that settings ask for, each broken in both ways. The
// short list has one way of each.
func breakages(s settings) (all []breakage) {
	ways := []way{wayFrozen, wayKilled}
	if s.short && s.steps == nil {
		for n, st := range stepsToBreak[:3] {
			all = append(all, breakage{st, ways[n%2]})
		}
		return all
	}
	for _, st := range stepsToBreak {
		for _, how := range ways {
			if b := (breakage{st, how}); s.steps == nil || s.steps.MatchString(b.String()) {
				all = append(all, b)
			}
		}
	}
	return all
}

// Moves begin at so many a second, so that a moment is seen before the plan is
// over: half as many at each further try.
const (
	stepRate  = 40
	stepTries = 3
)

// TestResizesUnderFaults kills and freezes coordinators and moving nodes, and
// takes etcd away, at named steps of plans: each plan ends, no partition has
// fewer ready replicas meanwhile than before, and no answer fails, is partial or
// wrong.
func TestResizesUnderFaults(t *testing.T) {
	s := need(t)
	breaks := breakages(s)
	if len(breaks) == 0 {
		t.Fatalf("MILLRACE_STEPS: no step is like %q", s.steps)
	}
	w := startResizing(t, s, "moving")
	w.load.burst(w.ctx, 10*members)
	w.settle()
	o := &observer{told: w.told}
	seen := make(chan struct{})
	go func() { defer close(seen); o.follow(w.ctx, w.watch) }()
	stop := w.underLoad()
	defer stop()
	w.add(mover)
	w.asker.drain()
	w.asker.take()
	for n, b := range breaks {
		w.history.chapter(b.String())
		var hit []string
		for try := 0; hit == nil && try < stepTries; try++ {
			hit = w.breakAt(b, o, stepRate>>try)
		}
		if hit == nil {
			t.Errorf("%s: the plan was over before it broke, %d times", b, stepTries)
		}
		t.Logf("step %d of %d, %s (%s): the plan is %s", n+1, len(breaks), b, strings.Join(hit, ", "), w.plan().Plan.Status)
	}
	w.prepare("add")
	w.stop(mover)
	stop()
	w.asker.drain()
	sum := w.asker.take()
	t.Log(sum)
	figure.Print("moving_faults", float64(len(breaks)), "faults")
	figure.Print("moving_faults_answers", float64(sum.whole+sum.flagged+sum.partial), "answers")
	figure.Print("moving_faults_failed", float64(sum.refused), "questions")
	figure.Print("moving_faults_partial", float64(sum.partial), "answers")
	w.allAnswered(s, sum)
	w.ends3()
	w.verdict()
}

// breakAt begins the plan of a step, breaks it at its moment, and waits until
// it has ended. It returns who was hit: nobody, if the plan was over before.
func (w *resizing) breakAt(b breakage, o *observer, perSecond int) (hit []string) {
	w.t.Helper()
	w.prepare(b.verb)
	w.whole2()
	o.begin(w.current())
	w.do("node", b.verb, mover, "--apply", "--moves-per-second", fmt.Sprint(perSecond))
	if w.comes(b.at) {
		if b.order != "" {
			w.steer(b.order)
		}
		if p := w.plan(); b.order == "" && b.at.come(p) || b.order != "" && p.under() {
			hit = w.hit(b, o, p.Leader.Name)
		}
		if b.order == "pause" {
			w.steer("resume")
		}
	}
	w.planEnds()
	w.whole2()
	o.begin(nil)
	return hit
}

// whole2 waits until every partition has two ready replicas.
func (w *resizing) whole2() {
	w.t.Helper()
	if err := w.wholeBy(2); err != nil {
		w.told("unhealed", err.Error())
		w.t.Fatal(err)
	}
}

// observer holds what etcd says of the replicas, at every change that a watcher
// sees, against what it said before a plan.
//
// A replica on a node that the test itself killed or froze counts although it is
// not ready, as long as it is assigned: nobody can have it ready. While etcd is
// away, and until the nodes have registered again, that is so of all. But a
// coordinator that takes an assigned replica away for one that is not ready is
// found in any case.
type observer struct {
	told func(kind, detail string)
	mu   struct {
		sync.Mutex
		before *topology.Map // nil: there is no plan
		broken map[millrace.NodeID]bool
	}
}

func (o *observer) follow(ctx context.Context, watch *cluster.Watcher) {
	for {
		changed := watch.Changed()
		o.look(watch.Current())
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// begin has what follows held against what is now, or, of nil, against nothing.
func (o *observer) begin(now *topology.Map) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.mu.before, o.mu.broken = now, map[millrace.NodeID]bool{}
}

// breaks notes whom the test breaks now.
func (o *observer) breaks(ids ...millrace.NodeID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, id := range ids {
		o.mu.broken[id] = true
	}
}

func (o *observer) look(now *topology.Map) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.before == nil {
		return
	}
	for p := range partition.All() {
		had, has := readyOf(o.mu.before, p, nil), readyOf(now, p, o.mu.broken)
		if has >= had {
			continue
		}
		o.told("fewer", fmt.Sprintf("partition %d has %d ready replicas of %q in epoch %d, those on %q counted, and had %d", p, has, now.Replicas(p), now.Epoch(), slices.Sorted(maps.Keys(o.mu.broken)), had))
		return // one that lasts is seen again
	}
}

// readyOf counts the assigned replicas that are ready, or that are on one of
// some nodes.
func readyOf(m *topology.Map, p millrace.Partition, or map[millrace.NodeID]bool) (n int) {
	for _, id := range m.Replicas(p) {
		if ready := m.Ready(id); or[id] || m.Alive(id) && ready.Has(p) {
			n++
		}
	}
	return n
}

// prepare brings node-4 to where a verb has something to move.
func (w *resizing) prepare(verb string) {
	w.t.Helper()
	w.registered(mover)
	now := w.current().Assignment()
	hosts := slices.Contains(now.Nodes(), mover)
	switch {
	case verb == "add" && hosts:
		w.do("node", "drain", mover, "--apply", "--wait")
	case verb == "drain" && !hosts:
		w.do("node", "add", mover, "--apply", "--wait")
	}
}

// comes waits until a moment of the plan has come, and reports whether it has
// before the plan ended.
func (w *resizing) comes(m moment) (came bool) {
	w.t.Helper()
	if err := eventually(w.ctx, planPatience, func(context.Context) error {
		p := w.plan()
		if came = m.come(p); !came && p.under() {
			return fmt.Errorf("%s has not come: %v", m.name, p.Progress.Moves)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return came
}

// steer gives the plan an order. One that has ended meanwhile takes none but a
// rollback.
func (w *resizing) steer(order string) {
	w.t.Helper()
	args := []string{"cluster", order, "--etcd", local(w.etcdAt)}
	if order == "cancel" || order == "rollback" {
		args = append(args, "--apply", "--yes")
	}
	if err := eventually(w.ctx, patience, func(context.Context) error {
		out, err := w.command(args...)
		if err != nil && !strings.Contains(err.Error()+out, "there is nothing to") {
			return fmt.Errorf("%s: %w: %s", order, err, out)
		}
		return nil
	}); err != nil {
		w.told("unhealed", err.Error())
		w.t.Fatal(err)
	}
}

// hit breaks what a step says, mends it, and returns who was hit.
func (w *resizing) hit(b breakage, o *observer, leads string) (names []string) {
	w.t.Helper()
	broken := time.Now()
	for _, p := range w.victims(b.who, leads) {
		switch {
		case p == w.etcd:
			for _, n := range w.nodes {
				o.breaks(millrace.NodeID(n.name))
			}
		case slices.Contains(w.nodes, p):
			o.breaks(millrace.NodeID(p.name))
		}
		names = append(names, p.name)
		if b.how == wayFrozen {
			p.signal(syscall.SIGSTOP)
			defer p.signal(syscall.SIGCONT)
			continue
		}
		p.kill(syscall.SIGKILL)
		defer func() {
			if err := p.start(); err != nil {
				w.t.Error(err)
			}
		}()
	}
	if b.then != "" {
		w.steer(b.then)
	}
	w.pause(b.how.lasts(b.who) - time.Since(broken))
	return names
}

// victims are the processes that break: of a leader nobody, if none leads.
func (w *resizing) victims(who, leads string) []*process {
	switch who {
	case etcdItself:
		return []*process{w.etcd}
	case bothLeads:
		return w.coordinators
	case leader, follower:
		return slices.DeleteFunc(slices.Clone(w.coordinators), func(p *process) bool { return leads == "" || (p.name == leads) != (who == leader) })
	}
	return []*process{w.nodeNamed(who)}
}

// planEnds waits until the last plan has ended, as etcd says.
func (w *resizing) planEnds() {
	w.t.Helper()
	if err := eventually(w.ctx, planPatience, func(context.Context) error {
		var p planned
		out, err := w.command("cluster", "status", "-o", "json", "--etcd", local(w.etcdAt))
		if err == nil {
			err = json.Unmarshal([]byte(out), &p)
		}
		if p.under() {
			err = fmt.Errorf("the plan is %s: %v", p.Plan.Status, p.Progress.Moves)
		}
		return err
	}); err != nil {
		w.told("unhealed", err.Error())
		w.t.Fatal(err)
	}
}
