//go:build linux

package campaign

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/schemas"
)

const (
	questionsPerSecond = 25
	// staleAfter is how old an answer may be that does not say so.
	staleAfter = 10 * time.Second
	// askWithin is longer than brokers take to answer or refuse.
	askWithin = 30 * time.Second
)

// asker asks brokers random questions and judges the answers.
type asker struct {
	t       *testing.T
	truth   *truth
	eval    atomic.Pointer[oracle.Eval]
	lost    bool // an offset of a receipt never came; of judgeAll alone
	clients []*client.Client
	callers *callers // who asks at a steady rate
	told    func(kind, detail string)
	refused func(error) // called for each question that is refused

	answers chan answer
	known   func() int   // how many members there have been
	rate    int          // questions a second; 0: questionsPerSecond
	spared  atomic.Int64 // the broker that is not asked, from 1; 0: all are
	given   atomic.Int64 // answers so far
	settled struct {     // those judged, in the same order
		sync.Mutex
		n    int64
		more sync.Cond
	}

	mu struct {
		sync.Mutex
		r *rand.Rand
		tally
		watched []millrace.Entity // asked for more often than others
		took    []time.Duration   // of each question
	}
}

// tally counts what became of questions.
type tally struct {
	whole, partial, flagged, refused, wrong, stale int
	oldest                                         time.Duration // of what was not flagged
	why                                            string        // of the last refusal
	lacks                                          string        // what the last partial answer says of what it lacks
	late                                           int           // partial answers that lack only what nobody answered in time
}

func (a tally) String() string {
	why := ""
	if a.refused > 0 {
		why = fmt.Sprintf(" (the last: %.120s)", a.why)
	}
	lacks := ""
	if a.partial > 0 {
		lacks = fmt.Sprintf(" (the last: %.300s)", a.lacks)
	}
	return fmt.Sprintf("%d whole, %d partial%s, %d flagged, %d refused%s; %d wrong, %d stale, oldest unflagged %.1fs", a.whole, a.partial, lacks, a.flagged, a.refused, why, a.wrong, a.stale, a.oldest.Seconds())
}

// answer is an answer, waiting to be judged.
type answer struct {
	q    oracle.Question
	at   time.Time // when it was asked
	resp *feedv1.GetFeedResponse
}

func newAsker(t *testing.T, l *truth, seed uint64, brokers []string, told func(kind, detail string)) *asker {
	t.Helper()
	a := &asker{t: t, truth: l, told: told, refused: func(error) {}, answers: make(chan answer, 100_000), known: func() int { return members }}
	a.mu.r = rand.New(rand.NewPCG(seed, 3))
	a.settled.more.L = &a.settled
	if err := a.know(schemas.Activity(), schemas.Features()); err != nil {
		t.Fatal(err)
	}
	for _, addr := range brokers {
		c, err := client.Dial(addr)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		a.clients = append(a.clients, c)
	}
	if len(brokers) > 0 {
		a.callers = startCallers(t, brokers)
	}
	return a
}

// know lets the oracle decode records of schemas.
func (a *asker) know(all ...*schemas.Schema) error {
	eval, err := oracle.NewEval(all...)
	if err == nil {
		a.eval.Store(eval)
	}
	return err
}

// run asks at a steady rate until ctx is done.
func (a *asker) run(ctx context.Context) {
	tick := time.NewTicker(time.Second / time.Duration(max(a.rate, questionsPerSecond)))
	defer tick.Stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			broker := i % len(a.clients)
			if int64(broker+1) == a.spared.Load() {
				broker = (broker + 1) % len(a.clients)
			}
			wg.Go(func() { a.askOne(ctx, broker, a.draw()) })
		}
	}
}

// askOne asks one broker; the answer is judged in its turn.
func (a *asker) askOne(ctx context.Context, broker int, q oracle.Question) {
	at := time.Now()
	resp, took, err := a.callers.ask(ctx, broker, request(q))
	if ctx.Err() != nil {
		return // nobody waits for it any more
	}
	a.mu.Lock()
	a.mu.took = append(a.mu.took, took)
	a.mu.Unlock()
	if err != nil {
		a.refused(err)
		a.mu.Lock()
		defer a.mu.Unlock()
		a.mu.refused++
		a.mu.why = err.Error()
		return
	}
	a.given.Add(1)
	a.answers <- answer{q, at, resp}
}

