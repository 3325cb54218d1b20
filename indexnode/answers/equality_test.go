package answers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/millrace/millrace"
	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"
	nodev1 "github.com/millrace/millrace/api/millrace/node/v1"
	"github.com/millrace/millrace/indexnode/cache"
	"github.com/millrace/millrace/indexnode/lookup"
	"github.com/millrace/millrace/indexnode/nodetest"
	"github.com/millrace/millrace/indexnode/replica"
	"github.com/millrace/millrace/indexnode/store"
	"github.com/millrace/millrace/internal/kafka"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/partition"
	"github.com/millrace/millrace/relevance"
	"github.com/millrace/millrace/relevance/weights"
	"github.com/millrace/millrace/schemas"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// TestReadersSeeAnAppliedState asks while records come, change and go and
// timelines are evicted: of every partition an answer shows the state at one
// offset, which was applied between the question and the answer.
func TestReadersSeeAnAppliedState(t *testing.T) {
	for name, c := range map[string]cache.Config{
		"roomy": {},
		"tiny":  {Memory: 24 << 10},
	} {
		t.Run(name, func(t *testing.T) {
			// Windows reach behind what is cached, and further than one run of it.
			n, h := openCaching(t, c, store.Options{FS: vfs.NewMem(), MaxBlobBytes: 600, FlushEvery: -1}, lookup.Config{Cached: 6, RunBytes: 400})
			w := nodetest.NewWorld(seed(t))
			l := newHistory(t, w, 1200)
			l.admit(t, n)
			asked := l.race(t, n, h, 3)
			if len(asked) < fewest/2 {
				t.Errorf("only %d questions were asked while records came", len(asked))
			}
			for _, a := range asked {
				l.check(t, a)
			}
			l.checkAll(t, n)
			checkCache(t, n, l.entities)
		})
	}
}

