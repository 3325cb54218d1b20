//go:build linux

package campaign

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/figure"
)

// ranker is a model whose score tells its version: a record with n likes has
// the score version * (n + 1).
const ranker = "ranker"

// TestModelsUnderFaults pushes versions of a model, rolls back, and restarts,
// kills and freezes one index node at a time. No answer has two versions, a
// second page has that of the first, and none is refused, since a replica of
// everything lives.
func TestModelsUnderFaults(t *testing.T) {
	w, s := loaded(t)
	enough, steps := 100_000, 40
	if s.short {
		enough, steps = 3_000, 4
	}
	m := &models{w: w, t: t}
	if err := m.push(1); err != nil {
		t.Fatal(err)
	}
	if err := eventually(w.ctx, patience, func(ctx context.Context) error { return m.everywhere(ctx) }); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(w.ctx)
	defer stop()
	var wg sync.WaitGroup
	wg.Go(func() { m.ask(ctx) })
	r := rand.New(rand.NewPCG(s.seed, 4))
	for step := 0; (m.answers() < enough || step < steps) && w.ctx.Err() == nil; step++ {
		m.step(r)
	}
	stop()
	wg.Wait()
	w.settle()
	m.mu.Lock()
	defer m.mu.Unlock()
	figure.Print("models_answers", float64(m.mu.answers), "answers")
	figure.Print("models_pushes", float64(m.version), "versions")
	figure.Print("models_two_versions", float64(w.history.found("two versions")), "answers")
	figure.Print("models_refused", float64(w.history.found("refused")), "questions")
	for _, kind := range []string{"two versions", "refused", "page of another version", "ended"} {
		if n := w.history.found(kind); n > 0 {
			t.Errorf("%d %s; the history is in %s", n, kind, w.history.path)
		}
	}
}

// models rolls versions out and asks for them.
type models struct {
	w       *world
	t       *testing.T
	version int // the newest

	mu struct {
		sync.Mutex
		answers int
	}
}

// push makes a pack of a version and hands it to the cluster.
func (m *models) push(version int) error {
	m.version = max(m.version, version)
	dir := filepath.Join(m.w.dir, fmt.Sprintf("%s-%d", ranker, version))
	if _, err := os.Stat(dir); err != nil {
		if err := m.seal(dir, version); err != nil {
			return err
		}
	}
	out, err := m.w.command("model", "push", dir, "--etcd", local(m.w.etcdAt))
	m.w.history.note("push", fmt.Sprintf("%d: %v: %s", version, err, out))
	return err
}

func (m *models) seal(dir string, version int) error {
	spec := fmt.Sprintf("name: %s\nversion: \"%d\"\nabout: its score tells its version\nschemas: [millrace.Activity]\nfeatures:\n  reach: record.likes + 1\nscorer: linear\nparameters:\n  weights:\n    reach: %d\n", ranker, version, version)
	if err := errors.Join(
		os.Mkdir(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "spec.yaml"), []byte(spec), 0o644),
		os.WriteFile(filepath.Join(dir, "card.md"), []byte("For a test.\n"), 0o644),
	); err != nil {
		return err
	}
	var err error
	for _, record := range []string{`,"record":{"likes":%d,"created_at":1767366000000},"as_of":1767369600000`, ""} {
		var golden strings.Builder
		for likes := range 20 {
			fmt.Fprintf(&golden, `{"features":{"reach":%d},"score":%d%s}`+"\n", likes+1, version*(likes+1), strings.Replace(record, "%d", strconv.Itoa(likes), 1))
		}
		if err = os.WriteFile(filepath.Join(dir, "golden.ndjson"), []byte(golden.String()), 0o644); err != nil {
			return err
		}
		if _, err = m.w.command("model", "seal", dir); err == nil {
			return nil
		}
	}
	return err
}

// everywhere says whether every broker answers by the model.
func (m *models) everywhere(ctx context.Context) error {
	for i := range brokers {
		resp, err := m.w.asker.clients[i].GetFeed(ctx, m.request(rand.New(rand.NewPCG(1, 1))))
		if err != nil {
			return err
		}
		if resp.Receipt.ModelVersion == "" {
			return errors.New("no version in the receipt")
		}
	}
	return nil
}

