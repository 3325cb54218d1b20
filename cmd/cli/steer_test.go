package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/command"
	"github.com/millrace/millrace/coordinator"
	"github.com/millrace/millrace/internal/cluster/members"
	"github.com/millrace/millrace/internal/cluster/steering"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// Who waits for a plan and is told to stop hears that the plan goes on, and the
// command fails. How far it is is no part of the JSON.
func TestWhoStopsWaitingForAPlanFails(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.ok()
	c.join(c.open(""), "node-3")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	r := root()
	r.SetArgs([]string{"node", "add", "node-3", "--etcd", c.addr, "--apply", "--yes", "--wait", "-o", "json"})
	var out, progress bytes.Buffer
	stopping := func(to *bytes.Buffer) writerFunc {
		return func(p []byte) (int, error) {
			if strings.Contains(string(p), "moves done") {
				stop()
			}
			return to.Write(p)
		}
	}
	r.SetOut(stopping(&out))
	r.SetErr(stopping(&progress))
	err := command.Run(ctx, r)
	if err == nil || !strings.Contains(err.Error(), "the plan goes on: see millrace cluster status") {
		t.Errorf("%v\n%s\n%s", err, &out, &progress)
	}
	var shown struct{ Moves []coordinator.Move }
	if err := json.Unmarshal(out.Bytes(), &shown); err != nil || len(shown.Moves) != 480 {
		t.Errorf("%d moves, %v:\n%s", len(shown.Moves), err, &out)
	}
}