// seed returns a new seed, or that of MILLRACE_SEED to repeat a run.
func seed(t *testing.T) uint64 {
	s := uint64(time.Now().UnixNano())
	if text := os.Getenv("MILLRACE_SEED"); text != "" {
		var err error
		if s, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("MILLRACE_SEED=%d", s)
	return s
}

type streamPartition struct {
	kafka.Stream
	millrace.Partition
}

// history is the log that a node reads, and who asks about it.
type history struct {
	entities []millrace.Entity
	order    []nodetest.Event // as the node polls them
	logs     map[streamPartition][]nodetest.Event
	draw     *oracle.Questions
	eval     *oracle.Eval
}

func newHistory(t *testing.T, w *nodetest.World, events int) *history {
	l := &history{entities: w.Entities, logs: map[streamPartition][]nodetest.Event{}}
	all := oracle.New()
	for range events {
		e := w.Draw(t)
		l.order = append(l.order, e)
		sp := streamPartition{e.Stream, partition.Of(e.Entity)}
		l.logs[sp] = append(l.logs[sp], e)
		fold(t, all, e)
	}
	l.draw = oracle.NewQuestions(all)
	var err error
	if l.eval, err = oracle.NewEval(schemas.Activity(), schemas.Features()); err != nil {
		t.Fatal(err)
	}
	return l
}

func fold(t *testing.T, f *oracle.Feed, e nodetest.Event) {
	env, err := e.Schema.Envelope(e.Body)
	if err != nil {
		t.Fatal(err)
	}
	f.ApplyEnvelope(e.Schema, env)
}

// aboutSpec reads features of what a record is about, of its entity and of
// itself.
const aboutSpec = `
name: about
version: "1"
schemas: [millrace.Activity]
entity: millrace.Features
object: millrace.Features
features:
  own: record.likes
  followers: entity.followers
  known: has(object.followers)
  engagement: coalesce(object.engagement, -3) * (record.comments + 1)
  more: object.followers > entity.followers
scorer: linear
parameters: {bias: 1, weights: {own: 1, followers: 0.5, known: 2, engagement: 0.25, more: 3}}
`

// aboutSum stands for the checksum of that model's pack.
const aboutSum = "about"

// heavy are weights of that model. The oracle has a model heavy that is written
// with them, and the node has not.
var heavy = map[string]float64{"bias": -2, "own": -0.5, "engagement": 4}

const aboutRow = `{"features": {"own": 2, "followers": 4, "known": true, "engagement": 8, "more": false}, "score": %v, "record": {"likes": 2, "comments": 1}, "entity": {"followers": 4}, "object": {"followers": 3, "engagement": 4}}`

// admit lets the node and the oracle score by a model that reads features of
// objects.
func (l *history) admit(t *testing.T, n *node) {
	known := relevance.ShippedSchemas()
	pack := nodetest.PackOf(t, aboutSpec, fmt.Sprintf(aboutRow, 9), known)
	if _, err := pack.Admit(n.models, aboutSum, known); err != nil {
		t.Fatal(err)
	}
	other := strings.NewReplacer("name: about", "name: heavy", "bias: 1", "bias: -2", "own: 1,", "own: -0.5,", "engagement: 0.25", "engagement: 4").Replace(aboutSpec)
	if err := errors.Join(l.eval.Admit(pack), l.eval.Admit(nodetest.PackOf(t, other, fmt.Sprintf(aboutRow, 33), known))); err != nil {
		t.Fatal(err)
	}
}

// answered is a question, its answer, and what was applied before and after.
type answered struct {
	question      oracle.Question
	resp          *nodev1.QueryResponse
	before, after map[millrace.Partition][2]millrace.Offset
}

// fewest is how many questions are asked while the log is applied, at least.
const fewest = 40

// race applies the log while readers ask, and waits for them where they are
// slow, so that they meet every part of the log.
func (l *history) race(t *testing.T, n *node, h *replica.Replicas, readers int) []answered {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var (
		mu     sync.Mutex
		asked  []answered
		moved  = sync.NewCond(&mu)
		asking = readers
		wg     sync.WaitGroup
	)
	for i := range readers {
		r := rand.New(rand.NewPCG(seed(t), uint64(i)))
		wg.Go(func() {
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				asking--
				moved.Broadcast()
			}()
			for ctx.Err() == nil {
				a, err := l.ask(ctx, n, r)
				if err != nil {
					if ctx.Err() == nil {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				asked = append(asked, a)
				moved.Broadcast()
				mu.Unlock()
			}
		})
	}
	next := map[streamPartition]millrace.Offset{}
	for at := 0; at < len(l.order); {
		mu.Lock()
		for asking > 0 && len(asked)*len(l.order) < at*fewest {
			moved.Wait()
		}
		mu.Unlock()
		e := l.order[at]
		sp := streamPartition{e.Stream, partition.Of(e.Entity)}
		var poll []nodetest.Event
		for ; at < len(l.order) && len(poll) < 5 && l.order[at].Stream == sp.Stream && partition.Of(l.order[at].Entity) == sp.Partition; at++ {
			poll = append(poll, l.order[at])
		}
		next[sp] += millrace.Offset(len(poll))
		if err := nodetest.Bring(ctx, h, poll, next[sp]); err != nil {
			t.Error(err)
			break
		}
	}
	cancel()
	wg.Wait()
	return asked
}

func (l *history) ask(ctx context.Context, n *node, r *rand.Rand) (a answered, err error) {
	a.question = l.draw.Draw(r)
	switch r.IntN(4) {
	case 0:
		a.question.Model = "about"
	case 1:
		a.question.Model = "heavy"
	}
	a.before = l.applied(n)
	req := request(&a.question)
	req.Explain, req.Features = r.IntN(4) == 0, r.IntN(4) == 0
	req.Shadow = []*nodev1.Model{{Name: "recency"}, {Name: "about", Version: "1", Sum: aboutSum}, {Name: "home"}}
	if r.IntN(8) == 0 {
		req.Shadow = append(req.Shadow, &nodev1.Model{Name: "nobody"})
	}
	if r.IntN(3) == 0 {
		req.Beside = []*nodev1.Model{{Name: "recency"}, {Name: "nobody"}, {Name: "about", Version: "1", Sum: aboutSum}, {Name: "home"}}
	}
	a.resp, err = n.query(ctx, req)
	a.after = l.applied(n)
	return a, err
}

func (l *history) applied(n *node) map[millrace.Partition][2]millrace.Offset {
	m := map[millrace.Partition][2]millrace.Offset{}
	for _, e := range l.entities {
		m[partition.Of(e)] = n.Applied(partition.Of(e))
	}
	return m
}

// check compares an answer with the oracle at the offsets that it names.
func (l *history) check(t *testing.T, a answered) {
	t.Helper()
	truth := oracle.New()
	if missing := a.resp.Partitions.Missing; len(missing) > 0 {
		t.Fatalf("partitions are missing: %v", missing)
	}
	for i, p := range a.resp.Partitions.Answered {
		id := millrace.Partition(p)
		for stream, at := range [2]int64{a.resp.Partitions.AppliedContent[i], a.resp.Partitions.AppliedFeatures[i]} {
			lo, hi := a.before[id][stream], a.after[id][stream]
			if known := l.logs[streamPartition{kafka.Stream(stream), id}] != nil; known && (at < int64(lo) || at > int64(hi)) {
				t.Errorf("partition %d stream %d answered at %d, applied was %d before and %d after", id, stream, at, lo, hi)
			}
			for _, e := range l.logs[streamPartition{kafka.Stream(stream), id}][:at] {
				fold(t, truth, e)
			}
		}
	}
	q, err := l.eval.Query(a.question)
	if err != nil {
		t.Fatal(err)
	}
	if by := a.resp.WeightsSum; (by != "") != (a.question.Model == "heavy") {
		t.Fatalf("model %s: answered by weights %q", a.question.Model, by)
	}
	want := truth.Query(q)
	if diff := oracle.Diff(want.Items, withinAnswer(oracle.NodeItems(a.resp.Items), q.Limit)); diff != "" {
		t.Fatalf("%+v at %v:\n%s", a.question, a.resp.Partitions, diff)
	}
	l.checkBeside(t, truth, a)
	for _, it := range a.resp.Items {
		checkFeatures(t, a.resp.FeatureNames, it)
		if it.Explain == nil {
			continue
		}
		l.checkShadow(t, truth, a.question, it)
		if a.question.Model != "about" && a.question.Model != "heavy" {
			continue
		}
		sum := it.Explain.Base
		for _, f := range it.Explain.Features {
			sum += f.Contribution
		}
		if sum != it.Score && (sum == sum || it.Score == it.Score) { // every number here is a small one of quarters
			t.Fatalf("%s scores %v, and is explained by %v", it.Id, it.Score, it.Explain)
		}
	}
	s := a.resp.Stages
	want.Stages.Capped = l.cappedAbove(t, truth, a.question, want.Items)
	if got := (oracle.Stages{
		Candidates: int(s.Candidates), False: int(s.FilteredFalse), Null: int(s.FilteredNull), Error: int(s.FilteredError),
		NaN: int(s.FilteredNan), Scored: int(s.Scored), Capped: int(s.Capped),
	}); got != want.Stages {
		t.Fatalf("%+v: stages %+v, want %+v", a.question, got, want.Stages)
	}
}

// cappedAbove counts what the cap drops above the last item of a full answer, which is
// where a node stops. The oracle counts what is below, too.
func (l *history) cappedAbove(t *testing.T, truth *oracle.Feed, q oracle.Question, items []oracle.Item) (capped int) {
	t.Helper()
	most, limit := q.Cap, q.Limit
	if most == 0 {
		return 0
	}
	q.Limit, q.Cap, q.Distinct = math.MaxInt, 0, false
	all, err := l.eval.Query(q)
	if err != nil {
		t.Fatal(err)
	}
	of := map[millrace.Entity]int{}
	for _, it := range truth.Query(all).Items {
		if len(items) == limit && it.Rank.Compare(items[limit-1].Rank) > 0 {
			break
		}
		if of[it.Timeline.Entity]++; of[it.Timeline.Entity] > most {
			capped++
		}
	}
	return capped
}

// checkFeatures holds an item's features against its account, if it has both.
func checkFeatures(t *testing.T, names []string, it *nodev1.Item) {
	t.Helper()
	v := it.GetFeatures()
	if (v == nil) != (len(names) == 0) || len(v.GetNumbers()) != len(names) {
		t.Fatalf("%s: %v of %q", it.Id, v, names)
	}
	if v == nil || it.Explain == nil {
		return
	}
	want := &nodev1.Vector{Numbers: slices.Repeat([]float64{math.NaN()}, len(names)), Texts: map[int32]string{}}
	for _, f := range it.Explain.Features {
		k := slices.Index(names, f.Feature)
		if k < 0 {
			t.Fatalf("%s: no feature %s among %q", it.Id, f.Feature, names)
		}
		switch x := f.Value.Kind.(type) {
		case *structpb.Value_NumberValue:
			want.Numbers[k] = x.NumberValue
		case *structpb.Value_StringValue:
			want.Texts[int32(k)] = x.StringValue
		}
	}
	if !proto.Equal(v, want) { // to which NaN is as NaN
		t.Fatalf("%s: features %v, and %v by its account", it.Id, v, want)
	}
}

// checkShadow holds what shadow models say of an item against the oracle.
func (l *history) checkShadow(t *testing.T, truth *oracle.Feed, q oracle.Question, it *nodev1.Item) {
	t.Helper()
	e := it.Explain
	if e.ShadowError != "" {
		if len(e.Shadow) > 0 || !strings.Contains(e.ShadowError, `no model "nobody"`) {
			t.Fatalf("%s: shadow %v, %s", it.Id, e.Shadow, e.ShadowError)
		}
		return
	}
	if len(e.Shadow) != 3 || e.Shadow[1].ModelVersion != "1" {
		t.Fatalf("%s: shadow %v", it.Id, e.Shadow)
	}
	q.Limit, q.Cap, q.Distinct = math.MaxInt, 0, false
	for i, model := range []string{"recency", "about", "home"} {
		q.Model = model
		all, err := l.eval.Query(q)
		if err != nil {
			t.Fatal(err)
		}
		got := e.Shadow[i]
		for _, want := range truth.Query(all).Items {
			if rankOf(it).ID == want.ID && rankOf(it).Timeline == want.Timeline && (got.Model != model || math.Float64bits(got.Score) != math.Float64bits(want.Score)) {
				t.Fatalf("%s: %s would score it %v, says the oracle, and the node %v", it.Id, model, want.Score, got)
			}
		}
	}
}

// checkBeside holds the rankings by other models against the oracle, which is at
// the offsets of the answer.
func (l *history) checkBeside(t *testing.T, truth *oracle.Feed, a answered) {
	t.Helper()
	if n := len(a.resp.Beside); n != 0 && n != 4 {
		t.Fatalf("%d rankings beside", n)
	}
	for _, r := range a.resp.Beside {
		if r.Model == "nobody" {
			if len(r.Items) > 0 || !strings.Contains(r.Error, `no model "nobody"`) {
				t.Fatalf("by a model that is not there: %v", r)
			}
			continue
		}
		if strings.HasSuffix(r.Error, context.Canceled.Error()) { // the race was over
			continue
		}
		question := a.question
		question.Model = r.Model
		q, err := l.eval.Query(question)
		if err != nil {
			t.Fatal(err)
		}
		if diff := oracle.Diff(truth.Query(q).Items, withinAnswer(oracle.NodeItems(r.Items), q.Limit)); diff != "" || r.Error != "" || r.ModelVersion == "" {
			t.Fatalf("beside %s, %+v: %s %q %q", a.question.Model, question, diff, r.ModelVersion, r.Error)
		}
	}
}

// withinAnswer drops the further records of an object that rank below the last
// item of a full answer: a broker does so when it merges.
func withinAnswer(items []oracle.Item, limit int) []oracle.Item {
	if len(items) < limit {
		return items
	}
	last := items[len(items)-1].Rank
	for i := range items {
		also := items[i].Also
		for len(also) > 0 && also[len(also)-1].Compare(last) > 0 {
			also = also[:len(also)-1]
		}
		items[i].Also = also
	}
	return items
}

// checkAll asks for everything once more, from a cache that has seen it all.
func (l *history) checkAll(t *testing.T, n *node) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 1))
	for range 40 {
		a, err := l.ask(t.Context(), n, r)
		if err != nil {
			t.Fatal(err)
		}
		l.check(t, a)
	}
}