func (m *models) request(r *rand.Rand) *feedv1.GetFeedRequest {
	req := &feedv1.GetFeedRequest{Feed: "recent", Model: ranker, Viewer: &feedv1.Viewer{Id: "v"}, Limit: new(int64(10))}
	for _, n := range r.Perm(members)[:12] {
		req.Entities = append(req.Entities, fmt.Sprintf("member:%d", n))
	}
	return req
}

// modelQuestions is how many are asked a second.
const modelQuestions = 150

// ask asks for a page and the one after it, until ctx is done.
func (m *models) ask(ctx context.Context) {
	r := rand.New(rand.NewPCG(5, 5))
	tick := time.NewTicker(2 * time.Second / modelQuestions)
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		req := m.request(r)
		wg.Go(func() { m.pages(ctx, i%brokers, req) })
	}
}

func (m *models) pages(ctx context.Context, broker int, req *feedv1.GetFeedRequest) {
	first := ""
	for range 2 {
		call, cancel := context.WithTimeout(ctx, askWithin)
		resp, err := m.w.asker.clients[broker].GetFeed(call, req)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			m.w.told("refused", fmt.Sprintf("%v, at broker-%d", err, broker+1))
			return
		}
		m.check(resp)
		if version := resp.Receipt.ModelVersion; first == "" {
			first = version
		} else if version != first {
			m.w.told("page of another version", fmt.Sprintf("%s after %s", version, first))
		}
		if req.PageToken = resp.NextPageToken; req.PageToken == "" {
			return
		}
	}
}

// check holds the score of every item against the version that the receipt
// names.
func (m *models) check(resp *feedv1.GetFeedResponse) {
	m.mu.Lock()
	m.mu.answers++
	m.mu.Unlock()
	if len(resp.Items) == 0 {
		return
	}
	version, err := strconv.Atoi(resp.Receipt.ModelVersion)
	if err != nil {
		m.w.told("two versions", fmt.Sprintf("the receipt says %q", resp.Receipt.ModelVersion))
		return
	}
	for _, item := range resp.Items {
		likes := item.Record.Fields["likes"].GetNumberValue()
		if want := float64(version) * (likes + 1); item.Score != want {
			m.w.told("two versions", fmt.Sprintf("%s has %v likes and the score %v, which is not that of version %d", item.Id, likes, item.Score, version))
			return
		}
	}
}

func (m *models) answers() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mu.answers
}

// step changes what serves, or breaks a node while it changes, and goes on when
// the node is back and more questions were answered.
func (m *models) step(r *rand.Rand) {
	before := m.answers()
	node := m.w.nodes[r.IntN(nodes)]
	change := pick(r, m.next, m.next, m.older, m.rollback)
	what := pick(r, "", "restarted", "killed", "frozen")
	m.w.history.note("step", node.name+" "+what)
	switch what {
	case "restarted":
		node.kill(syscall.SIGTERM)
	case "killed":
		node.kill(syscall.SIGKILL)
	case "frozen":
		node.signal(syscall.SIGSTOP)
	}
	changed := make(chan error, 1)
	go func() { changed <- change(r) }()
	if what != "" {
		select { // for longer than a lease, at times
		case <-m.w.ctx.Done():
		case <-time.After(pick(r, time.Second, 15*time.Second)):
		}
		node.signal(syscall.SIGCONT)
		if err := node.start(); err != nil {
			m.t.Error(err)
		}
	}
	if err := <-changed; err != nil {
		m.w.history.note("not changed", err.Error()) // a node that was away has not answered
	}
	if err := m.w.whole(m.w.ctx); err != nil {
		m.w.told("unhealed", err.Error())
	}
	if err := eventually(m.w.ctx, patience, func(context.Context) error {
		if m.answers() < before+300 {
			return errors.New("too few answers")
		}
		return nil
	}); err != nil {
		m.t.Error(err)
	}
}

func (m *models) next(*rand.Rand) error { return m.push(m.version + 1) }

// older pushes a version again that was pushed before.
func (m *models) older(r *rand.Rand) error { return m.push(1 + r.IntN(m.version)) }

func (m *models) rollback(*rand.Rand) error {
	out, err := m.w.command("model", "rollback", ranker, "--apply", "--yes", "--etcd", local(m.w.etcdAt))
	m.w.history.note("rollback", fmt.Sprintf("%v: %s", err, out))
	return err
}
