//go:build linux

package campaign

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
	"github.com/millrace/millrace/internal/figure"
	"github.com/millrace/millrace/internal/partition"
)

const (
	coordinators = 2
	graceOf      = 10 * time.Second // of a node that is gone
	dropAfter    = 5 * time.Second
	resizeRate   = 60               // questions a second, about a third of what the whole of it answers on two cores
	restFor      = 20 * time.Second // at most, between two changes
	// resizeAnswers are how many answers the tours have at least.
	resizeAnswers = 200_000
	// repairRate is about half of the questions a second that the whole of this
	// answers on two cores with two million records in it: one reads ten times as
	// many as where nodes come and go.
	repairRate = 50
	// repairWithin is how soon after the grace all that a node hosted is ready
	// elsewhere.
	repairWithin = 30 * time.Second
)

// resizing is a world with coordinators, whose nodes come and go.
type resizing struct {
	*world
	coordinators  []*process
	look          *cluster.Client
	watch         *cluster.Watcher
	restarts      string          // URL that restarts a node
	rests         bool            // see settings
	moving, still []time.Duration // how long questions took, where it rests
}

// startResizing starts a world with coordinators.
func startResizing(t *testing.T, s settings, name string) *resizing {
	t.Helper()
	s.backups = 3 * time.Minute
	brisk := "" // as in production, where it is told how long questions take
	if !s.rests {
		brisk = "moves_per_second: 1000\n"
	}
	w := &resizing{world: startWorld(t, s, name, true), rests: s.rests}
	for i := range coordinators {
		id := fmt.Sprintf("coordinator-%d", i+1)
		w.coordinators = append(w.coordinators, w.role("coordinator", id, "name: %s\netcd: [%q]\ngrace: %s\ndrop_after: %s\n%s", id, local(w.etcdAt), graceOf, dropAfter, brisk))
	}
	var err error
	if w.look, err = cluster.Open(w.ctx, cluster.Config{Endpoints: []string{local(w.etcdAt)}, Name: "millrace", ReadOnly: true}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.look.Close() })
	if w.watch, err = w.look.Watch(w.ctx); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serve := &http.Server{Handler: http.HandlerFunc(func(out http.ResponseWriter, in *http.Request) {
		p := w.process(in.URL.Query().Get("node"))
		p.kill(syscall.SIGTERM)
		if err := p.start(); err != nil {
			http.Error(out, err.Error(), http.StatusInternalServerError)
		}
	})}
	go serve.Serve(l)
	t.Cleanup(func() { serve.Close() })
	w.restarts = "http://" + l.Addr().String() + "/?node="
	w.asker.rate = resizeRate
	return w
}

