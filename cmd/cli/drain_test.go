//go:build linux

package cli

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// An index node that is told to stop says on its admin port that it is not
// ready, and goes on; told again, it ends at once.
func TestTheSecondSignalEndsADrain(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	ctx, failed := context.WithCancelCause(clitest.Bounded(t))
	kafkaAt, etcdAt := neighbours(t, ctx, "drain-")
	admin := clitest.FreeAddr(t)
	node := start(t, failed, "node-1", "indexnode", "--config", clitest.WriteConfig(t, "node-1",
		"id: node-1\ndata: %s\nbrokers: [%q]\ntopic_prefix: drain-\netcd: [%q]\nlisten: %q\nadmin: %q\ndrain: 1h\n", t.TempDir(), kafkaAt, etcdAt, clitest.FreeAddr(t), admin))
	clitest.WaitFor(ctx, t, "the node to be ready", func() bool { return clitest.SaysReady(admin) == "ok\n" })
	node.killed.Store(true)
	node.signal(syscall.SIGTERM)
	clitest.WaitFor(ctx, t, "the node to say that it is being stopped", func() bool { return strings.Contains(clitest.SaysReady(admin), "being stopped") })
	node.signal(syscall.SIGTERM)
	select {
	case <-node.ended:
	case <-ctx.Done():
		t.Error("the second signal did not end it")
	}
}
