package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/cmd/cli/clusters"
	"github.com/millrace/millrace/cmd/cli/reach"
	"github.com/millrace/millrace/internal/audit"
	"github.com/millrace/millrace/internal/figure"
)

// What is to be erased, and whose it is.
const (
	erasures = 5
	erased   = "member:2"
)

// erasable are records that erase deletes, and one that it leaves.
func (e *estate) erasable() string {
	lines := post("post:kept", erased)
	for i := range erasures {
		lines += post(fmt.Sprintf("post:erase-%d", i), erased)
	}
	return lines
}

// lateErasure is far above what an erasure may take, which is a figure.
const lateErasure = 30 * time.Second

// erase deletes records one after the other, and tells how long it took until no
// replica had one in its store, its cache or an answer, and no broker answered it:
// from when the command had returned, and from when the node wrote down that it was
// told to.
func (e *estate) erase() {
	e.t.Helper()
	var act, command time.Duration
	for i := range erasures {
		id := fmt.Sprintf("post:erase-%d", i)
		w := e.watch(id)
		clitest.WaitFor(e.ctx, e.t, id+" to be everywhere", w.everywhere)
		text, err := output("record", "delete", id, "--entity", erased, "--topic", e.prefix+"activity", "--apply", "--yes")
		returned := time.Now()
		if err != nil || !strings.Contains(text, "every replica that is there has applied it") {
			e.t.Fatalf("%s is not deleted: %v\n%s", id, err, text)
		}
		gone := w.gone()
		act, command = max(act, gone.Sub(e.told(id))), max(command, gone.Sub(returned))
	}
	e.t.Logf("the last trace of a record was gone %v after it was to be deleted, %v after the command", act.Round(time.Millisecond), command.Round(time.Millisecond))
	if act > lateErasure {
		e.t.Errorf("a record was gone %v after it was to be deleted", act)
	}
	if e.measured() {
		figure.Print("delete_gone_after_act", act.Seconds(), "s")
		figure.Print("delete_gone_after_command", max(0, command).Seconds(), "s")
	}
	for _, node := range []string{"node-1", "node-2"} {
		for _, in := range []string{"store", "cache"} {
			if text := run(e.t, "timeline", "get", erased, "--type", "post", "--in", in, "--node", node); !strings.Contains(text, "post:kept") || strings.Contains(text, "post:erase") {
				e.t.Errorf("the %s of %s, after deletions:\n%s", in, node, text)
			}
		}
	}
}

func (e *estate) acts(node string) string { return filepath.Join(e.audits, node) }

// told is when a node wrote down that it deletes a record, which it does first.
func (e *estate) told(id string) time.Time {
	e.t.Helper()
	for _, node := range []string{"node-1", "node-2"} {
		text, err := os.ReadFile(e.acts(node))
		if err != nil {
			e.t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			var a audit.Entry
			if err := json.Unmarshal([]byte(line), &a); err != nil {
				e.t.Fatal(err)
			}
			if a.Act == "delete" && strings.Contains(a.On, id) {
				return a.Time
			}
		}
	}
	e.t.Fatalf("no node has written down that %s is deleted", id)
	return time.Time{}
}

// watching asks everywhere for a record, again and again.
type watching struct {
	e    *estate
	id   string
	end  context.CancelFunc
	done sync.WaitGroup
	mu   struct {
		sync.Mutex
		seen, gone map[string]time.Time // when it was last there, and first not there any more
	}
}

// watch begins to ask each node for its store, its cache and answers, and each
// broker for answers.
func (e *estate) watch(id string) *watching {
	e.t.Helper()
	ctx, end := context.WithCancel(e.ctx)
	w := &watching{e: e, id: id, end: end}
	w.mu.seen, w.mu.gone = map[string]time.Time{}, map[string]time.Time{}
	for _, broker := range []string{"broker", "broker-2"} {
		cl := e.client(e.at[broker].grpc)
		e.t.Cleanup(func() { cl.Close() })
		w.every(ctx, []string{broker}, func() (map[string]bool, error) {
			resp, err := cl.GetFeed(ctx, &feedv1.GetFeedRequest{Feed: "recent", Viewer: oneRecord.Viewer, Entities: []string{erased}})
			has := map[string]bool{broker: false}
			for _, it := range resp.GetItems() {
				has[broker] = has[broker] || it.Id == id
			}
			return has, err
		})
	}
	s := reach.Security{TLS: e.me}
	how, err := s.Dial()
	if err != nil {
		e.t.Fatal(err)
	}
	for _, node := range []string{"node-1", "node-2"} {
		conn, err := grpc.NewClient(e.at[node].grpc, how)
		if err != nil {
			e.t.Fatal(err)
		}
		e.t.Cleanup(func() { conn.Close() })
		answers, store, cache := node+"'s answers", node+"'s store", node+"'s cache"
		asked := nodev1.NewNodeServiceClient(conn)
		w.every(ctx, []string{answers}, func() (map[string]bool, error) {
			resp, err := asked.Query(ctx, nodeRequest([]millrace.Entity{erased}, millrace.MinTime, millrace.MaxTime, "post"))
			has := map[string]bool{answers: false}
			for _, it := range resp.GetItems() {
				has[answers] = has[answers] || it.Id == id
			}
			return has, err
		})
		admin := nodev1.NewAdminServiceClient(conn)
		w.every(ctx, []string{store, cache}, func() (map[string]bool, error) {
			has := map[string]bool{store: false, cache: false}
			stream, err := admin.ReadTimeline(ctx, &nodev1.ReadTimelineRequest{Entity: erased, Type: "post", Store: true, Cache: true})
			return has, clusters.Receive(stream, err, func(m *nodev1.ReadTimelineResponse) error {
				for _, r := range m.Records {
					if r.Id == id {
						has[store], has[cache] = has[store] || r.InStore, has[cache] || r.InCache
					}
				}
				return nil
			})
		})
	}
	return w
}

// every asks until ctx ends, each answer with a pause behind it.
func (w *watching) every(ctx context.Context, places []string, ask func() (map[string]bool, error)) {
	w.mu.Lock()
	for _, p := range places {
		w.mu.seen[p] = time.Time{}
	}
	w.mu.Unlock()
	w.done.Go(func() {
		for ctx.Err() == nil {
			has, err := ask()
			now := time.Now()
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				w.e.t.Errorf("%v: %v", places, err)
				return
			}
			w.mu.Lock()
			for p, is := range has {
				if is {
					w.mu.seen[p] = now
					delete(w.mu.gone, p)
				} else if _, was := w.mu.gone[p]; !was && !w.mu.seen[p].IsZero() {
					w.mu.gone[p] = now
				}
			}
			w.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
}

// everywhere reports whether it was seen in all places.
func (w *watching) everywhere() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, at := range w.mu.seen {
		if at.IsZero() {
			return false
		}
	}
	return true
}

// gone waits until it is nowhere, and for some looks more that it stays away, and
// returns since when that is so.
func (w *watching) gone() (since time.Time) {
	w.e.t.Helper()
	nowhere := func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		since = time.Time{}
		for _, at := range w.mu.gone {
			if at.After(since) {
				since = at
			}
		}
		return len(w.mu.gone) == len(w.mu.seen) && time.Since(since) > 300*time.Millisecond
	}
	clitest.WaitFor(w.e.ctx, w.e.t, w.id+" to be nowhere", nowhere)
	w.end()
	w.done.Wait()
	return since
}
