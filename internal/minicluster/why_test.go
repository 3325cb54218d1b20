package minicluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/indexnode"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/schemas"
)

// withDeletions yields every line of the sample, and then a tombstone for one
// record in nine.
func withDeletions() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		var tombstones [][]byte
		n := 0
		for line := range sample.Records() {
			if n++; n%9 == 0 {
				record := map[string]any{}
				if err := json.Unmarshal(line, &record); err != nil {
					yield(nil, err)
					return
				}
				record["deleted"], record["version"] = true, 7
				dead, err := json.Marshal(record)
				if err != nil {
					yield(nil, err)
					return
				}
				tombstones = append(tombstones, dead)
			}
			if !yield(line, nil) {
				return
			}
		}
		for _, line := range tombstones {
			if !yield(line, nil) {
				return
			}
		}
	}
}

// TestWhyAgreesWithTheOracle asks of many records, for random requests, what
// became of them, and holds every answer against the oracle's.
func TestWhyAgreesWithTheOracle(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	truth := oracle.New()
	for line, err := range withDeletions() {
		if err != nil {
			t.Fatal(err)
		}
		if err := truth.Load(schemas.Activity(), line); err != nil {
			t.Fatal(err)
		}
	}
	for line := range followers(truth) {
		if err := truth.Load(schemas.Features(), line); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 3, Feeds: feedsOfAll()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Activity(), withDeletions()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Produce(ctx, c.cfg.Features[0], schemas.Features(), followers(truth)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.WaitReady(ctx), c.WaitIndexed(ctx)); err != nil {
		t.Fatal(err)
	}
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()

	seed := seedOf(t)
	draw, r := oracle.NewQuestions(truth), rand.New(rand.NewPCG(seed, 2))
	eval, err := oracle.NewEval(schemas.Activity(), schemas.Features())
	if err != nil {
		t.Fatal(err)
	}
	long := records(truth)
	all := truth.Timelines()
	questions := 80
	if testing.Short() {
		questions = 20
	}
	met := map[string]int{}
	for range questions {
		drawn := draw.Draw(r)
		drawn.Entities = atMost(drawn.Entities, long)
		if r.IntN(2) == 0 {
			drawn.Limit = 1 + r.IntN(10) // that there is a cut
		}
		if r.IntN(3) == 0 { // that records of one object meet
			drawn.Distinct, drawn.Filter, drawn.From, drawn.To, drawn.Limit = true, "", 0, millrace.MaxTime, 1000
		}
		q, err := eval.Query(drawn)
		if err != nil {
			t.Fatal(err)
		}
		w := &whyAsker{t: t, client: cl, truth: truth, judge: oracle.NewJudge(truth, q), req: request(&drawn), entities: drawn.Entities, met: met}
		w.ask(ctx, "nobody has this", "")
		w.nextPage(ctx)
		for range 12 {
			e := drawn.Entities[r.IntN(len(drawn.Entities))]
			if r.IntN(6) == 0 {
				e = all[r.IntN(len(all))].Entity // not asked, perhaps
			}
			ids := w.ids(e)
			if len(ids) == 0 {
				continue
			}
			id := ids[r.IntN(len(ids))]
			w.ask(ctx, id, e)
			w.ask(ctx, id, "")
		}
		if t.Failed() {
			t.Fatalf("of %+v", drawn)
		}
	}
	t.Logf("stages met: %v", met)
	if testing.Short() {
		return
	}
	for _, stage := range []string{"never_ingested", "deleted", "not_asked", "outside_window", "filtered", "below_cut", "capped", "deduplicated", "served", "shown"} {
		if met[stage] < 3 {
			t.Errorf("%s: met %d times; the questions try too little", stage, met[stage])
		}
	}
}

// whyAsker asks what became of records in the answer to one request.
type whyAsker struct {
	t        *testing.T
	client   *client.Client
	truth    *oracle.Feed
	judge    *oracle.Judge
	req      *feedv1.GetFeedRequest
	entities []millrace.Entity
	met      map[string]int
}

// types are all that the sample has.
var types = []millrace.ContentType{"comment", "like", "post", "share"}

// ids returns the ids of an entity's records, live or not.
func (w *whyAsker) ids(e millrace.Entity) (ids []millrace.RecordID) {
	for _, ty := range types {
		for _, r := range w.truth.Records(millrace.Timeline{Entity: e, Type: ty}) {
			ids = append(ids, r.ID)
		}
	}
	return ids
}

// ask compares, for one entity or all that were asked.
func (w *whyAsker) ask(ctx context.Context, id millrace.RecordID, e millrace.Entity) {
	w.t.Helper()
	resp := whole(ctx, w.t, w.client.Why, &feedv1.WhyRequest{Request: w.req, Record: string(id), Entity: string(e)})
	in := []millrace.Entity{e}
	if e == "" {
		in = slices.Compact(slices.Sorted(slices.Values(w.entities)))
	}
	var want, got []string
	for _, e := range in {
		for _, ty := range types {
			tl := millrace.Timeline{Entity: e, Type: ty}
			if v := w.judge.Why(tl, id); v.Stage != "never_ingested" {
				want = append(want, verdictLine(tl, v))
			}
		}
	}
	for _, f := range resp.Findings {
		got = append(got, findingLine(f))
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(want, got) {
		w.t.Errorf("%s of %q:\nwant %s\ngot  %s\n%v", id, e, strings.Join(want, "\n     "), strings.Join(got, "\n     "), resp)
		return
	}
	stage := resp.Stage
	if len(want) == 0 && stage != "never_ingested" || len(want) > 0 && (stage != resp.Findings[0].Stage || resp.Detail != resp.Findings[0].Detail) || resp.Detail == "" {
		w.t.Errorf("%s of %q: %v", id, e, resp)
	}
	w.met[stage]++
}

// whole asks until nothing is missing: on a busy machine nodes are late.
func whole[Req any, Resp interface{ GetCoverage() *feedv1.Coverage }](ctx context.Context, t *testing.T, call func(context.Context, Req) (Resp, error), req Req) Resp {
	t.Helper()
	for {
		resp, err := call(ctx, req)
		var refused *millrace.Error
		late := errors.As(err, &refused) && (slices.Contains([]millrace.Reason{millrace.ReasonUnavailable, millrace.ReasonDeadline, millrace.ReasonOverloaded}, refused.Reason))
		switch {
		case err == nil && len(resp.GetCoverage().GetMissing()) == 0:
			return resp
		case err != nil && !late || ctx.Err() != nil:
			t.Fatal(resp, err)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// nextPage asks, of the page behind the first, what became of the items of
// both.
func (w *whyAsker) nextPage(ctx context.Context) {
	w.t.Helper()
	first := whole(ctx, w.t, w.client.GetFeed, w.req)
	if first.NextPageToken == "" {
		return
	}
	req := proto.CloneOf(w.req)
	req.PageToken = first.NextPageToken
	second := whole(ctx, w.t, w.client.GetFeed, req)
	check := func(items []*feedv1.Item, stage string) {
		for i, it := range items[:min(len(items), 3)] {
			resp := whole(ctx, w.t, w.client.Why, &feedv1.WhyRequest{Request: req, Record: it.Id, Entity: it.Entity})
			at := slices.IndexFunc(resp.Findings, func(f *feedv1.Finding) bool { return f.Type == it.Type })
			if at < 0 || resp.Findings[at].Stage != stage || stage == "shown" && resp.Findings[at].Place != int32(i+1) {
				w.t.Errorf("on the second page, item %d, %s, is not %s: %v", i, it.Id, stage, resp)
			}
			w.met[stage]++
		}
	}
	check(first.Items, "served")
	check(second.Items, "shown")
}

func verdictLine(t millrace.Timeline, v oracle.Verdict) string {
	line := fmt.Sprintf("%s: %s", t, v.Stage)
	if v.Stage == "filtered" {
		return line + " " + v.Outcome.String()
	}
	if v.Rank == 0 {
		return line
	}
	line += fmt.Sprintf(" score %v rank %d place %d also %t", v.Score, v.Rank, v.Place, v.Also)
	for _, r := range v.Rivals {
		line += fmt.Sprintf(" %s of %s %v", r.ID, r.Timeline, r.Score)
	}
	return line
}

func findingLine(f *feedv1.Finding) string {
	line := fmt.Sprintf("%s/%s: %s", f.Entity, f.Type, f.Stage)
	if f.Stage == "filtered" {
		return line + " " + f.Clause.GetOutcome()
	}
	if f.Score == nil {
		return line
	}
	line += fmt.Sprintf(" score %v rank %d place %d also %t", f.GetScore(), f.Rank, f.Place, f.Also)
	for _, r := range f.Rivals {
		line += fmt.Sprintf(" %s of %s/%s %v", r.Id, r.Entity, r.Type, r.Score)
	}
	return line
}

// What retention has dropped and not yet reclaimed is told from what never
// was.
func TestWhyExpired(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: 1, Node: func(cfg *indexnode.Config) {
		cfg.Store.Retention = map[millrace.ContentType]store.Retention{"post": {MaxCount: 1}}
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}()
	for _, line := range []string{
		`{"id":"old","author":"member:1","kind":"post","at":"2026-01-01T00:00:00Z"}`,
		`{"id":"new","author":"member:1","kind":"post","at":"2026-01-02T00:00:00Z"}`,
	} {
		if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Note(), one(line)); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(c.WaitReady(ctx), c.WaitIndexed(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for record, want := range map[string]string{"new": "shown", "old": "expired"} {
		resp, err := cl.Why(ctx, &feedv1.WhyRequest{Request: &feedv1.GetFeedRequest{Feed: "recent", Entities: []string{"member:1"}}, Record: record})
		if err != nil || resp.Stage != want {
			t.Errorf("%s: %v, %v; want %s", record, resp, err, want)
		}
	}
}
