package cli

import (
	"context"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/minicluster"
)

// TestBackupPage does what docs/backup.md says, with two Kafkas that outlive the
// clusters.
func TestBackupPage(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	ctx := clitest.Bounded(t)
	p := newPage(ctx, t, "docs/backup.md")
	east, west := startKafka(t, p.real.Replace("127.0.0.1:9092")), startKafka(t, clitest.FreeAddr(t))
	p.rename("127.0.0.1:9192", west)
	p.tools = map[string]func(){"kafka-topics.sh": func() { deleteLog(ctx, t, east) }}
	p.carryOut(p.blocks())
}

func startKafka(t *testing.T, addr string) string {
	t.Helper()
	k, err := minicluster.StartKafka(t.TempDir(), addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k.Addr()
}

// deleteLog deletes the topics that nodes read.
func deleteLog(ctx context.Context, t *testing.T, addr string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	gone, err := kadm.NewClient(cl).DeleteTopics(ctx, "timeline", "features")
	if err == nil {
		err = gone.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
}
