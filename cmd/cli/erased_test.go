package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A record that was deleted comes back by no restore of an older backup: the one
// of before has it, and is without it once the log is applied, in the store, the
// cache and answers.
func TestADeletedRecordStaysGoneAfterARestore(t *testing.T) {
	const member = string(oneMember)
	t.Parallel()
	b := newBackedUp(t)
	b.post("post:erased")
	b.post("post:kept")
	b.await()
	b.run("cut before", "cut", "--name", "before", "--brokers", b.c.Kafka)
	command := func(line string) string {
		out, err := execute(b.ctx, append(strings.Fields(line), "--etcd", b.c.Etcd)...)
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return out
	}
	command("record delete post:erased --entity " + member + " --apply --yes")
	gone := func(when string) {
		t.Helper()
		answer, err := execute(b.ctx, "feed", "--addr", b.c.GRPC, "--viewer", "me", "--entities", member)
		b.check(err)
		for from, text := range map[string]string{
			"answers": answer, "the store": command("timeline get " + member + " --type post --in store"), "the cache": command("timeline get " + member + " --type post --in cache"),
		} {
			if strings.Contains(text, "post:erased") || !strings.Contains(text, "post:kept") {
				t.Errorf("%s, %s:\n%s", when, from, text)
			}
		}
	}
	gone("deleted")
	b.check(b.stop())

	out := filepath.Join(b.dir, "posts")
	b.run("records", "restore", "--to", "before", "--entity", member, "--type", "post", "--out", out)
	if text, err := os.ReadFile(out); err != nil || !strings.Contains(string(text), "post:erased") {
		t.Fatalf("the backup of before never had it: %v\n%s", err, text)
	}
	dir := filepath.Join(b.dir, "cluster")
	data := filepath.Join(dir, "node-1")
	b.check(os.Rename(filepath.Join(data, "store"), filepath.Join(data, "store.lost")))
	b.run("partitions are as of the cut before", "restore", "--to", "before", "--data", data, "--partitions", some)
	b.c = b.start(dir, nil)
	b.check(b.c.WaitIndexed(b.ctx)) // the log is applied
	gone("restored")
}
