//go:build synctests

package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

// staleAfter is how old an answer may be that does not say so.
const staleAfter = 10 * time.Second

// answer is what a broker said, to be judged when the log is known.
type answer struct {
	q    oracle.Question
	at   time.Time // when it was asked
	resp *feedv1.GetFeedResponse
}

// refusal is a question that was refused.
type refusal struct {
	q   oracle.Question
	at  time.Time // when it was asked
	err error
}

// asker asks, and keeps the answers.
type asker struct {
	mu      sync.Mutex
	answers []answer
	refused []refusal
	running sync.WaitGroup
}

func ask(ctx context.Context, b *broker.Broker, q oracle.Question) (answer, error) {
	req := &feedv1.GetFeedRequest{
		Feed: "recent", Viewer: &feedv1.Viewer{Id: q.Viewer.ID}, Filter: q.Filter, Limit: new(int64(q.Limit)), AsOf: timestamppb.New(q.AsOf.Std()),
	}
	if q.Distinct {
		req.Feed = "home"
	}
	if q.From > millrace.MinTime {
		req.From = timestamppb.New(q.From.Std())
	}
	if q.To < millrace.MaxTime {
		req.To = timestamppb.New(q.To.Std())
	}
	for _, e := range q.Entities {
		req.Entities = append(req.Entities, string(e))
	}
	got := answer{q: q, at: time.Now()}
	var err error
	got.resp, err = b.GetFeed(ctx, req)
	return got, err
}

// ask asks one question; a refusal is no wrong answer.
func (a *asker) ask(w *world, q oracle.Question) {
	a.running.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		got, err := ask(ctx, w.broker, q)
		a.mu.Lock()
		defer a.mu.Unlock()
		if err != nil {
			a.refused = append(a.refused, refusal{q, got.at, err})
			return
		}
		a.answers = append(a.answers, got)
	})
}

var filters = []string{"", "", `record.language == "en"`, `record.likes > 10 && record.comments < 7`, `entity.followers >= 300.0 || record.verb == "post"`}

// draw draws a question for some of the entities, most often all.
func (h *history) draw(r *rand.Rand) oracle.Question {
	now := millrace.TimeOf(time.Now())
	q := oracle.Question{
		From: millrace.MinTime, To: millrace.MaxTime, AsOf: now, Model: "recency", Filter: filters[r.IntN(len(filters))],
		Viewer: millrace.Viewer{ID: fmt.Sprint("viewer:", r.IntN(100))}, Limit: 1 + r.IntN(60), Entities: h.w.entities,
	}
	if h.evolved && r.IntN(3) == 0 {
		q.Filter = moods
	}
	if r.IntN(3) == 0 {
		q.Entities = q.Entities[r.IntN(len(q.Entities)):]
	}
	if r.IntN(2) == 0 {
		q.Model, q.Cap, q.Distinct = "home", 3, true
		q.Types = []millrace.ContentType{"post", "share", "like", "comment"}
	}
	switch r.IntN(4) {
	case 0:
		q.From = now - millrace.Time(r.IntN(30_000))
	case 1:
		q.To = now - millrace.Time(r.IntN(20_000))
	}
	return q
}

// everything asks for all records of entities.
func everything(entities []millrace.Entity) oracle.Question {
	return oracle.Question{
		From: millrace.MinTime, To: millrace.MaxTime, AsOf: millrace.TimeOf(time.Now()), Model: "recency",
		Viewer: millrace.Viewer{ID: "viewer"}, Limit: 500, Entities: entities,
	}
}

func newEval() (*oracle.Eval, error) {
	return oracle.NewEval(schemas.Activity(), schemas.Features(), later)
}

// judge holds an answer against the fold of the log at its receipt, and against
// the inputs if it does not say that it is old.
func (tr *truth) judge(eval *oracle.Eval, got answer) {
	missing := map[millrace.Partition]bool{}
	for _, m := range got.resp.GetCoverage().GetMissing() {
		missing[millrace.Partition(m.Partition)] = true
	}
	text := func() string {
		return fmt.Sprintf("\n  asked at %s: %+v\n  coverage %v\n  receipt %v", got.at.Sub(tr.w.began), got.q, got.resp.GetCoverage(), got.resp.GetReceipt().GetApplied())
	}
	applied, err := client.OffsetsOf(got.resp.GetReceipt())
	if err != nil {
		tr.found("wrong", "%v%s", err, text())
		return
	}
	feed, covered := oracle.New(), got.q
	covered.Entities = nil
	for _, e := range got.q.Entities {
		p := partition.Of(e)
		if missing[p] {
			continue
		}
		at, ok := applied[p]
		if !ok {
			tr.found("wrong", "partition %d is neither missing nor in the receipt%s", p, text())
			return
		}
		before := [streams]int64{at.Content, at.Features}
		for s, end := range tr.end(p) {
			if before[s] > end {
				tr.found("wrong", "partition %d is applied up to %d of stream %d, which ends at %d%s", p, before[s], s, end, text())
			}
		}
		covered.Entities = append(covered.Entities, e)
		tr.at(feed, e, before)
		if age, what := tr.lacks(e, before, got.at); age > staleAfter && got.resp.GetCoverage().GetTimelinesBehind() == 0 {
			tr.found("stale", "an answer that is not flagged lacks %s of %s (%s), acknowledged %s before it was asked%s", what.env.Record.ID, e, what.source, age, text())
		}
	}
	query, err := eval.Query(covered)
	if err != nil {
		tr.found("wrong", "%v%s", err, text())
		return
	}
	if diff := oracle.Diff(feed.Query(query).Items, oracle.FeedItems(got.resp.Items)); diff != "" {
		tr.found("wrong", "%s%s", diff, text())
	}
}
