package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/internal/cluster/artefacts"
	"github.com/millrace/millrace/internal/minicluster"
	"github.com/millrace/millrace/schemas"
)

// TestFeedDefinitionCommands: a definition that callers could not be answered
// by is refused before it is stored, every change has a version, and each can
// be taken back.
func TestFeedDefinitionCommands(t *testing.T) {
	t.Parallel()
	ctx := clitest.Bounded(t)
	c := twoNotes(t, ctx, 2)
	file := filepath.Join(t.TempDir(), "stars.yaml")
	feed := func(args ...string) (string, error) {
		var out bytes.Buffer
		cmd := root()
		cmd.SetOut(&out)
		cmd.SetErr(&out)
		cmd.SetArgs(append([]string{"feed"}, args...))
		err := cmd.ExecuteContext(ctx)
		return out.String(), err
	}
	on := func(args ...string) (string, error) { return feed(append(args, "--etcd", c.Etcd)...) }
	define := func(text string) (string, error) {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return on("define", file)
	}
	wants := func(what, got string, err error, want string) {
		t.Helper()
		if err != nil || !strings.Contains(got, want) {
			t.Errorf("%s: want %q in %q, %v", what, want, got, err)
		}
	}
	// answers waits until callers of the feed see as many items.
	answers := func(what string, items int) {
		t.Helper()
		for {
			out, err := feed("--addr", c.GRPC, "--feed", "stars", "--viewer", "me", "--entities", "member:1")
			if err == nil && strings.Contains(out, "\n"+string(rune('0'+items))+" items;") {
				return
			}
			if ctx.Err() != nil {
				t.Fatalf("%s: want %d items in %q, %v", what, items, out, err)
			}
		}
	}

	out, err := define("name: stars\nmodel: recency\nfilter: record.stars >= 3\n")
	wants("define", out, err, "feed stars is defined, version 1\n")
	answers("version 1", 1)
	for text, want := range map[string]string{
		"name: stars\nmodel: recency\nfilter: record.strs >= 3\n":    "no field strs",
		"name: stars\nmodel: recency\nfilter: record.stars == 'x'\n": "index node node-",
		"name: stars\nmodel: nope\n":                                 `model: no model "nope" serves; push it first, or name one of`,
		"name: stars\nmodel: recency\nshadow: [none]\n":              `shadow[0]: no model "none" serves`,
		"name: stars\nmodel: recency\nfliter: true\n":                "line 3, column 1: fliter: there is no such field",
		"name: stars\nmodel: recency\nlimit: 5000\n":                 "limit: 5000 is not between",
		"name: stars\nmodel: &m recency\nshadow: [*m]\n":             "line 2, column 8: the anchor &m",
	} {
		if out, err := define(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: want %q in %v; it printed %q", text, want, err, out)
		}
	}
	out, err = on("history", "stars")
	wants("history after refusals", out, err, "serving: version 1\n")
	if strings.Contains(out, "  2 ") {
		t.Errorf("a refused definition is in the history:\n%s", out)
	}

	out, err = define("name: stars\nmodel: recency\n")
	wants("define again", out, err, "feed stars is defined, version 2\n")
	answers("version 2", 2)
	out, err = define("name: stars\nmodel: recency\nlimit: 1\n")
	wants("define a third time", out, err, "version 3\n")
	answers("version 3", 1)
	out, err = on("rollback", "stars")
	wants("a rollback that is dry", out, err, "from version 3 back to 2\n- limit: 1\n")
	answers("dry", 1)
	out, err = on("rollback", "stars", "--apply", "--yes")
	wants("rollback", out, err, "feed stars is as it was before, version 2\n")
	answers("rolled back", 2)
	out, err = on("show", "stars", "1")
	wants("show version 1", out, err, "# cluster, version 1\nname: stars\nmodel: recency\nfilter: record.stars >= 3\n")
	out, err = on("diff", file)
	wants("diff", out, err, "+ limit: 1\n")
	out, err = define("name: closed\nmodel: home\nprivate: true\n")
	wants("a private feed", out, err, "requests for the built-in recent and home are refused")
	out, err = define("name: home\nmodel: home\nprivate: true\n")
	wants("a private feed in place of a built-in", out, err, "requests for the built-in recent are refused")
	const opens = "no feed closes the built-in home and recent then: requests for them "
	out, err = on("drop", "closed", "--apply", "--yes")
	if wants("a drop of one of two private feeds", out, err, ""); strings.Contains(out, "no feed closes") {
		t.Errorf("another private feed stays: %q", out)
	}
	out, err = on("drop", "home")
	wants("a drop of the last private feed, that is dry", out, err, "no feed closes the built-in recent then: requests for them would be answered again, whoever asks")
	_, err = on("drop", "home", "--apply", "--yes")
	wants("drop", "", err, "")
	for range 2 { // to what was before, and to what is public
		_, err = define("name: closed\nmodel: home\n")
		wants("a public feed", "", err, "")
		_, err = define("name: closed\nmodel: home\nprivate: true\n")
		wants("a private feed", "", err, "")
		out, err = on("rollback", "closed", "--apply", "--yes")
		wants("a rollback from the last private feed", out, err, opens+"would be answered again")
	}
	_, err = define("name: closed\nmodel: home\nprivate: true\n")
	wants("a private feed", "", err, "")
	out, err = define("name: closed\nmodel: home\nlimit: 9\n")
	wants("a definition in place of the last private feed", out, err, opens+"are answered again")
	out, err = on("drop", "closed", "--apply", "--yes")
	if wants("a drop of a public feed", out, err, ""); strings.Contains(out, "no feed closes") {
		t.Errorf("it closed nothing: %q", out)
	}
	out, err = define("name: open\nmodel: home\n")
	if wants("a feed that closes nothing", out, err, ""); strings.Contains(out, "refused") {
		t.Errorf("a feed that closes nothing: %q", out)
	}
	out, err = define("name: recent\nmodel: home\n")
	wants("a built-in", out, err, "it serves in place of the built-in feed recent")

	// What was stored by other means breaks no caller, and is told.
	bypass(ctx, t, c.Etcd, "stars", "name: stars\nmodel: recency\nfilter: record.strs > 1\n")
	metricTold(ctx, t, c.Admin, `millrace_broker_definition_fault{feed="stars"} 1`)
	out, err = on("list")
	wants("list", out, err, "index node node-1: filter")
	wants("list", out, err, "cluster, version 1, in place of the built-in one")
	answers("a bad version", 2)

	out, err = on("drop", "recent")
	wants("a drop that is dry", out, err, "with the versions 1; nobody could go back to them\nthe built-in feed recent would serve again\n- model: home\n+ model: recency\n")
	out, err = on("drop", "recent", "--apply", "--yes")
	wants("drop", out, err, "feed recent is dropped\nthe built-in feed recent serves again\n")
}