var filters = []string{"", "", "", `record.language == "en"`, `record.likes > 10 && record.comments < 7`, `entity.followers >= 300.0 || record.verb == "post"`}

// draw draws a question to one of the built-in feeds, for members most of whom
// have new records.
func (a *asker) draw() oracle.Question {
	known := a.known()
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.mu.r
	now := millrace.TimeOf(time.Now())
	q := oracle.Question{
		From: millrace.MinTime, To: millrace.MaxTime, AsOf: now, Model: "recency", Filter: filters[r.IntN(len(filters))],
		Viewer: millrace.Viewer{ID: fmt.Sprint("viewer:", r.IntN(100))}, Limit: 1 + r.IntN(60),
	}
	if r.IntN(2) == 0 {
		q.Model, q.Cap, q.Distinct = "home", 3, true
		q.Types = []millrace.ContentType{"post", "share", "like", "comment"}
	}
	switch r.IntN(4) {
	case 0:
		q.From = now - millrace.Time(r.IntN(900_000))
	case 1:
		q.To = now - millrace.Time(r.IntN(300_000))
	}
	for _, m := range r.Perm(members)[:1+r.IntN(12)] {
		q.Entities = append(q.Entities, memberOf(known-1-m))
	}
	if e := memberOf(r.IntN(known)); !slices.Contains(q.Entities, e) {
		q.Entities = append(q.Entities, e)
	}
	if n := len(a.mu.watched); n > 0 && r.IntN(3) == 0 {
		if e := a.mu.watched[r.IntN(n)]; !slices.Contains(q.Entities, e) {
			q.Entities = append(q.Entities, e)
		}
	}
	return q
}

// watch has questions ask for an entity more often.
func (a *asker) watch(e millrace.Entity) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.watched = append(a.mu.watched, e)
}

func request(q oracle.Question) *feedv1.GetFeedRequest {
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
	return req
}

// judgeAll judges answers until ctx is done. It takes as much of a processor as
// answering does, and gives way to whoever wants it: the machine is small.
func (a *asker) judgeAll(ctx context.Context) {
	runtime.LockOSThread() // for good: the thread ends with it, and its priority
	if err := syscall.Setpriority(syscall.PRIO_PROCESS, syscall.Gettid(), 19); err != nil {
		a.t.Errorf("judging does not give way: %v", err)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case got := <-a.answers:
			a.judge(ctx, got)
			a.settled.Lock()
			a.settled.n++
			a.settled.Unlock()
			a.settled.more.Broadcast()
		}
	}
}

// drain returns when every answer so far is judged.
func (a *asker) drain() {
	all := a.given.Load()
	a.settled.Lock()
	defer a.settled.Unlock()
	for a.settled.n < all {
		a.settled.more.Wait()
	}
}

// judged is how many answers the tally has.
func (a *asker) judged() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mu.whole + a.mu.partial + a.mu.flagged
}

// take returns the tally and begins a new one.
func (a *asker) take() tally {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.mu.tally
	a.mu.tally = tally{}
	return was
}

// latencies returns how long questions took since it was last asked.
func (a *asker) latencies() []time.Duration {
	a.mu.Lock()
	took := a.mu.took
	a.mu.took = nil
	a.mu.Unlock()
	return took
}

func quantile(took []time.Duration, q float64) time.Duration {
	if len(took) == 0 {
		return 0
	}
	slices.Sort(took)
	return took[int(q*float64(len(took)-1))]
}

// flagged reports whether an answer says itself that it may be old.
func flagged(resp *feedv1.GetFeedResponse) bool { return resp.GetCoverage().GetTimelinesBehind() > 0 }

// inTime reports whether a partition is missing for another reason than that
// its nodes had no time, which on a machine shared with others happens.
func inTime(m *feedv1.Missing) bool {
	return !slices.Contains([]string{"timeout", "unreachable", "overloaded"}, m.GetReason())
}

