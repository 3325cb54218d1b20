package minicluster

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	feedv1 "github.com/millrace/millrace/api/millrace/feed/v1"

	"github.com/millrace/millrace"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/broker/feeds"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/internal/oracle"
	"github.com/millrace/millrace/internal/sample"
	"github.com/millrace/millrace/internal/sample/tweets"
	"github.com/millrace/millrace/schemas"
)

// TestEveryTopologyEqualsTheOracle asks clusters of 1, 2, 3 and 5 nodes the
// same questions, with caches cold and warm.
func TestEveryTopologyEqualsTheOracle(t *testing.T) {
	if testing.Short() {
		testEquality(t, "", sampleRecords(), 100, 3)
		return
	}
	t.Run("sample", func(t *testing.T) { testEquality(t, "", sampleRecords(), 500, 1, 2, 3, 5) })
	t.Run("tweets", func(t *testing.T) { testEquality(t, "", tweets.All(), 1000, 3) })
}

// TestOracleRealKafka is the same for one topology on a real Kafka.
func TestOracleRealKafka(t *testing.T) {
	addr := os.Getenv("MILLRACE_KAFKA")
	if addr == "" {
		t.Skip("no real Kafka: run make kafka and set MILLRACE_KAFKA to its address")
	}
	t.Parallel()
	testEquality(t, addr, sampleRecords(), 1000, 3)
}

func sampleRecords() iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for line := range sample.Records() {
			if !yield(line, nil) {
				return
			}
		}
	}
}

// testEquality asks n questions of a cluster of each number of nodes, with cold
// and with warm caches.
func testEquality(t *testing.T, kafkaAddr string, lines iter.Seq2[[]byte, error], n int, topologies ...int) {
	truth := oracle.New()
	for line, err := range lines {
		if errors.Is(err, tweets.ErrAbsent) {
			t.Skip(err)
		}
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
	questions := ask(t, truth, n)

	ctx := t.Context()
	if kafkaAddr == "" {
		log, err := StartKafka(t.TempDir(), "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		kafkaAddr = log.Addr()
	}
	prefix := fmt.Sprintf("oracle-%d-", rand.Uint32())
	for i, nodes := range topologies {
		t.Run(fmt.Sprintf("%d nodes", nodes), func(t *testing.T) {
			c, err := Start(ctx, Config{Dir: t.TempDir(), Nodes: nodes, Kafka: kafkaAddr, TopicPrefix: prefix, Feeds: feedsOfAll(), Broker: patient})
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}()
			if i == 0 { // the log is filled once, and every cluster reads it
				if _, err := c.Produce(ctx, c.ContentTopic(), schemas.Activity(), lines); err != nil {
					t.Fatal(err)
				}
				if _, err := c.Produce(ctx, c.cfg.Features[0], schemas.Features(), followers(truth)); err != nil {
					t.Fatal(err)
				}
			}
			wait, cancel := context.WithTimeout(ctx, 10*time.Minute)
			defer cancel()
			if err := errors.Join(c.WaitReady(wait), c.WaitIndexed(wait)); err != nil {
				t.Fatal(err)
			}
			for _, cache := range []string{"cold", "warm"} {
				compare(t, c, questions, cache)
			}
		})
	}
}

// followers yields features for every other entity, so that filters on
// entity.* meet both.
func followers(truth *oracle.Feed) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		last := millrace.Entity("")
		for i, tl := range truth.Timelines() {
			if tl.Entity == last {
				continue
			}
			last = tl.Entity
			line := fmt.Appendf(nil, `{"entity":%q,"updated_at":"2020-01-01T00:00:00Z","followers":%d,"posts":%d}`, tl.Entity, i%7, i)
			if i%2 == 0 && !yield(line, nil) {
				return
			}
		}
	}
}

// maxCap is the largest cap an entity has in a random question.
const maxCap = 5

// feedsOfAll are definitions with every combination of deduplication and cap.
func feedsOfAll() []feeds.Feed {
	var all []feeds.Feed
	for c := range maxCap + 1 {
		for _, distinct := range []bool{false, true} {
			all = append(all, feeds.Feed{Name: feedName(distinct, c), Model: "recency", DistinctObjects: distinct, CapPerEntity: c, Limit: 20})
		}
	}
	return all
}

func feedName(distinct bool, c int) string { return fmt.Sprintf("distinct-%t-cap-%d", distinct, c) }

// asked is a request and the answer of the oracle.
type asked struct {
	req  *feedv1.GetFeedRequest
	want []oracle.Item
}

