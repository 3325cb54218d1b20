package steer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/keyspace"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

func TestGainsArePercent(t *testing.T) {
	for text, want := range map[string]float64{"5%": 0.05, "5": 0.05, "0": 0, "150%": 1.5, "": -1, "-1%": -1, "NaN": -1, "a": -1, "5000%": -1} {
		got := percent(-1)
		if err := got.Set(text); (err != nil) != (want < 0) || want >= 0 && float64(got) != want {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
}

// Who waits for a plan goes on waiting while etcd is away, hears of it once,
// and gives up in the end; any other fault ends the wait.
func TestAPlanIsAwaitedThroughAnOutage(t *testing.T) {
	is := func(status coordinator.Status) *coordinator.Steered {
		return &coordinator.Steered{State: &steering.State{}, Plan: &coordinator.Plan{ID: "p1", Status: status}}
	}
	away := fmt.Errorf("cluster: %w", cluster.ErrAway)
	type look struct {
		s     *coordinator.Steered
		err   error
		times int
	}
	const told = "etcd is away; the plan goes on when it is back"
	for name, c := range map[string]struct {
		looks []look
		want  string // of the error
		tells int
		leads coordinator.Status // zero: done
	}{
		"an outage":                     {[]look{{is(coordinator.Running), nil, 1}, {nil, away, 20}, {is(coordinator.Done), nil, 1}}, "", 1, ""},
		"two outages":                   {[]look{{nil, away, maxAway}, {is(coordinator.Running), nil, 1}, {nil, away, maxAway}, {is(coordinator.Done), nil, 1}}, "", 2, ""},
		"it does not end":               {[]look{{nil, away, maxAway + 1}}, "no etcd answered", 1, ""},
		"another fault":                 {[]look{{nil, keyspace.ErrNothing, 1}}, "holds nothing of this cluster", 0, ""},
		"another plan":                  {[]look{{is(coordinator.Running), nil, 1}, {&coordinator.Steered{State: &steering.State{}, Plan: &coordinator.Plan{ID: "p2", Status: coordinator.Done}}, nil, 1}}, "plan p1 is not the last plan any more", 0, ""},
		"no plan":                       {[]look{{&coordinator.Steered{State: &steering.State{}}, nil, 1}}, "plan p1 is not the last plan any more", 0, ""},
		"a plan that is left":           {[]look{{is(coordinator.Running), nil, 1}, {is(coordinator.Cancelled), nil, 1}}, "plan p1 is cancelled", 0, ""},
		"one that was cancelled before": {[]look{{is(coordinator.Cancelling), nil, 1}, {is(coordinator.Cancelled), nil, 1}}, "", 0, coordinator.Cancelled},
		"one that was rolled back":      {[]look{{is(coordinator.RollingBack), nil, 1}, {is(coordinator.RolledBack), nil, 1}}, "", 0, coordinator.RolledBack},
		"one that is taken back anew":   {[]look{{is(coordinator.Cancelling), nil, 1}, {is(coordinator.RolledBack), nil, 1}}, "plan p1 is rolled_back", 0, coordinator.Cancelled},
	} {
		var out bytes.Buffer
		next, n := 0, 0
		err := awaitPlan(t.Context(), &out, 0, awaited{"p1", c.leads}, func(context.Context) (*coordinator.Steered, bool, error) {
			if next == len(c.looks) {
				return nil, false, errors.New("it looks once more than it should")
			}
			l := c.looks[next]
			if n++; n == l.times {
				next, n = next+1, 0
			}
			return l.s, next%2 == 0, l.err
		})
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
		if said := strings.Contains(out.String(), "no coordinator leads"); said != (len(c.looks) > 1 && c.looks[0].err == nil) && c.want == "" {
			t.Errorf("%s: that nobody leads is told: %t: %q", name, said, out.String())
		}
		if next != len(c.looks) || strings.Count(out.String(), told) != c.tells {
			t.Errorf("%s: %d of %d looks, and it says %q", name, next, len(c.looks), out.String())
		}
	}
}

// A roll goes on behind a node also while that is away, as the one at which it stopped
// may be; one that was never there is refused.
func TestARollGoesOnBehindWhoIsAway(t *testing.T) {
	found := &keyspace.Snapshot{Cluster: 1, Revision: 1, Count: "720", Values: map[string]keyspace.Value{}}
	for id, zone := range map[string]string{"a": "z1", "b": "z2", "c": "z1", "d": "z2"} {
		body := keyspace.Value{Data: fmt.Appendf(nil, `{"id":%q,"addr":"a:1","zone":%q}`, id, zone)}
		if found.Values["known/"+id] = body; id != "c" {
			found.Values["nodes/"+id] = body
		}
	}
	m, _ := topology.NewMap(topology.Assignment{}, nil, nil).Next(found)
	s := &coordinator.Steered{State: &steering.State{Map: m}}
	for after, want := range map[string]string{"": "[a b d]", "a": "[b d]", "c": "[b d]", "b": "[d]", "d": "[]"} {
		if ids, err := rollOrder(s, after); err != nil || fmt.Sprint(ids) != want {
			t.Errorf("after %q: %v, %v; want %s", after, ids, err, want)
		}
	}
	if ids, err := rollOrder(s, "e"); err == nil {
		t.Errorf("after nobody: %v", ids)
	}
}

// Figures beyond what a number holds are neither told nor taken for none.
func TestLargeFigures(t *testing.T) {
	for left, want := range map[float64]string{90: ", about 1m30s left", 1e11: "", 1e300: ""} {
		if line := progressLine(&coordinator.Plan{}, &coordinator.Progress{Left: left}); !strings.HasSuffix(line, "MiB"+want) {
			t.Errorf("%v s: %s", left, line)
		}
	}
	for rate, want := range map[int64]int64{0: 0, 3: 3 << 20, 1 << 44: math.MaxInt64 >> 20 << 20, math.MaxInt64: math.MaxInt64 >> 20 << 20, -1: -1 << 20, math.MinInt64: -1 << 20} {
		st := hosting{mibPerSecond: rate}
		if r, err := st.request(coordinator.Request{}); err != nil || r.Limits.BytesPerSecond != want {
			t.Errorf("%d MiB a second: %d bytes, %v", rate, r.Limits.BytesPerSecond, err)
		}
	}
}

// An address of etcd that does not answer is told by cluster show, as a table and as JSON.
func TestAnUnresponsiveEtcdIsShown(t *testing.T) {
	const says = "etcd does not answer at etcd-2:2379, and does elsewhere"
	l := clusters.Look{Map: &topology.Map{}, Unresponsive: []string{"etcd-2:2379"}}
	var out strings.Builder
	if err := writeLook(&out, l, nil); err != nil || !strings.Contains(out.String(), "to be looked after:\n  "+says) {
		t.Errorf("%s%v", out.String(), err)
	}
	if got := shownOf(l, nil).Warnings; len(got) != 1 || !strings.HasPrefix(got[0], says) {
		t.Errorf("%q", got)
	}
	for silent, want := range map[float64]string{0: "\nall is well\n", 60: "\nall is well, but for what is SILENT above"} {
		out.Reset()
		if err := writeLook(&out, clusters.Look{Map: &topology.Map{}, Health: topology.Health{Epoch: 1}}, []clusters.Broker{{Name: "b", Silent: silent}}); err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("with a broker silent for %v s: %s%v", silent, out.String(), err)
		}
	}
	l.Slow = true // there is no other
	if got := l.UnresponsiveEtcd(); strings.Contains(got, "elsewhere") || !strings.Contains(got, "etcd-2:2379 took longer than") {
		t.Errorf("of the only one: %q", got)
	}
}

// Status says what a pause holds up, and by whom it is.
func TestStatusTellsOfAPause(t *testing.T) {
	at := time.Unix(1_800_000_000, 0).UTC()
	s := &coordinator.Steered{State: &steering.State{Map: &topology.Map{}}, Plan: &coordinator.Plan{
		ID: "p1", Kind: coordinator.Add, Status: coordinator.Paused,
		Log: []coordinator.Event{{When: at.Add(-time.Hour), What: "pause, by ann: 2 moves are left"}, {When: at, What: "pause, by bob: 1 moves are left"}},
	}}
	const says = "\nplan p1 (add) is paused since 2027-01-15T08:00:00Z, by bob: nothing moves or is repaired until millrace cluster resume\n"
	var out strings.Builder
	if err := writeStatus(&out, s, nil, nil, cluster.Leader{}, true); err != nil || !strings.Contains(out.String(), says) {
		t.Errorf("%s%v", out.String(), err)
	}
	if got := statusOf(s, nil, nil).Standstill; got != strings.TrimSpace(says) {
		t.Errorf("as JSON: %q", got)
	}
}

// What waits for room is told, by the nodes whose disks are full, and no time is.
func TestProgressTellsOfFullDisks(t *testing.T) {
	full := func(to millrace.NodeID) coordinator.MoveProgress {
		return coordinator.MoveProgress{Move: coordinator.Move{To: to}, Reason: topology.DiskFullReason}
	}
	pr := coordinator.Progress{Left: -1, UnderWay: []coordinator.MoveProgress{full("n2"), {Move: coordinator.Move{To: "n3"}}, full("n1"), full("n2")}}
	const want = ", 3 wait for room on the disks of [n1 n2]"
	if got := progressLine(&coordinator.Plan{Status: coordinator.Running}, &pr); !strings.HasSuffix(got, want) {
		t.Errorf("%q; want %q", got, want)
	}
	pr = coordinator.Progress{Moves: map[coordinator.MoveState]int{coordinator.Moved: 3}, Left: -1, Undone: 2, Holding: map[millrace.NodeID]coordinator.Held{"n9": {Moves: 1, Why: "takes in nothing new: paused"}}, Quarantined: map[millrace.NodeID]int{"n8": 3}}
	const told = "cancelling: 3 of 4 moves done, 0 building, 0.0 of 0.0 MiB, 2 of them took back what was not ready, 1 wait for n9, which takes in nothing new: paused, 3 are quarantined on n8 (why: millrace cluster show; then millrace partition release)"
	if got := progressLine(&coordinator.Plan{Status: coordinator.Cancelling, Moves: make([]coordinator.Move, 4)}, &pr); got != told {
		t.Errorf("%q; want %q", got, told)
	}
}

// Who stops a roll goes on after a node that is restarted, and with one of which only the
// process of before is known.
func TestARollGoesOnWithWhatIsNotRestarted(t *testing.T) {
	ids := []millrace.NodeID{"n1", "n2", "n3"}
	for name, c := range map[string]struct {
		fault error
		after string
	}{
		"the process of before": {errBefore, "go on with --after n1 "},
		"another":               {errors.New("9 partitions are not ready"), "go on with --after n2 "},
	} {
		restarted, err := interrupted(t.Context(), "n2", c.fault)
		done := 1
		if restarted {
			done++
		}
		if got := goOn(err, ids, done); !errors.Is(got, c.fault) || !strings.Contains(got.Error(), c.after) {
			t.Errorf("%s: %v; want %s", name, got, c.after)
		}
	}
}

// A node that is back with a data directory of its own, which counts its starts anew, is
// another process than the one of before; the same directory has to have been started again.
func TestANewDirectoryIsANewProcess(t *testing.T) {
	a, err := topology.Spread([]millrace.NodeID{"n1"}, 1)
	if err != nil {
		t.Fatal(err)
	}
	before := topology.Node{ID: "n1", Addr: "a:1", Instance: "word", Start: 7}
	for name, c := range map[string]struct {
		now  topology.Node
		want error
	}{
		"the same process":  {before, errBefore},
		"the next one":      {topology.Node{ID: "n1", Addr: "a:1", Instance: "word", Start: 8}, nil},
		"another directory": {topology.Node{ID: "n1", Addr: "a:1", Instance: "other", Start: 1}, nil},
	} {
		m := topology.NewMap(a, []topology.Node{c.now}, map[millrace.NodeID]topology.Set{"n1": topology.All()})
		if err := whole(m, before, topology.Set{}); err != c.want {
			t.Errorf("%s: %v; want %v", name, err, c.want)
		}
	}
}

// An etcd that was away for so long that nobody waits any more is told as that, and not as
// an interrupt; what was restarted by then is not restarted again.
func TestARollTellsThatEtcdWasAway(t *testing.T) {
	told, cancel := context.WithCancelCause(t.Context())
	if err := overBy(told); err != errByHand {
		t.Errorf("%v", err)
	}
	cancel(fmt.Errorf("%w: it was not heard", cluster.ErrAway))
	ids := []millrace.NodeID{"n1", "n2", "n3"}
	for _, fault := range []error{errBefore, errors.New("9 partitions are not ready")} {
		restarted, err := interrupted(told, "n2", fault)
		if !restarted || !errors.Is(err, cluster.ErrAway) || strings.Contains(err.Error(), "interrupted") {
			t.Errorf("restarted: %t, %v", restarted, err)
		}
		if got := goOn(err, ids, 2); !strings.Contains(got.Error(), "go on with --after n2 ") {
			t.Error(got)
		}
	}
	r := &restarting{exec: "exit 3", timeout: time.Minute}
	if err := r.command(told, io.Discard, topology.Node{ID: "n2"}); err == nil || strings.Contains(err.Error(), "interrupted") || !strings.Contains(err.Error(), "exit status 3") || !errors.Is(err, cluster.ErrAway) {
		t.Errorf("%v", err)
	}
}

// Status tells what moves wait for that cannot begin.
func TestStatusTellsWhatMovesWaitFor(t *testing.T) {
	s := &coordinator.Steered{State: &steering.State{Map: &topology.Map{}}, Plan: &coordinator.Plan{ID: "p", Status: coordinator.Running}}
	for p := range millrace.Partition(7) {
		s.Plan.Moves = append(s.Plan.Moves, coordinator.Move{Partition: p, To: "n3", State: coordinator.Waiting})
	}
	var out strings.Builder
	if err := writeStatus(&out, s, nil, nil, cluster.Leader{}, true); err != nil || !strings.Contains(out.String(), "\n7 moves wait: n3 is not there\n") {
		t.Errorf("%s%v", out.String(), err)
	}
	if body, err := json.Marshal(statusOf(s, nil, nil)); err != nil || !strings.Contains(string(body), `"waits":[{"moves":7,"for":"n3 is not there"}]`) {
		t.Errorf("%s, %v", body, err)
	}
}

// A node is gone since it was last heard, though it is waited for since a plan named it.
func TestANodeIsGoneSinceItWasLastHeard(t *testing.T) {
	missed := time.Unix(1_800_000_000, 0).UTC()
	heard := map[millrace.NodeID]time.Time{"n1": missed.Add(-time.Hour)}
	s := &coordinator.Steered{State: &steering.State{Map: &topology.Map{}}}
	s.Notes.Gone = map[millrace.NodeID]time.Time{"n1": missed}
	var out strings.Builder
	const says = "n1 is gone, last heard 2027-01-15T07:00:00Z, and waited for since 2027-01-15T08:00:00Z\n"
	if err := writeStatus(&out, s, nil, heard, cluster.Leader{}, true); err != nil || !strings.Contains(out.String(), says) {
		t.Errorf("%s%v", out.String(), err)
	}
	s.Notes.GivenUp = []millrace.NodeID{"n1"}
	out.Reset()
	if err := writeStatus(&out, s, nil, heard, cluster.Leader{}, true); err != nil || !strings.Contains(out.String(), "n1 is gone, last heard 2027-01-15T07:00:00Z, and given up: ") {
		t.Errorf("%s%v", out.String(), err)
	}
	for _, id := range []millrace.NodeID{"n5", "n3", "n2", "n4"} {
		s.Notes.Gone[id] = missed
	}
	out.Reset()
	var shown []string
	if err := writeStatus(&out, s, nil, heard, cluster.Leader{}, true); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(out.String()) {
		if id, _, ok := strings.Cut(line, " is gone, last heard "); ok {
			shown = append(shown, id)
		}
	}
	if fmt.Sprint(shown) != "[n1 n2 n3 n4 n5]" {
		t.Errorf("they are told as %v", shown)
	}
	body, err := json.Marshal(statusOf(s, nil, heard))
	if err != nil || !strings.Contains(string(body), `"gone":[{"node":"n1","since":"2027-01-15T07:00:00Z","waited_since":"2027-01-15T08:00:00Z","given_up":true},{"node":"n2",`) {
		t.Errorf("as JSON: %s%v", body, err)
	}
	if got := goneSince(missed, time.Time{}); got != missed {
		t.Errorf("one that nobody has heard is gone since %s", got)
	}
}
