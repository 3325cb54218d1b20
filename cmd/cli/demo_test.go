package cli

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

// dev reads the topics that it is told, also those that a later start adds.
func TestDevReadsFurtherTopics(t *testing.T) {
	clitest.StartsProcesses(t)
	t.Parallel()
	ctx, failed := context.WithCancelCause(t.Context())
	dir, grpc, kafka, admin := t.TempDir(), clitest.FreeAddr(t), clitest.FreeAddr(t), clitest.FreeAddr(t)
	dev := func(name string, more ...string) *process {
		t.Helper()
		p := start(t, failed, name, append([]string{"dev", "--data", filepath.Join(dir, "data"), "--nodes", "1", "--grpc", grpc,
			"--kafka-listen", kafka, "--http", clitest.FreeAddr(t), "--etcd-listen", clitest.FreeAddr(t), "--admin", admin}, more...)...)
		clitest.WaitFor(ctx, t, "dev to be ready", func() bool {
			text, err := os.ReadFile(p.log)
			return err == nil && strings.Contains(string(text), "stays up until Ctrl-C")
		})
		return p
	}
	load := func(topic, schema, line string) string {
		t.Helper()
		file := filepath.Join(dir, topic+".ndjson")
		if err := os.WriteFile(file, []byte(line+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := output("load", "--topic", topic, "--schema", schema, "--brokers", kafka, "--wait", "20s", file)
		if err != nil {
			return out + err.Error()
		}
		return "loaded"
	}
	has := func(id string) {
		t.Helper()
		clitest.WaitFor(ctx, t, id+" to be in the feed", func() bool {
			out, err := output("feed", "--addr", grpc, "--viewer", "me", "--entities", "member:1")
			return err == nil && strings.Contains(out, " "+id+" ")
		})
	}
	first := dev("first")
	if got := load("notes", "note", `{"id":"n1","author":"member:1","kind":"post","at":"2026-01-01T08:00:00Z"}`); !strings.Contains(got, "those that run consume activity, entity-features") {
		t.Errorf("a topic that dev does not read: %s", got)
	}
	first.end()
	second := dev("second", "--content", "activity,notes", "--features", "entity-features,signals")
	for topic, l := range map[string][2]string{
		"notes":    {"note", `{"id":"n2","author":"member:1","kind":"post","at":"2026-01-01T08:00:00Z"}`},
		"activity": {"activity", `{"id":"a1","actor":"member:1","verb":"post","created_at":"2026-01-01T09:00:00Z"}`},
		"signals":  {"features", `{"entity":"member:1","subject":"member:1","updated_at":"2026-03-01T11:00:00Z","engagement":0.5}`},
	} {
		if got := load(topic, l[0], l[1]); got != "loaded" {
			t.Errorf("load into %s: %s", topic, got)
		}
	}
	has("n2")
	has("a1")
	second.end()
}