// checkCache compares what is cached with the store: the same records as far
// back as the cache says, and none where it says that there are none.
func checkCache(t *testing.T, n *node, entities []millrace.Entity) {
	t.Helper()
	reader := n.cache.Reader()
	defer reader.Leave()
	fat, skinny := 0, 0
	for _, e := range entities {
		types, _ := n.store.Types()
		for _, typ := range types {
			key := millrace.Timeline{Entity: e, Type: typ}
			tl := reader.Peek(key)
			if tl == nil {
				continue
			}
			want, err := n.store.Read(nil, partition.Of(e), key, tl.From(), millrace.MaxTime)
			if err != nil {
				t.Fatal(err)
			}
			cached := map[millrace.RecordID][]byte{}
			for b := tl; b != nil; b = b.Older() {
				for _, p := range b.Append(nil) {
					id, body := p.Layout().Role("id"), p.Layout().Index(schemas.BodyColumn)
					for row := range p.Len() {
						cached[millrace.RecordID(p.StringAt(id, row))] = p.BytesAt(body, row)
					}
				}
			}
			if len(cached) != len(want) || tl.Len() != len(want) {
				t.Errorf("%s: %d records of %d are cached, the store has %d", key, len(cached), tl.Len(), len(want))
			}
			for _, r := range want {
				if !bytes.Equal(cached[r.ID], r.Body) {
					t.Errorf("%s: record %s is cached as %x, stored as %x", key, r.ID, cached[r.ID], r.Body)
				}
			}
			if tl.Len() > 0 {
				fat++
			} else {
				skinny++
			}
		}
	}
	// Types that no record has are asked for too.
	if s := n.CacheStats(); fat != s.Timelines || skinny > s.EmptyKeys || fat == 0 {
		t.Errorf("%d fat and %d skinny, the cache says %d and %d", fat, skinny, s.Timelines, s.EmptyKeys)
	}
}

