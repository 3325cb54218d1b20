//go:build linux

package cli

import (
	"context"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/cluster/topology"
)

// TestFaultTwoOfOneName starts a second index node of a name, with another data
// directory, has it leave, and has it take the name over while the first is
// frozen past its lease. Nobody who is refused the name takes anything from who
// has it; each says who that is; and the first has its name back by itself.
func TestFaultTwoOfOneName(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel() // it waits for a lease
	c := startFaultCluster(t, 3, loadLines())
	cl, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{c.etcd.Addr()}, Name: "millrace", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	w, err := cl.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	const name = "node-1"
	has := func(m *topology.Map, addr string) bool {
		n, _ := m.Node(name)
		hosted, ready := m.Hosted(name), m.Ready(name)
		return m.Alive(name) && n.Addr == addr && hosted.Len() > 0 && hosted.Minus(ready) == topology.Set{}
	}
	registered := func(addr string) {
		t.Helper()
		clitest.WaitFor(c.ctx, t, "all of "+name+" to be ready at "+addr, func() bool { return has(w.Current(), addr) })
	}
	n, _ := w.Current().Node(name)
	first, second := n.Addr, clitest.FreeAddr(t)
	registered(first)
	stop := c.newAsker().run()

	keeps := c.keeps(w, func(m *topology.Map) bool { return has(m, first) })
	admin := clitest.FreeAddr(t)
	twin := start(t, c.failed, "twin", "indexnode", "--config", clitest.WriteConfig(t, "twin",
		"id: %s\ndata: %s\nbrokers: [%q]\ntopic_prefix: %s\netcd: [%q]\nlisten: %q\nadmin: %q\ndrain: 1ms\n", name, t.TempDir(), c.kafka, c.prefix, c.etcd.Addr(), second, admin))
	c.refused(admin, name, first)
	twin.end()
	keeps("the second process is refused, and leaves")

	c.nodes[0].signal(syscall.SIGSTOP)
	twin.restart()
	registered(second) // once the lease of the first has ended
	keeps = c.keeps(w, func(m *topology.Map) bool { return has(m, second) })
	c.nodes[0].signal(syscall.SIGCONT)
	c.refused(c.admin[0], name, second)
	keeps("the first process wakes")

	twin.end()
	registered(first)
	clitest.WaitFor(c.ctx, t, "the alarm to end", func() bool {
		return metric(c.ctx, c.admin[0], "millrace_cluster_fault_seconds", `of="node `+name+`"`) == 0
	})
	stop()
	c.waitWhole()
}

// keeps looks at every map, and fails the test, when it is told what happened,
// if one was not as it should be.
func (c *faultCluster) keeps(w *cluster.Watcher, good func(*topology.Map) bool) (end func(what string)) {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.ctx)
	var bad atomic.Pointer[topology.Map]
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			changed := w.Changed()
			if m := w.Current(); !good(m) {
				bad.Store(m)
			}
			select {
			case <-ctx.Done():
			case <-changed:
			}
		}
	}()
	return func(what string) {
		c.t.Helper()
		cancel()
		<-done
		if m := bad.Load(); m != nil {
			c.t.Errorf("%s: who has the name loses it, or what it serves: %+v", what, m.Nodes())
		}
	}
}

// refused returns when a process, its metric, and doctor say that another one,
// at an address, has its name.
func (c *faultCluster) refused(admin, name, addr string) {
	c.t.Helper()
	want := "another process is registered as " + name + ", at " + addr
	clitest.WaitFor(c.ctx, c.t, "the process to say that "+want, func() bool {
		return strings.Contains(clitest.SaysReady(admin), want)
	})
	if metric(c.ctx, admin, "millrace_cluster_fault_seconds", `of="node `+name+`"`) <= 0 {
		c.t.Error("the metric says that all is well")
	}
	if out, err := output("ready", "--admin", admin); err == nil || !strings.Contains(out, want) {
		c.t.Errorf("ready says %v\n%s", err, out)
	}
}
