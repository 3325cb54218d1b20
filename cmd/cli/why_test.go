package cli

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/cmd/cli/clitest"
)

func TestWhyAndTraceCommands(t *testing.T) {
	t.Parallel()
	ctx := clitest.Bounded(t)
	c := twoNotes(t, ctx, 1)
	for record, want := range map[string]string{
		"a": "a in member:1/post: shown: it is in the answer, at place 1\n",
		"b": "b in member:1/post: filtered: the filter drops it: record.stars > 2 is false, where record.stars = 1\n",
		"c": "c: never_ingested: no timeline of the entities asked has it",
	} {
		var out bytes.Buffer
		cmd := root()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"why", "--addr", c.GRPC, "--record", record, "--entities", "member:1", "--filter", `record.kind == "post" && record.stars > 2`})
		if err := cmd.ExecuteContext(ctx); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s: got %q, want %q", record, out.String(), want)
		}
		if names := strings.Contains(out.String(), "millrace deadletters list --containing c\n"); names != (record == "c") {
			t.Errorf("%s: names the dead letters: %v: %q", record, names, out.String())
		}
	}
	checkTrace(ctx, t, c.Etcd)
}

// A viewer's trace is switched on and off in the cluster.
func checkTrace(ctx context.Context, t *testing.T, etcd string) {
	t.Helper()
	for _, c := range []struct{ flag, want string }{{"--for=1m", "member:9 is traced until 20"}, {"--off", "member:9 is not traced"}} {
		var out bytes.Buffer
		cmd := root()
		cmd.SetOut(&out)
		cmd.SetArgs([]string{"trace", "--etcd", etcd, "--viewer", "member:9", c.flag})
		if err := cmd.ExecuteContext(ctx); err != nil || !strings.HasPrefix(out.String(), c.want) {
			t.Errorf("%s: got %q, %v, want %q", c.flag, out.String(), err, c.want)
		}
	}
}
