//go:build linux

package cli

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/figure"
)

// TestFaultKafkaAway freezes Kafka, thaws it, and ends it. Partitioners and index
// nodes say that they are not ready, and why, and are ready again when it is back.
func TestFaultKafkaAway(t *testing.T) {
	_, measured := faultTime(t, 0)
	kafka := millraceCommand(t.Context(), "bench", "backing", "--data", t.TempDir())
	in, err := kafka.StdinPipe() // whose end would end it
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := kafka.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := kafka.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = kafka.Wait() }() // which is killed
	defer kafka.Process.Kill()
	var at, etcd string
	if _, err := fmt.Fscanln(out, &at, &etcd); err != nil {
		t.Fatal(err)
	}
	c := startFaultClusterOn(t, at, 2, loadLines())
	roles := map[string]string{"partitioner": c.sorter, "indexnode": c.admin[0]}
	ready := func() {
		t.Helper()
		for role, admin := range roles {
			clitest.WaitFor(c.ctx, t, "the "+role+" to be ready", func() bool { return clitest.SaysReady(admin) == "ok\n" })
		}
	}
	for _, fault := range []struct {
		name   string
		signal syscall.Signal
	}{{"frozen", syscall.SIGSTOP}, {"gone", syscall.SIGKILL}} {
		ready()
		began := time.Now()
		if err := kafka.Process.Signal(fault.signal); err != nil {
			t.Fatal(err)
		}
		took, said := map[string]time.Duration{}, map[string]string{}
		clitest.WaitFor(c.ctx, t, "partitioner and node to tell", func() bool {
			for role, admin := range roles {
				if text := clitest.SaysReady(admin); took[role] == 0 && text != "ok\n" {
					took[role], said[role] = time.Since(began), text
				}
			}
			return len(took) == len(roles)
		})
		for role, text := range said {
			t.Logf("Kafka %s: after %v the %s says %.300s", fault.name, took[role].Round(10*time.Millisecond), role, text)
			if !strings.Contains(strings.ToLower(text), "kafka") {
				t.Errorf("Kafka %s: the %s does not say why it is not ready: %s", fault.name, role, text)
			}
			if measured {
				figure.Print("kafka_"+fault.name+"_told_by_"+role, took[role].Seconds(), "s")
			}
		}
		if fault.signal == syscall.SIGSTOP {
			stillTold(t, c)
		}
		_ = kafka.Process.Signal(syscall.SIGCONT) // of one that is gone: fails
	}
}

// stillTold looks at a cluster whose Kafka is frozen: what nodes know is shown, and what only
// Kafka knows ends with that, each in its time.
func stillTold(t *testing.T, c *faultCluster) {
	t.Helper()
	began := time.Now()
	out, err := execute(c.ctx, "state", "--etcd", c.etcd.Addr())
	if err == nil || !strings.Contains(err.Error(), "dead letters were not counted") || !strings.Contains(out, "post") || !strings.Contains(out, "share") {
		t.Errorf("state: %v\n%s", err, out)
	}
	if out, err = execute(c.ctx, "timeline", "history", "member:1", "--etcd", c.etcd.Addr()); err == nil || !strings.Contains(err.Error(), "Kafka has said nothing") {
		t.Errorf("history: %v\n%s", err, out)
	}
	t.Logf("both took %s", time.Since(began).Round(time.Second))
}