// patient lets a broker take as long as a busy machine needs.
func patient(c *broker.Config) { c.Timeout = time.Hour }

// compare asks every question and holds the answers against the oracle's.
func compare(t *testing.T, c *Cluster, questions []asked, cache string) {
	t.Helper()
	cl, err := client.Dial(c.GRPC)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour) // the client's own is short
	defer cancel()
	wrong := 0
	for i := range questions {
		q := &questions[i]
		resp, err := cl.GetFeed(ctx, q.req)
		if err != nil {
			t.Fatalf("%s cache, question %d: %v\n%v", cache, i, err, q.req)
		}
		if len(resp.Coverage.Missing) > 0 {
			t.Fatalf("%s cache, question %d: partial: %v", cache, i, resp.Coverage)
		}
		if diff := oracle.Diff(q.want, oracle.FeedItems(resp.Items)); diff != "" {
			t.Errorf("%s cache, question %d differs:\n%s\n%v", cache, i, diff, q.req)
			if wrong++; wrong == 3 {
				t.Fatal("no more of these")
			}
		}
	}
}

// seedOf returns and logs the seed of a run: MILLRACE_SEED, or a new one.
func seedOf(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("MILLRACE_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("MILLRACE_SEED=%d", seed)
	return seed
}

// ask draws n questions and has the oracle answer them. MILLRACE_SEED repeats
// a run.
func ask(t *testing.T, truth *oracle.Feed, n int) []asked {
	t.Helper()
	seed := seedOf(t)
	draw, r := oracle.NewQuestions(truth), rand.New(rand.NewPCG(seed, 1))
	long := records(truth)
	questions := make([]asked, n)
	drawn := make([]oracle.Question, n)
	for i := range drawn {
		drawn[i] = draw.Draw(r)
		drawn[i].Entities = atMost(drawn[i].Entities, long)
		questions[i].req = request(&drawn[i])
	}
	var wg sync.WaitGroup
	for w := range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			eval, err := oracle.NewEval(schemas.Activity(), schemas.Features())
			if err != nil {
				t.Error(err)
				return
			}
			for i := w; i < n; i += runtime.GOMAXPROCS(0) {
				q, err := eval.Query(drawn[i])
				if err != nil {
					t.Errorf("%+v: %v", drawn[i], err)
					return
				}
				questions[i].want = truth.Query(q).Items
			}
		})
	}
	wg.Wait()
	full := 0
	for i := range questions {
		if len(questions[i].want) > 0 {
			full++
		}
	}
	t.Logf("%d of %d questions have an answer", full, n)
	if full < n/3 {
		t.Errorf("only %d of %d questions have an answer: they ask for nothing", full, n)
	}
	if t.Failed() {
		t.FailNow()
	}
	return questions
}

// maxRecords bounds what the oracle has to look at for one question.
const maxRecords = 5000

// records counts the live records of each entity.
func records(truth *oracle.Feed) map[millrace.Entity]int {
	n := make(map[millrace.Entity]int)
	for _, tl := range truth.Timelines() {
		n[tl.Entity] += len(truth.Live(tl))
	}
	return n
}

// atMost shortens a list of entities to those that have maxRecords together,
// and keeps the first in any case.
func atMost(entities []millrace.Entity, long map[millrace.Entity]int) []millrace.Entity {
	sum := 0
	for i, e := range entities {
		if sum += long[e]; sum > maxRecords && i > 0 {
			return entities[:i]
		}
	}
	return entities
}

// request writes a question as a caller does.
func request(q *oracle.Question) *feedv1.GetFeedRequest {
	req := &feedv1.GetFeedRequest{
		Feed: feedName(q.Distinct, q.Cap), Filter: q.Filter, Model: q.Model, Limit: new(int64(q.Limit)),
		From: timestamppb.New(q.From.Std()), AsOf: timestamppb.New(q.AsOf.Std()),
		Viewer: &feedv1.Viewer{Id: q.Viewer.ID, Features: q.Viewer.Features, Attributes: map[string]*structpb.Value{}},
	}
	if q.To < millrace.MaxTime {
		req.To = timestamppb.New(q.To.Std())
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
			panic(err) // the attributes of a question are strings and lists of them
		}
		req.Viewer.Attributes[name] = value
	}
	for _, e := range q.Entities {
		req.Entities = append(req.Entities, string(e))
	}
	for _, ty := range q.Types {
		req.Types = append(req.Types, string(ty))
	}
	return req
}