// bypass stores and serves a definition that nobody has checked.
func bypass(ctx context.Context, t *testing.T, etcd, name, text string) {
	t.Helper()
	cm := clusters.Flags{Etcd: []string{etcd}}
	cl, err := cm.Open(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	versions, err := artefacts.Watch(ctx, cl, feeds.Kind)
	if err != nil {
		t.Fatal(err)
	}
	v, _, err := versions.Publish(ctx, name, "", []byte(text), "nobody")
	if err == nil {
		err = versions.Serve(ctx, v, (*artefacts.Version)(nil), "nobody")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// metricTold waits until a process's metrics have a line.
func metricTold(ctx context.Context, t *testing.T, admin, line string) {
	t.Helper()
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+admin+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatalf("no metrics with %s: %v", line, err)
		}
		text, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		if err == nil && bytes.Contains(text, []byte("\n"+line+"\n")) {
			return
		}
	}
}

// twoNotes starts a cluster in which member:1 has the notes a, of five stars, and b,
// of one. It ends with the test.
func twoNotes(t *testing.T, ctx context.Context, nodes int) *minicluster.Cluster {
	t.Helper()
	c, err := minicluster.Start(ctx, minicluster.Config{Dir: t.TempDir(), Nodes: nodes})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Note(), clitest.Lines(
		`{"id":"a","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z","stars":5}`,
		`{"id":"b","author":"member:1","kind":"post","at":"2026-01-02T00:00:00Z","stars":1}`,
	)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.WaitReady(ctx), c.WaitIndexed(ctx)); err != nil {
		t.Fatal(err)
	}
	return c
}
