//go:build linux

package campaign

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/figure"
)

// moment is when, in the life of a plan, something breaks.
type moment struct {
	name string
	come func(planned) bool
}

// The moments of a plan. What is done of it is asked of the coordinator, so a
// moment is met a little late, never early.
var (
	begun    = moment{"begun", func(p planned) bool { return p.Plan.Status == "running" }}
	building = moment{"building", func(p planned) bool { return p.Progress.Moves["building"] > 0 }}
	quarter  = moment{"a quarter moved", func(p planned) bool { return 4*p.Progress.Moves["done"] >= len(p.Plan.Moves) }}
	half     = moment{"half moved", func(p planned) bool { return 2*p.Progress.Moves["done"] >= len(p.Plan.Moves) }}
	last     = moment{"the last moves", func(p planned) bool { return p.Progress.Moves["waiting"] == 0 }}
	done     = moment{"done", func(p planned) bool { return p.Plan.Status == "done" }}
)

// What breaks. The leader is whoever leads when the moment has come.
const (
	leader     = "the leader"
	follower   = "the follower"
	bothLeads  = "both coordinators"
	mover      = "node-4" // which an add gives to, and a drain takes from
	neighbour  = "node-1" // which an add takes from, and a drain gives to
	etcdItself = "etcd"
)

// Past the lease of a leader and of a node, ten seconds.
const pastTheLease = 14 * time.Second

// planStep is a named place to break a plan at.
type planStep struct {
	verb   string // add or drain node-4
	at     moment
	order  string // what a person says at that moment, before it breaks
	who    string
	frozen time.Duration // 0: it is killed, and started again after a second
}

func (s planStep) String() string {
	how := "killed"
	if s.frozen > 0 {
		how = fmt.Sprintf("frozen for %s", s.frozen)
	}
	return strings.Join(slices.DeleteFunc([]string{s.verb, s.at.name, s.order, s.who + " " + how}, func(part string) bool { return part == "" }), ", ")
}

// stepsToBreak are all named steps. Those of the short list come first.
var stepsToBreak = []planStep{
	{"add", half, "", leader, pastTheLease},
	{"drain", building, "", mover, 0},
	{"add", half, "rollback", leader, 0},
	{"add", building, "", leader, 0},
	{"drain", begun, "", leader, 0},
	{"add", begun, "", mover, 0},
	{"drain", half, "", etcdItself, time.Minute},
	{"add", quarter, "", etcdItself, time.Minute},
	{"drain", quarter, "", leader, pastTheLease},
	{"add", half, "", mover, pastTheLease},
	{"drain", half, "", mover, 0},
	{"add", half, "", neighbour, 0},
	{"drain", half, "", neighbour, pastTheLease},
	{"add", last, "", mover, 0},
	{"drain", last, "", leader, 0},
	{"add", quarter, "", follower, pastTheLease},
	{"drain", half, "", bothLeads, 0},
	{"add", half, "pause", leader, 0},
	{"drain", half, "cancel", leader, 0},
	{"drain", quarter, "rollback", mover, 0},
	{"drain", half, "rollback", etcdItself, pastTheLease},
	{"drain", done, "", leader, pastTheLease}, // what moved away is being deleted
	{"add", done, "rollback", neighbour, 0},
	{"add", half, "pause", etcdItself, 0},
}

// TestResizesUnderFaults kills and freezes coordinators and moving nodes, and
// takes etcd away, at named steps of plans: each plan ends, with as many ready
// replicas as are wanted, and no answer meanwhile is wrong.
func TestResizesUnderFaults(t *testing.T) {
	s := need(t)
	w := startResizing(t, s, "moving")
	w.load.burst(w.ctx, 10*members)
	w.settle()
	stop := w.underLoad()
	defer stop()
	w.add(mover)
	steps := stepsToBreak
	if s.short {
		steps = steps[:3]
	}
	for n, st := range steps {
		w.history.chapter(st.String())
		w.prepare(st.verb)
		w.do("node", st.verb, mover, "--apply")
		w.comes(st.at)
		if st.order != "" {
			w.steer(st.order)
		}
		hit := w.hit(st)
		if st.order == "pause" {
			w.steer("resume")
		}
		w.planEnds()
		if err := w.wholeBy(2); err != nil {
			w.told("unhealed", err.Error())
			t.Fatal(err)
		}
		t.Logf("step %d of %d, %s (%s): the plan is %s", n+1, len(steps), st, strings.Join(hit, ", "), w.plan().Plan.Status)
	}
	w.prepare("add")
	w.stop(mover)
	figure.Tell("moving_faults", float64(len(steps)), "faults")
	stop()
	w.asker.drain()
	t.Log(w.asker.take())
	w.ends3()
	w.verdict()
}

// prepare brings node-4 to where a verb has something to move.
func (w *resizing) prepare(verb string) {
	w.t.Helper()
	w.registered(mover)
	now := w.watch.Current().Assignment()
	hosts := slices.Contains(now.Nodes(), mover)
	switch {
	case verb == "add" && hosts:
		w.do("node", "drain", mover, "--apply", "--wait")
	case verb == "drain" && !hosts:
		w.do("node", "add", mover, "--apply", "--wait")
	}
}

// comes waits until a moment of the plan has come, or the plan has ended.
func (w *resizing) comes(m moment) {
	w.t.Helper()
	if err := eventually(w.ctx, patience, func(context.Context) error {
		if p := w.plan(); !m.come(p) && p.Plan.Status == "running" {
			return fmt.Errorf("%s has not come: %v", m.name, p.Progress.Moves)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
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
func (w *resizing) hit(s planStep) (names []string) {
	w.t.Helper()
	for _, p := range w.victims(s.who) {
		names = append(names, p.name)
		if s.frozen > 0 {
			p.signal(syscall.SIGSTOP)
			defer p.signal(syscall.SIGCONT)
		} else {
			p.kill(syscall.SIGKILL)
			defer func() {
				if err := p.start(); err != nil {
					w.t.Error(err)
				}
			}()
		}
	}
	w.pause(max(s.frozen, time.Second))
	return names
}

func (w *resizing) victims(who string) []*process {
	switch who {
	case etcdItself:
		return []*process{w.etcd}
	case bothLeads:
		return w.coordinators
	case leader, follower:
		leads := w.plan().Leader.Name
		return slices.DeleteFunc(slices.Clone(w.coordinators), func(p *process) bool { return (p.name == leads) != (who == leader) })
	}
	return []*process{w.nodeNamed(who)}
}

// planEnds waits until the last plan has ended, as etcd says.
func (w *resizing) planEnds() {
	w.t.Helper()
	if err := eventually(w.ctx, patience, func(context.Context) error {
		out, err := w.command("cluster", "status", "--etcd", local(w.etcdAt))
		for _, status := range []string{"running", "paused", "cancelling", "rolling_back"} {
			if strings.Contains(out, "\n"+status+":") {
				err = errors.Join(err, fmt.Errorf("the plan is %s:\n%s", status, out))
			}
		}
		return err
	}); err != nil {
		w.told("unhealed", err.Error())
		w.t.Fatal(err)
	}
}
