//go:build linux

package campaign

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/figure"
)

// before is the last version whose nodes and brokers know of no protocol and of
// no moves.
const before = "203a57fb"

// still is an entity that nobody writes to but [TestVersionsMix], which then
// reads all of it by pages.
const (
	still        = "still:1"
	stillRecords = 40
	stillPage    = 7
)

// TestVersionsMix upgrades a cluster of the version before, a process at a time,
// under load, and goes back: index nodes first and brokers last, and the other
// way round, as docs/resizing.md has it. Every answer equals the log, and pages
// are whole at any broker that began them. In the wrong order a page is refused,
// and never repeats what an earlier one served. The short list changes one
// process of each role.
func TestVersionsMix(t *testing.T) {
	s := need(t)
	old := buildBefore(t)
	s.roles = old
	w := startResizing(t, s, "versions")
	w.load.burst(w.ctx, 10*members)
	w.addStill()
	w.settle()
	stop := w.underLoad()
	defer stop()
	w.pages("all of before", true)

	w.chapter("a new node among those of before")
	w.roles = w.binary
	w.add("node-4")
	w.do("node", "add", "node-4", "--apply", "--wait")
	w.counts("from 3 to 4", 4, 360)
	w.settleOwners()
	w.pages("with a new node", true)

	changed, brokers, partitioners := w.nodes[:nodes], w.brokers, w.partitioners
	if s.short {
		changed, brokers, partitioners = changed[:1], brokers[:1], partitioners[:1]
	}
	for _, n := range changed {
		w.change(n, w.binary)
		w.pages(n.name+" is new", true)
	}
	for _, b := range brokers {
		w.change(b, w.binary)
		w.pages(b.name+" is new", true)
	}
	for _, p := range partitioners {
		w.change(p, w.binary)
	}
	w.pages("each role is new", true)

	for _, p := range partitioners {
		w.change(p, old)
	}
	for _, b := range brokers {
		w.change(b, old)
		w.pages(b.name+" is of before again", true)
	}
	w.do("node", "drain", "node-4", "--apply", "--wait")
	w.counts("from 4 to 3", 3, 360)
	w.stop("node-4")
	w.nodes, w.clients = w.nodes[:nodes], w.clients[:nodes]
	w.settleOwners()
	for _, n := range changed {
		w.change(n, old)
		w.pages(n.name+" is of before again", true)
	}

	w.chapter("the wrong order")
	for _, b := range brokers {
		w.change(b, w.binary)
	}
	w.pages("brokers are new, nodes of before", false)
	for _, n := range changed {
		w.change(n, w.binary)
	}
	w.pages("nodes are new, too", true)

	stop()
	w.asker.drain()
	sum := w.asker.take()
	t.Log(sum)
	figure.Print("versions_answers", float64(sum.whole+sum.flagged+sum.partial), "answers")
	figure.Print("versions_refused", float64(sum.refused), "questions")
	figure.Print("versions_partial", float64(sum.partial), "answers")
	if sum.refused > 0 {
		t.Errorf("%d questions were refused", sum.refused)
	}
	w.ends3()
	w.verdict()
}

// buildBefore builds the version before from the repository's history.
func buildBefore(t *testing.T) string {
	t.Helper()
	run := func(dir, name string, args ...string) (string, error) {
		cmd := exec.Command(name, args...)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(out)), err
	}
	root, err := run(".", "git", "rev-parse", "--show-toplevel")
	if err != nil {
		t.Skip("needs the repository, for the version before: " + root)
	}
	if out, err := run(".", "git", "cat-file", "-e", before+"^{commit}"); err != nil {
		t.Skip("needs the repository's history, for the version before (git fetch --unshallow): " + out)
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "millrace")
	for _, args := range [][]string{
		{root, "git", "archive", "-o", filepath.Join(dir, "before.tar"), before},
		{dir, "tar", "-xf", "before.tar"},
		{dir, "go", "build", "-o", binary, "./cmd/millrace"},
	} {
		if out, err := run(args[0], args[1], args[2:]...); err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args[1:], " "), err, out)
		}
	}
	t.Cleanup(func() { os.Remove(public("before")) })
	if err := errors.Join(os.Rename(binary, public("before")), os.Chmod(public("before"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return public("before")
}

func (w *resizing) chapter(of string) { w.history.chapter(of); w.t.Log(of) }

// change restarts a process as another version, and waits until all is whole.
// Callers ask another broker meanwhile, as behind a load balancer.
func (w *resizing) change(p *process, binary string) {
	w.t.Helper()
	w.asker.spared.Store(int64(1 + slices.Index(w.brokers, p)))
	defer w.asker.spared.Store(0)
	time.Sleep(time.Second) // what it was asked is answered
	p.kill(syscall.SIGTERM)
	p.args[0] = binary
	if err := p.start(); err != nil {
		w.t.Fatal(err)
	}
	w.settle()
	w.t.Logf("%s runs %s", p.name, filepath.Base(binary))
}

// addStill sends the records that pages are made of.
func (w *resizing) addStill() {
	w.t.Helper()
	at := millrace.TimeOf(time.Now())
	for i := range stillRecords {
		w.load.send(w.ctx, content, 0, fmt.Appendf(nil, `{"id":"s%d","actor":%q,"verb":"post","created_at":%d,"version":0}`, i, still, at-millrace.Time(1000*i)))
	}
	if err := w.load.cl.Flush(w.ctx); err != nil {
		w.t.Fatal(err)
	}
}

// pages reads all of the still entity by pages, at each broker. Nothing comes
// twice, or out of turn; nothing is refused, if it is to be whole.
func (w *resizing) pages(when string, whole bool) {
	w.t.Helper()
	for i, c := range w.asker.clients {
		req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: "v"}, Entities: []string{still}, Limit: new(int64(stillPage))}
		var got []string
		var refused error
		for {
			resp, err := c.GetFeed(w.ctx, req)
			if err != nil {
				refused = err
				break
			}
			for _, it := range resp.Items {
				got = append(got, it.Id)
			}
			if req.PageToken = resp.NextPageToken; req.PageToken == "" {
				break
			}
		}
		want := stillIDs()
		if whole && !slices.Equal(got, want) || !slices.Equal(got, want[:min(len(got), len(want))]) {
			w.told("wrong", fmt.Sprintf("%s: broker-%d has the pages %v, %v", when, i+1, got, refused))
		}
		if refused != nil {
			w.t.Logf("%s: broker-%d has %d records, then %v", when, i+1, len(got), refused)
		}
	}
}

func stillIDs() (ids []string) {
	for i := range stillRecords {
		ids = append(ids, fmt.Sprintf("s%d", i))
	}
	return ids
}