// Who stops a roll lets the command that restarts a node end, and hears where to
// go on.
func TestARollThatIsStoppedLetsTheCommandEnd(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.ok()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stopped := filepath.Join(t.TempDir(), "stopped")
	r := root()
	r.SetArgs([]string{"cluster", "roll", "--etcd", c.addr, "--apply", "--yes", "--exec", "echo begins; until test -e " + stopped + "; do sleep 0.1; done; echo ends"})
	var out bytes.Buffer
	r.SetOut(writerFunc(func(p []byte) (int, error) {
		if string(p) == "begins\n" {
			stop()
			c.must(os.WriteFile(stopped, nil, 0o644))
		}
		return out.Write(p)
	}))
	err := command.Run(ctx, r)
	if err == nil || !strings.Contains(err.Error(), "interrupted: the command has ended, and node-1 may not be restarted: the process that ran before is still registered; run it again") || !strings.Contains(out.String(), "ends\nnode-1: the command has ended; waiting until it is whole again\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// at runs a command in this process, and calls do once it writes a text.
func (c *clinic) at(text string, do func(), args ...string) (string, error) {
	c.t.Helper()
	var out bytes.Buffer
	once := false
	r := root()
	r.SetArgs(append(args, "--etcd", c.addr))
	r.SetOut(writerFunc(func(p []byte) (int, error) {
		out.Write(p)
		if !once && strings.Contains(string(p), text) {
			once = true
			do()
		}
		return len(p), nil
	}))
	err := r.ExecuteContext(c.ctx)
	return out.String(), err
}

// A node that leaves before its turn, and hosts nothing, is left out of a roll; of one
// that hosts something the command is told who it was.
func TestARollLeavesOutWhoHasLeft(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.ok()
	c.join(c.open(""), "node-3")
	c.join(c.open(""), "node-4")
	touched := filepath.Join(t.TempDir(), "touched")
	touch := []string{"--exec", "touch " + touched, "--timeout", "5s", "--apply", "--yes"}
	leave := func(ids ...millrace.NodeID) func() {
		return func() {
			for _, id := range ids {
				c.must(c.nodes[id].Leave(c.ctx))
			}
		}
	}
	out, err := c.at("2. node-4", leave("node-3", "node-4"), append([]string{"cluster", "roll", "--after", "node-2"}, touch...)...)
	if err != nil || !strings.Contains(out, "node-3 is left out: it is not there any more") || !strings.Contains(out, "node-4 is left out: ") || clitest.Exists(touched) {
		t.Errorf("both have left: %v\n%s", err, out)
	}
	c.join(c.open(""), "node-3")
	out, err = c.at("1. node-3", leave("node-3"), append([]string{"node", "restart", "node-3"}, touch...)...)
	if err == nil || !strings.Contains(err.Error(), "node-3 is left out: it is not there any more") || clitest.Exists(touched) {
		t.Errorf("the one that was to be restarted has left: %v\n%s", err, out)
	}
	out, err = c.at("1. node-2", leave("node-2"), "node", "restart", "node-2", "--exec", "echo $NODE is at $ADDR", "--timeout", "2s", "--apply", "--yes")
	if err == nil || !strings.Contains(out, "\nnode-2 is at node-2:7070\n") {
		t.Errorf("one that hosts something: %v\n%s", err, out)
	}
}

// A node has the whole --timeout to be whole again, however long the command took that
// restarts it.
func TestTheTimeOfARestartBeginsWhenTheCommandHasEnded(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	second := c.ok()
	var back sync.WaitGroup
	defer back.Wait()
	out, err := c.at("node-2 restarts", func() {
		c.must(c.nodes["node-2"].Leave(c.ctx))
		back.Go(func() {
			time.Sleep(9 * time.Second) // longer than the command takes, and than --timeout
			m, err := members.Join(c.ctx, second, topology.Node{ID: "node-2", Addr: "node-2:7070", Start: 2})
			if err != nil {
				t.Error(err)
				return
			}
			m.SetAnswering(topology.All(), topology.Lag{})
		})
	}, "node", "restart", "node-2", "--exec", "sleep 6", "--timeout", "8s", "--apply", "--yes")
	if err != nil || !strings.Contains(out, "node-2 is whole again after") {
		t.Errorf("%v\n%s", err, out)
	}
}

// A replica that was out of service before a restart is so after it, which is told before,
// and nobody waits for it.
func TestARestartWaitsForWhatServedBefore(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	second := c.ok()
	out := topology.Report{State: "quarantined", Reason: topology.ByOperatorReason, Detail: "doubt", Since: time.Unix(1e9, 0)}
	out.Partitions.Add(644)
	rest := topology.All()
	rest.Remove(644)
	say := func(m *members.Membership) {
		m.SetAnswering(rest, topology.Lag{})
		m.SetReports([]topology.Report{out})
	}
	say(c.nodes["node-2"])
	w, err := c.one.Watch(c.ctx)
	c.must(err)
	clitest.WaitFor(c.ctx, t, "node-1 to hear of it", func() bool { return len(w.Current().Reports("node-2")) == 1 })
	said, err := c.at("node-2 restarts", func() {
		c.must(c.nodes["node-2"].Leave(c.ctx))
		m, err := members.Join(c.ctx, second, topology.Node{ID: "node-2", Addr: "node-2:7070", Start: 2})
		c.must(err)
		say(m)
	}, "node", "restart", "node-2", "--exec", "true", "--timeout", "5m", "--apply", "--yes")
	if err != nil || !strings.Contains(said, "720 partitions; 1 of them are quarantined and are not waited for: 644\n") || !strings.Contains(said, "node-2 is whole again after") {
		t.Errorf("%v\n%s", err, said)
	}
}

// A node is not restarted while the other one that serves what it hosts says nothing,
// though etcd says that it is well: it is frozen, or cut off, or who stands before it
// closes what it cannot pass on.
func TestNoRestartBesideASilentNode(t *testing.T) {
	t.Parallel()
	for name, closes := range map[string]bool{"frozen": false, "behind a proxy": true} {
		t.Run(name, func(t *testing.T) { t.Parallel(); noRestartBeside(t, closes) })
	}
}

func noRestartBeside(t *testing.T, closes bool) {
	c := startClinic(t)
	second := c.ok()
	frozen, err := net.Listen("tcp", "127.0.0.1:0") // which accepts nobody, or closes at once
	c.must(err)
	defer frozen.Close()
	if closes {
		go func() {
			for {
				conn, err := frozen.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
	}
	c.must(c.nodes["node-2"].Leave(c.ctx))
	m, err := members.Join(c.ctx, second, topology.Node{ID: "node-2", Addr: frozen.Addr().String(), Start: 2})
	c.must(err)
	m.SetAnswering(topology.All(), topology.Lag{})
	c.nodes["node-2"] = m
	clitest.WaitFor(c.ctx, t, "node-2 to register", func() bool { return m.Fault() == nil })
	touched := filepath.Join(t.TempDir(), "touched")
	c.says("[node-2] do not answer, and 720 partitions that it hosts are served by nobody else", fails, "node", "restart", "node-1", "--etcd", c.addr, "--apply", "--yes", "--exec", "touch "+touched)
	if clitest.Exists(touched) {
		t.Error("it is restarted")
	}
	c.says("node-1 restarts", fails, "node", "restart", "node-1", "--etcd", c.addr, "--apply", "--yes", "--exec", "touch "+touched, "--override", "millrace", "--timeout", "1s")
	if !clitest.Exists(touched) {
		t.Error("it is not restarted, though somebody means it")
	}
}

// A plan in etcd that no coordinator has written is told by whoever looks, with the way out,
// and ends no command.
func TestAPlanThatIsNoneIsTold(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.ok()
	bad := `{"id":"x","status":"running","wanted":1,"base_wanted":1,"base":[["node-1"]` + strings.Repeat(`,["node-1"]`, 719) + `],"moves":[{"p":5000,"from":"node-1","to":"node-2","state":"waiting"}]}`
	_, err := c.one.Etcd().Put(c.ctx, c.one.Prefix()+"steer/plan", bad)
	c.must(err)
	const told = "the document steer/plan in etcd cannot be read: move 0 is of partition 5000, and there are 720"
	for _, args := range []string{"cluster show", "cluster status", "cluster cancel", "cluster rollback", "cluster plan --replicas 2", "node drain node-2", "cluster explain 7"} {
		c.says(told, fails, append(strings.Fields(args), "--etcd", c.addr)...)
	}
}

// The history tells of a restart after which the node was not whole again.
func TestARestartThatFailsIsNoted(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.ok()
	c.says("node-2 is not whole again", fails, "node", "restart", "node-2", "--etcd", c.addr, "--apply", "--yes", "--exec", "true", "--timeout", "5s")
	c.says("FAILED: node-2 is not whole again", nil, "cluster", "history", "--etcd", c.addr)
}

// What is shown before something is done says what it costs.
func TestWhatIsShownSaysWhatItCosts(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	second := c.ok()
	on := []string{"--etcd", c.addr}
	for _, none := range []string{"0", "-1"} {
		c.says("answer nothing", fails, append([]string{"cluster", "plan", "--replicas", none}, on...)...)
	}
	c.says("partitions are to have one replica instead of 2", fails, append([]string{"cluster", "apply", "--replicas", "1", "--yes"}, on...)...)
	c.says("warn  partitions are to have one replica instead of 2", nil, append([]string{"cluster", "apply", "--replicas", "1", "--yes", "--override", "millrace"}, on...)...)
	c.says("cancel: 0 moves that are done stay, 0 that build are taken back, 720 are not begun", nil, append([]string{"cluster", "cancel"}, on...)...)
	c.says("rollback: 0 moves that are done are taken back, 0 that build are taken back, 720 are not begun", nil, append([]string{"cluster", "rollback"}, on...)...)
	for line, want := range map[string]string{
		"cluster cancel":                  `"status":"running","moves":{"waiting":720},"warnings":[],"applied":false}`,
		"cluster rollback":                `"status":"running","moves":{"waiting":720},"warnings":[],"applied":false}`,
		"node restart node-2 --exec true": `{"node":"node-2","addr":"node-2:7070","zone":"","partitions":720,"state":"planned","seconds":0}`,
	} {
		args := append(strings.Fields(line), on...)
		clitest.JSON(t, line, c.says(want, nil, append(args, "-o", "json")...))
	}
	clitest.JSON(t, "cluster pause", c.says(`"status":"paused","moves":{"waiting":720},"warnings":[],"applied":true}`, nil, append([]string{"cluster", "pause", "-o", "json"}, on...)...))
	clitest.JSON(t, "cluster rollback", c.says(`"status":"rolling_back","moves":{"waiting":720},"warnings":[],"applied":true}`, nil, append([]string{"cluster", "rollback", "--apply", "--yes", "-o", "json"}, on...)...))
	c.must(c.nodes["node-2"].Leave(c.ctx))
	c.must(second.Close())
	c.says("all nodes that host anything are there, but for those that are given up: node-2, with 720 replicas", fails, append([]string{"node", "remove", "node-2"}, on...)...)
	c.says("0 moves", nil, append([]string{"node", "remove", "node-2", "--override", "millrace", "--apply", "--yes"}, on...)...)
	c.says("given up", nil, append([]string{"node", "list"}, on...)...)
}

// A number of replicas that nothing moves for is noted all the same; a plan that would
// change nothing says so, and is none.
func TestAPlanWithoutMoves(t *testing.T) {
	t.Parallel()
	c := startClinic(t)
	c.ok()
	apply := func(replicas string) string {
		t.Helper()
		var out bytes.Buffer
		r := root()
		r.SetArgs([]string{"cluster", "apply", "--replicas", replicas, "--yes", "--etcd", c.addr})
		r.SetOut(&out)
		r.SetErr(&out)
		if err := r.ExecuteContext(c.ctx); err != nil {
			t.Errorf("%v\n%s", err, &out)
		}
		return out.String()
	}
	if out := apply("2"); !strings.Contains(out, "0 moves") || !strings.Contains(out, "nothing is to be done") {
		t.Errorf("as it is:\n%s", out)
	}
	c.says("there has been no plan yet", nil, "cluster", "status", "--etcd", c.addr)
	c.must(steering.Change(c.ctx, c.one, nil, func(s *steering.State) error { s.Assignment.Wanted = 3; return nil }))
	if out := apply("2"); !strings.Contains(out, "0 moves") || !strings.Contains(out, "begun: ") {
		t.Errorf("where 3 were wanted:\n%s", out)
	}
	c.says("2 replicas are wanted of each partition", nil, "cluster", "status", "--etcd", c.addr)
}

type writerFunc func([]byte) (int, error)

func (w writerFunc) Write(p []byte) (int, error) { return w(p) }