// request writes a question as a broker does: every entity once.
func request(q *oracle.Question) *nodev1.QueryRequest {
	req := &nodev1.QueryRequest{
		FromMs: int64(q.From), ToMs: int64(q.To), AsOfMs: int64(q.AsOf), Filter: q.Filter, Model: q.Model,
		Limit: int32(q.Limit), CapPerEntity: int32(q.Cap), DistinctObjects: q.Distinct,
		Viewer: &feedv1.Viewer{Id: q.Viewer.ID, Features: q.Viewer.Features, Attributes: map[string]*structpb.Value{}},
	}
	if q.Model == "heavy" {
		req.Model, req.Weights, req.WeightsSum = "about", weights.Form(heavy), weights.Sum(weights.Form(heavy))
	}
	if req.Model == "about" {
		req.ModelVersion, req.ModelSum = "1", aboutSum
	}
	for name, v := range q.Viewer.Attributes {
		if texts, ok := v.([]string); ok {
			list := make([]any, len(texts))
			for i := range texts {
				list[i] = texts[i]
			}
			v = list
		}
		value, err := structpb.NewValue(v)
		if err != nil {
			panic(fmt.Errorf("attribute %s: %w", name, err))
		}
		req.Viewer.Attributes[name] = value
	}
	seen := map[millrace.Entity]bool{}
	var names []string
	for _, e := range q.Entities {
		if !seen[e] {
			seen[e] = true
			names = append(names, string(e))
		}
	}
	req.Entities = nodetest.Pack(names...)
	types := map[millrace.ContentType]bool{}
	for _, ty := range q.Types {
		if !types[ty] {
			types[ty] = true
			req.Types = append(req.Types, string(ty))
		}
	}
	return req
}
