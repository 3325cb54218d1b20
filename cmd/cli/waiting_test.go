package cli

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/internal/minicluster"
)

// A role that starts while etcd is away lives, and says what it waits for: at
// its admin port and in its log. A node that has been there before,
// and a coordinator that keeps what it knew, need not wait. Their ports are theirs from the
// start.
func TestRolesSayThatTheyWaitForEtcd(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	ctx, failed := context.WithCancelCause(t.Context())
	k, err := minicluster.StartKafka(t.TempDir(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	etcd, dir, data := clitest.FreeAddr(t), t.TempDir(), t.TempDir()
	node, broker, coordinator := clitest.FreeAddr(t), clitest.FreeAddr(t), clitest.FreeAddr(t)
	serves := []string{clitest.FreeAddr(t), clitest.FreeAddr(t)} // of the node and of the broker
	n := start(t, failed, "node", "indexnode", "--config", clitest.WriteConfig(t, "node",
		"id: node-1\ndata: %s\nbrokers: [%q]\netcd: [%q]\nlisten: %q\nadmin: %q\n", data, k.Addr(), etcd, serves[0], node))
	b := start(t, failed, "broker", "broker", "--config", clitest.WriteConfig(t, "broker", "etcd: [%q]\ngrpc: %q\nadmin: %q\n", etcd, serves[1], broker))
	says := func(admin, path, want string) {
		t.Helper()
		got := ""
		defer func() {
			if t.Failed() {
				t.Logf("the last answer: %s", got)
			}
		}()
		clitest.WaitFor(ctx, t, fmt.Sprintf("%q at %s", want, path), func() bool {
			resp, err := http.Get("http://" + admin + path)
			if err != nil {
				return false
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			got = string(body)
			return err == nil && strings.Contains(got, want)
		})
	}
	keeps := t.TempDir() // of the coordinator
	co := start(t, failed, "coordinator", "coordinator", "--config", clitest.WriteConfig(t, "coordinator", "etcd: [%q]\ndata: %s\nadmin: %q\n", etcd, keeps, coordinator))
	for admin, p := range map[string]*process{node: n, broker: b, coordinator: co} {
		says(admin, "/livez", "ok")
		says(admin, "/readyz", "waiting for etcd at ["+etcd+"]")
		says(admin, "/metrics", `millrace_cluster_fault_seconds{of="cluster"}`)
		clitest.WaitFor(ctx, t, p.name+"'s log to say so", func() bool {
			log, err := os.ReadFile(p.log)
			return err == nil && strings.Contains(string(log), "waiting for etcd")
		})
	}
	// Their ports are taken already, so that nobody else takes them meanwhile.
	for _, addr := range serves {
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(io.Discard, c); n > 0 {
			t.Errorf("%s answers %d bytes, %v", addr, n, err)
		}
		c.Close()
	}
	var e *minicluster.Etcd
	clitest.WaitFor(ctx, t, "etcd to start", func() (started bool) { // somebody else may have its port for a moment
		var err error
		e, err = minicluster.StartEtcd(ctx, filepath.Join(dir, "etcd"), etcd)
		return err == nil
	})
	defer e.Close()
	says(broker, "/readyz", "no assignment yet")
	says(node, "/readyz", "no assignment yet")
	run(t, "cluster", "assign", "--etcd", etcd, "--nodes", "node-1", "--replicas", "1")
	says(broker, "/readyz", "ok")
	says(node, "/readyz", "ok")
	// One that hosts nothing is ready, or Kubernetes would wait for it.
	spare := clitest.FreeAddr(t)
	start(t, failed, "spare", "indexnode", "--config", clitest.WriteConfig(t, "spare",
		"id: node-2\ndata: %s\nbrokers: [%q]\netcd: [%q]\nlisten: %q\nadmin: %q\n", t.TempDir(), k.Addr(), etcd, clitest.FreeAddr(t), spare))
	says(spare, "/readyz", "no partition is assigned to this node")
	run(t, "ready", "--admin", spare)
	for who, data := range map[string]string{"node": data, "coordinator": keeps} {
		clitest.WaitFor(ctx, t, "the "+who+" to keep what it knows", func() bool {
			_, err := os.Stat(filepath.Join(clusters.LastGood(data), "map.json"))
			return err == nil
		})
	}
	n.kill()
	co.kill()
	e.Close()
	n.restart()
	co.restart()
	says(node, "/readyz", "ok")
	says(coordinator, "/readyz", "ok")
}
