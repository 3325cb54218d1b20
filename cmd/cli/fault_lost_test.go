//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/internal/cluster/steering"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/cmd/cli/clitest"
	"github.com/millrace/millrace/internal/cluster"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// TestFaultLostReplicas kills both replicas of a third of the partitions while
// it asks. Whatever is missing from an answer is named in it, and the rest is
// exact; who demands everything is refused; and with the nodes back all is as
// before.
func TestFaultLostReplicas(t *testing.T) {
	lasts, _ := faultTime(t, time.Second)
	c := startFaultCluster(t, 3, loadLines())
	asker := c.newAsker()
	stop := asker.run()
	asker.await(lasts)

	lost := map[millrace.Partition]bool{}
	cl, err := cluster.Open(t.Context(), cluster.Config{Endpoints: []string{c.etcd.Addr()}, Name: "millrace", ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	a, _, err := steering.Assigned(t.Context(), cl)
	if err != nil {
		t.Fatal(err)
	}
	for p, owners := range a.Replicas {
		lost[millrace.Partition(p)] = owners[0] != "node-3" && owners[1] != "node-3"
	}
	c.nodes[0].kill()
	asker.await(lasts)
	asker.partial.Store(true)
	c.nodes[1].kill()
	asker.await(lasts)
	stop()

	flagged := 0
	for range 200 {
		q := asker.draw()
		resp, err := c.ask(c.ctx, q.request())
		missing := asker.check(q, resp, err)
		affected := false
		for _, e := range q.Entities {
			p := partition.Of(e)
			affected = affected || lost[p]
			if err == nil && lost[p] != (missing[p] != "") {
				t.Fatalf("partition %d: lost is %t, missing %q", p, lost[p], missing[p])
			}
		}
		req := q.request()
		req.MinCoverage = 1
		_, err = c.ask(c.ctx, req)
		var refused *millrace.Error
		switch {
		case !affected && err != nil:
			t.Fatalf("an unaffected request is refused: %v", err)
		case affected && !(errors.As(err, &refused) && (refused.Reason == millrace.ReasonCoverage || refused.Reason == millrace.ReasonUnavailable)):
			t.Fatalf("min_coverage gives %v for an affected request", err)
		case affected:
			flagged++
		}
	}
	t.Logf("%d of 200 requests were affected and flagged", flagged)

	c.nodes[0].restart()
	c.nodes[1].restart()
	c.waitWhole()
	asker.partial.Store(false)
	stop = asker.run()
	asker.await(lasts)
	stop()
}

// asker asks random questions and holds the answers against the oracle's.
type asker struct {
	c       *faultCluster
	eval    *oracle.Eval
	partial atomic.Bool // answers may lack something

	mu struct {
		sync.Mutex
		r     *rand.Rand
		asked int
	}
}

func (c *faultCluster) newAsker() *asker {
	c.t.Helper()
	a := &asker{c: c}
	seed := uint64(time.Now().UnixNano())
	c.t.Logf("seed %d", seed)
	a.mu.r = rand.New(rand.NewPCG(seed, 1))
	var err error
	if a.eval, err = oracle.NewEval(schemas.Activity()); err != nil {
		c.t.Fatal(err)
	}
	return a
}

type question struct{ oracle.Question }

// draw draws a question to one of the built-in feeds.
func (a *asker) draw() question {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.mu.r
	q := question{oracle.Question{
		From: millrace.MinTime, To: millrace.MaxTime, AsOf: millrace.TimeOf(loadBegan.AddDate(0, 1, 0)),
		Model: "recency", Viewer: millrace.Viewer{ID: fmt.Sprint("viewer:", r.IntN(100))}, Limit: 1 + r.IntN(50),
	}}
	if r.IntN(2) == 0 {
		q.Model, q.Cap, q.Distinct = "home", 3, true
		q.Types = []millrace.ContentType{"post", "share", "like", "comment"}
	}
	if r.IntN(2) == 0 {
		q.To = millrace.TimeOf(loadBegan.Add(time.Duration(r.IntN(loadMembers*loadEach)) * time.Minute))
	}
	for _, m := range r.Perm(loadMembers)[:1+r.IntN(20)] {
		q.Entities = append(q.Entities, millrace.Entity(fmt.Sprintf("member:%d", m)))
	}
	return q
}

func (q question) request() *feedv1.GetFeedRequest {
	req := &feedv1.GetFeedRequest{Feed: "recent", Viewer: &feedv1.Viewer{Id: q.Viewer.ID}, Limit: new(int64(q.Limit)), AsOf: timestamppb.New(q.AsOf.Std())}
	if q.Distinct {
		req.Feed = "home"
	}
	if q.To < millrace.MaxTime {
		req.To = timestamppb.New(q.To.Std())
	}
	for _, e := range q.Entities {
		req.Entities = append(req.Entities, string(e))
	}
	return req
}

// check holds an answer against the oracle's for the partitions that it does
// not call missing, and returns those that it does.
func (a *asker) check(q question, resp *feedv1.GetFeedResponse, err error) map[millrace.Partition]string {
	a.c.t.Helper()
	missing := map[millrace.Partition]string{}
	var refused *millrace.Error
	switch {
	case a.partial.Load() && errors.As(err, &refused) && refused.Reason == millrace.ReasonUnavailable:
		return nil // nothing was answered, and it says so
	case err != nil:
		a.c.t.Errorf("%v\n%v", err, q)
		return nil
	}
	for _, m := range resp.Coverage.Missing {
		missing[millrace.Partition(m.Partition)] = m.Reason
	}
	if len(missing) > 0 && !a.partial.Load() {
		a.c.t.Errorf("missing without need: %v\n%v", missing, q)
	}
	covered := q.Question
	covered.Entities = nil
	for _, e := range q.Entities {
		if missing[partition.Of(e)] == "" {
			covered.Entities = append(covered.Entities, e)
		}
	}
	query, err := a.eval.Query(covered)
	if err != nil {
		a.c.t.Fatal(err)
	}
	if diff := oracle.Diff(a.c.truth.Query(query).Items, oracle.FeedItems(resp.Items)); diff != "" {
		a.c.t.Errorf("differs, without %v:\n%s\n%v", missing, diff, q)
	}
	return missing
}

// run asks one question after the other, until it is told to stop.
func (a *asker) run() (stop func()) {
	ctx, cancel := context.WithCancel(a.c.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil && !a.c.t.Failed() {
			q := a.draw()
			resp, err := a.c.ask(ctx, q.request())
			if ctx.Err() == nil {
				a.check(q, resp, err)
			}
			a.mu.Lock()
			a.mu.asked++
			a.mu.Unlock()
		}
	}()
	stop = func() { cancel(); <-done }
	a.c.t.Cleanup(stop) // before what it asks is taken down
	return stop
}

// await returns when a time has passed and twenty more questions were asked in
// it.
func (a *asker) await(d time.Duration) {
	a.c.t.Helper()
	asked := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.mu.asked
	}
	began, from := time.Now(), asked()
	for time.Since(began) < d && !a.c.t.Failed() {
		select {
		case <-a.c.ctx.Done():
			a.c.t.Fatal(context.Cause(a.c.ctx))
		case <-time.After(20 * time.Millisecond):
		}
	}
	clitest.WaitFor(a.c.ctx, a.c.t, "questions to be answered", func() bool { return a.c.t.Failed() || asked() >= from+20 })
}