// judge holds an answer against the fold of the log at its receipt.
func (a *asker) judge(ctx context.Context, got answer) {
	missing := map[millrace.Partition]bool{}
	for _, m := range got.resp.GetCoverage().GetMissing() {
		missing[millrace.Partition(m.Partition)] = true
	}
	var sum tally
	defer func() { a.add(sum) }()
	behind := flagged(got.resp)
	switch {
	case len(missing) > 0:
		sum.partial++
		if !slices.ContainsFunc(got.resp.GetCoverage().GetMissing(), inTime) {
			sum.late++
		}
		sum.lacks = fmt.Sprintf("asked at %s: %v", got.at.UTC().Format(time.TimeOnly+".000"), got.resp.GetCoverage().GetMissing())
	case behind:
		sum.flagged++
	default:
		sum.whole++
	}
	applied, err := a.applied(ctx, got.resp)
	if err != nil {
		sum.wrong++
		a.told("wrong", fmt.Sprintf("%v\n%s", err, describe(got)))
		return
	}
	covered := got.q
	covered.Entities = nil
	feed := oracle.New()
	for _, e := range got.q.Entities {
		p := partition.Of(e)
		if missing[p] {
			continue
		}
		before, ok := applied[p]
		if !ok {
			sum.wrong++
			a.told("wrong", fmt.Sprintf("partition %d is neither missing nor in the receipt\n%s", p, describe(got)))
			return
		}
		covered.Entities = append(covered.Entities, e)
		a.truth.fold(feed, e, before)
		age, lacks := a.truth.age(e, before, got.at)
		if behind {
			continue
		}
		sum.oldest = max(sum.oldest, age)
		if age > staleAfter {
			sum.stale = 1
			a.told("stale", fmt.Sprintf("an answer that is not flagged lacks %+v, acknowledged %.1f s before it was asked\n%s", lacks, age.Seconds(), describe(got)))
		}
	}
	query, err := a.eval.Load().Query(covered)
	if err != nil {
		a.told("wrong", err.Error())
		return
	}
	if diff := oracle.Diff(feed.Query(query).Items, oracle.FeedItems(got.resp.Items)); diff != "" {
		sum.wrong++
		a.told("wrong", fmt.Sprintf("%s%s", diff, describe(got)))
	}
}

// logWithin is how long an offset of a receipt may be ahead of the log's
// reader, which a fault of Kafka stops too.
const logWithin = 3 * time.Minute

// applied returns what a receipt says of each partition, once the log's reader
// is there.
func (a *asker) applied(ctx context.Context, resp *feedv1.GetFeedResponse) (map[millrace.Partition][kafka.Streams]int64, error) {
	bound := logWithin
	if a.lost { // the next ones will not come either
		bound = time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	told, err := client.OffsetsOf(resp.GetReceipt())
	if err != nil {
		return nil, err
	}
	at := make(map[millrace.Partition][kafka.Streams]int64, len(told))
	for p, next := range told {
		at[p] = [kafka.Streams]int64{next.Content, next.Features}
		for stream, offset := range at[p] {
			if err := a.truth.reached(ctx, stream, p, offset); err != nil {
				a.lost = true
				return nil, err
			}
		}
	}
	return at, nil
}

func (a *asker) add(t tally) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.mu.tally = a.mu.tally.plus(t)
}

func (a tally) plus(b tally) tally {
	return tally{
		a.whole + b.whole, a.partial + b.partial, a.flagged + b.flagged, a.refused + b.refused, a.wrong + b.wrong, a.stale + b.stale,
		max(a.oldest, b.oldest), cmp.Or(b.why, a.why), cmp.Or(b.lacks, a.lacks), a.late + b.late,
	}
}

// describe is what a history keeps of an answer that failed.
func describe(got answer) string {
	resp := got.resp
	return fmt.Sprintf("question %+v\ncoverage %s\nreceipt %s", got.q, protojson.Format(resp.GetCoverage()), protojson.MarshalOptions{}.Format(resp.GetReceipt()))
}