// do runs a command that changes the cluster, to the end of what it begins.
func (w *resizing) do(args ...string) {
	w.t.Helper()
	still := w.asker.latencies()
	w.still = append(w.still, still...)
	began := time.Now()
	out, err := w.command(append(args, "--etcd", local(w.etcdAt), "--yes")...)
	if err != nil {
		w.told("unhealed", err.Error())
		w.t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	took := time.Since(began)
	w.t.Logf("%s: %.1fs: %s", strings.Join(args, " "), took.Seconds(), lines[len(lines)-1])
	if w.rests {
		w.pause(2 * dropAfter) // what is dropped is part of it
		moving := w.asker.latencies()
		w.t.Logf("%s: %d questions meanwhile, p50 %v, p99 %v; %v at rest before", strings.Join(args, " "), len(moving), quantile(moving, 0.5), quantile(moving, 0.99), quantile(still, 0.99))
		w.moving = append(w.moving, moving...)
		w.pause(min(took, restFor))
	}
}

func (w *resizing) pause(d time.Duration) {
	select {
	case <-w.ctx.Done():
	case <-time.After(d):
	}
}

// planned is what cluster status says of the last plan.
type planned struct {
	Leader struct {
		Name string `json:"name"`
	} `json:"leader"`
	Plan struct {
		Status string `json:"status"`
		Moves  []any  `json:"moves"`
	} `json:"plan"`
	Progress struct {
		Moves map[string]int `json:"moves"` // by state
		Nodes []struct {
			Now int `json:"now"`
		} `json:"nodes"`
	} `json:"progress"`
}

func (w *resizing) plan() (p planned) {
	w.t.Helper()
	out, err := w.command("cluster", "status", "-o", "json", "--etcd", local(w.etcdAt))
	if err := errors.Join(err, json.Unmarshal([]byte(out), &p)); err != nil {
		w.t.Fatal(err)
	}
	return p
}

// moves returns how many moves the last plan made, and fails if it was not
// done, or left nodes uneven.
func (w *resizing) moves(hosting int) (n int) {
	w.t.Helper()
	s := w.plan()
	if s.Plan.Status != "done" {
		w.t.Errorf("the plan is %s", s.Plan.Status)
	}
	least, most, nodes := partition.Count, 0, 0
	for _, n := range s.Progress.Nodes {
		if n.Now > 0 {
			least, most, nodes = min(least, n.Now), max(most, n.Now), nodes+1
		}
	}
	if most-least > 1 || nodes != hosting {
		w.t.Errorf("%d nodes host from %d to %d partitions, not %d nodes", nodes, least, most, hosting)
	}
	return len(s.Plan.Moves)
}

// add starts a node and waits until it is registered.
func (w *resizing) add(id millrace.NodeID) {
	w.t.Helper()
	if p := w.nodeNamed(string(id)); p != nil {
		if err := p.start(); err != nil {
			w.t.Fatal(err)
		}
	} else {
		w.startNode(id)
	}
	w.registered(id)
}

// registered waits until a node is registered, which one that was frozen or
// killed is not at once.
func (w *resizing) registered(id millrace.NodeID) {
	w.t.Helper()
	if err := eventually(w.ctx, patience, func(context.Context) error {
		if !w.watch.Current().Alive(id) {
			return fmt.Errorf("%s is not registered", id)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

// current is what etcd says, once the watcher has heard it: a plan may be over before.
func (w *resizing) current() (now *topology.Map) {
	w.t.Helper()
	if err := eventually(w.ctx, patience, func(ctx context.Context) error {
		s, err := steering.Read(ctx, w.look)
		if err != nil {
			return err
		}
		if now = w.watch.Current(); now.Epoch() < s.Assignment.Epoch {
			return fmt.Errorf("the watcher has heard of epoch %d, and not of %d", now.Epoch(), s.Assignment.Epoch)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return now
}

func (w *resizing) nodeNamed(name string) *process {
	for _, p := range w.nodes {
		if p.name == name {
			return p
		}
	}
	return nil
}

// stop ends a node that is drained, and waits until that is known: what is heard of it then is of
// the process that is started next.
func (w *resizing) stop(id millrace.NodeID) {
	w.t.Helper()
	w.nodeNamed(string(id)).kill(syscall.SIGTERM)
	if err := eventually(w.ctx, patience, func(context.Context) error {
		if w.watch.Current().Alive(id) {
			return fmt.Errorf("%s is still registered", id)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
}

// counts fails if the last plan made other than so many moves.
func (w *resizing) counts(what string, hosting, bound int) {
	w.t.Helper()
	if n := w.moves(hosting); n != bound {
		w.t.Errorf("%s: %d moves, not %d", what, n, bound)
	}
}

// shortTour takes the cluster from three nodes to four and back, and restarts
// the first; TestRepair has replicas made elsewhere.
func (w *resizing) shortTour() {
	w.add("node-4")
	w.do("node", "add", "node-4", "--apply", "--wait")
	w.counts("from 3 to 4", 4, 360)
	w.do("node", "drain", "node-4", "--apply", "--wait")
	w.counts("from 4 to 3", 3, 360)
	w.stop("node-4")
	w.restart("node-1")
}

// restart has a node restarted by another than it.
func (w *resizing) restart(id string) {
	w.do("node", "restart", id, "--apply", "--exec", "curl -sS --fail-with-body '"+w.restarts+"'$NODE")
}

// tour takes the cluster from three nodes to five and back, restarts, replaces
// and drains each of the first nodes in turn, and ends as it began.
func (w *resizing) tour() {
	w.add("node-4")
	w.do("node", "add", "node-4", "--apply", "--wait")
	w.counts("from 3 to 4", 4, 360)
	w.add("node-5")
	w.do("node", "add", "node-5", "--apply", "--wait")
	w.counts("from 4 to 5", 5, 288)
	w.do("node", "drain", "node-4", "node-5", "--apply", "--wait")
	w.counts("from 5 to 3", 3, 576)
	w.stop("node-4")
	w.stop("node-5")
	for i := range nodes {
		id := fmt.Sprintf("node-%d", i+1)
		w.restart(id)
		w.add("node-4")
		w.do("node", "replace", id, "node-4", "--apply", "--wait")
		w.counts("replaced", 3, 480)
		w.do("node", "add", id, "--apply", "--wait")
		w.counts("added again", 4, 360)
		w.do("node", "drain", id, "--apply", "--wait")
		w.counts("drained", 3, 360)
		w.do("node", "replace", "node-4", id, "--apply", "--wait")
		w.counts("replaced again", 3, 480)
		w.stop("node-4")
	}
}

// TestResize resizes, drains, replaces and restarts nodes under load: no
// question fails, no answer is partial or wrong.
func TestResize(t *testing.T) {
	s := need(t)
	s.rests = !s.short
	w := startResizing(t, s, "resize")
	w.load.burst(w.ctx, 10*members)
	w.settle()
	stop := w.underLoad()
	defer stop()
	if err := eventually(w.ctx, patience, func(context.Context) error {
		if n := w.asker.judged(); n < 1000 {
			return fmt.Errorf("only %d answers to compare with", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.asker.drain()
	w.asker.take()
	w.history.chapter("tours")
	if s.short {
		w.shortTour()
	} else {
		for n := 0; n < 3 || w.asker.judged() < resizeAnswers; n++ {
			w.tour()
		}
	}
	stop()
	w.asker.drain()
	sum := w.asker.take()
	t.Log(sum)
	figure.Print("resize_answers", float64(sum.whole+sum.flagged+sum.partial), "answers")
	figure.Print("resize_failed", float64(sum.refused), "questions")
	figure.Print("resize_partial", float64(sum.partial), "answers")
	if s.rests {
		moving, still := quantile(w.moving, 0.99), quantile(w.still, 0.99)
		figure.Print("resize_p99_moving", moving.Seconds()*1e3, "ms")
		figure.Print("resize_p99_vs_still", moving.Seconds()/still.Seconds(), "ratio")
	}
	w.allAnswered(s, sum)
	w.ends3()
	w.verdict()
}

// allAnswered fails if a question failed or an answer is partial. The short
// list runs on machines that others share: there one answer in a hundred may
// lack what a node had no time for.
func (w *resizing) allAnswered(s settings, sum tally) {
	w.t.Helper()
	late := 0
	if s.short {
		late = (sum.whole + sum.flagged + sum.partial) / 100
	}
	if sum.refused > 0 || sum.partial > sum.late || sum.late > late {
		w.t.Errorf("%d questions failed, %d answers are partial, of which %d lack what nobody answered in time, and %d may", sum.refused, sum.partial, sum.late, late)
	}
}

// ends3 holds the three nodes that are left against each other.
func (w *resizing) ends3() {
	w.nodes, w.clients = w.nodes[:nodes], w.clients[:nodes]
	w.settleOwners()
	if w.finish() {
		figure.Print("resize_digests_compared", float64(w.digests()), "partitions")
	}
}

// settleOwners takes over who hosts what now.
func (w *resizing) settleOwners() {
	now := w.current()
	for p := range partition.All() {
		w.owners[p] = slices.Clone(now.Replicas(p))
	}
}

// TestRepair loses a node and its disk for good: its replicas are made
// elsewhere, and equal the others. One that is back in time moves nothing.
func TestRepair(t *testing.T) {
	s := need(t)
	w := startResizing(t, s, "repair")
	w.add("node-4")
	w.do("node", "add", "node-4", "--apply", "--wait")
	inputs := 2_000_000
	w.asker.rate = repairRate
	if s.short {
		inputs, w.asker.rate = 40*members, resizeRate
	}
	w.load.burst(w.ctx, inputs)
	w.settleOwners()
	w.settle()
	stop := w.underLoad()
	defer stop()
	w.asker.take()
	hosted := w.current().Assignment()
	w.history.chapter("a node is back in time")
	w.nodeNamed("node-2").kill(syscall.SIGKILL)
	if err := eventually(w.ctx, patience, func(context.Context) error {
		if w.watch.Current().Alive("node-2") {
			return errors.New("node-2 is still registered")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	w.add("node-2")
	if err := w.wholeBy(2); err != nil {
		t.Fatal(err)
	}
	if now := w.current().Assignment(); !slices.EqualFunc(now.Replicas[:], hosted.Replicas[:], slices.Equal[[]millrace.NodeID]) {
		t.Error("a node that is back in time moved something")
	}
	w.settle() // brokers have heard of it, too
	w.history.chapter("a node is gone for good")
	node := w.nodeNamed("node-4")
	node.kill(syscall.SIGKILL)
	if err := w.emptyDisk(node); err != nil {
		t.Fatal(err)
	}
	killed := time.Now()
	if err := eventually(w.ctx, patience, func(context.Context) error {
		a := w.watch.Current().Assignment()
		if n := len(a.Nodes()); n != 3 {
			return fmt.Errorf("%d nodes host something", n)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := w.wholeBy(2); err != nil {
		t.Fatal(err)
	}
	// The lease ends ten seconds after the last sign of life.
	after := time.Since(killed) - graceOf - 10*time.Second
	figure.Print("repair_after_grace", after.Seconds(), "s")
	if !s.short && after > repairWithin { // the short list runs on machines that others share
		t.Errorf("two replicas of everything are ready %v after the grace, not within %v", after, repairWithin)
	}
	stop()
	w.asker.drain()
	sum := w.asker.take()
	t.Log(sum)
	figure.Print("repair_failed", float64(sum.refused), "questions")
	w.allAnswered(s, sum)
	w.ends3()
	w.verdict()
}

// wholeBy waits until every partition has so many ready replicas.
func (w *resizing) wholeBy(replicas int) error {
	return eventually(w.ctx, patience, func(context.Context) error {
		m := w.watch.Current()
		for p := range partition.All() {
			n := 0
			for _, id := range m.Replicas(p) {
				if ready := m.Ready(id); m.Alive(id) && ready.Has(p) {
					n++
				}
			}
			if n < replicas {
				return fmt.Errorf("partition %d has %d ready replicas", p, n)
			}
		}
		return nil
	})
}

// TestRollbacks takes a node in under load and goes back, at every step of the
// way and after its end: each time all is hosted as before, nothing is failed,
// partial or wrong, and the last time all that the log has is there.
func TestRollbacks(t *testing.T) {
	s := need(t)
	w := startResizing(t, s, "rollback")
	w.load.burst(w.ctx, 20*members)
	w.settle()
	w.add("node-4")
	before := w.current().Assignment()
	stop := w.underLoad()
	defer stop()
	steps := 15
	if s.short {
		steps = 3
	}
	for n := range steps {
		w.do("node", "add", "node-4", "--apply")
		moved := w.movesReach(360 * n / (steps - 1))
		if out, err := w.command("cluster", "rollback", "--apply", "--yes", "--etcd", local(w.etcdAt)); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := eventually(w.ctx, patience, func(context.Context) error {
			if status := w.plan().Plan.Status; status != "rolled_back" {
				return fmt.Errorf("the plan is %s", status)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		after := w.current().Assignment()
		same := 0
		for p := range partition.All() {
			if sameNodes(after.Replicas[p], before.Replicas[p]) {
				same++
			}
		}
		t.Logf("rolled back after %d of 360 moves", moved)
		if same != partition.Count {
			t.Errorf("rolled back after %d moves: only %d partitions are hosted as before", moved, same)
		}
		if err := w.wholeBy(2); err != nil {
			t.Fatal(err)
		}
	}
	w.stop("node-4")
	stop()
	w.asker.drain()
	sum := w.asker.take()
	t.Log(sum)
	figure.Print("rollback_answers", float64(sum.whole+sum.flagged+sum.partial), "answers")
	figure.Print("rollback_failed", float64(sum.refused+sum.partial), "answers")
	w.allAnswered(s, sum)
	w.ends3()
	w.verdict()
}

// movesReach waits until a plan has made so many moves, and returns how many.
func (w *resizing) movesReach(want int) (moved int) {
	w.t.Helper()
	if err := eventually(w.ctx, patience, func(context.Context) error {
		if moved = w.plan().Progress.Moves["done"]; moved < want {
			return fmt.Errorf("%d moves are made, not %d", moved, want)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return moved
}

func sameNodes(a, b []millrace.NodeID) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}
